"""nvImageCodec: one call for a batch, each image by itself, shared out among hardware engine, CUDA and host."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from iofast.gpu.decode.backend import Jpeg

# libjpeg's interpolation of chroma, which is the CPU kernel's too; without it edges of colours lie a pixel apart
_OPTIONS = ":fancy_upsampling=1"

KEPT = 1 << 30  # bytes that the driver's pool keeps, as much as is decoded at once
_RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


class NvImageCodec:
    """`nvidia.nvimgcodec.Decoder`. `threads` of the host take part, for Huffman codes.

    Half of a batch goes to the hardware engine: all of it is slower than none (A100: 5,000 and 6,000 images/s, three
    quarters 7,000). `adaptive` lets the library change that with every batch, so that an image may come from another
    engine, and some of its pixels off by a level, in the next run.
    """

    name = "nvImageCodec"
    ordered = False
    regions = True

    def __init__(self, threads: int, *, adaptive: bool) -> None:
        """For the current device. Raises `ImportError` where it is not installed."""
        self._codec: Any = importlib.import_module("nvidia.nvimgcodec")
        codec, device = self._codec, torch.cuda.current_device()
        keep_memory(device)
        kinds, policies = codec.BackendKind, codec.LoadHintPolicy
        policy = policies.ADAPTIVE_MINIMIZE_IDLE_TIME if adaptive else policies.FIXED
        backends = [
            codec.Backend(kinds.HW_GPU_ONLY, load_hint=0.5, load_hint_policy=policy),
            codec.Backend(kinds.GPU_ONLY),
            codec.Backend(kinds.HYBRID_CPU_GPU),
        ]  # not its CPU_ONLY: iofast's own kernel does what is left
        self._decoder = codec.Decoder(
            device_id=device,
            max_num_cpu_threads=threads,
            backends=backends,
            options=_OPTIONS,
        )
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """See `Backend`."""
        stream = torch.cuda.current_stream()
        # kept until the end: a region is a view of its stream
        wholes = [self._codec.CodeStream(jpeg.data.numpy()) for jpeg in jpegs]
        sources = [self._source(whole, jpeg) for whole, jpeg in zip(wholes, jpegs, strict=True)]
        images = self._decoder.decode(sources, params=self._params, cuda_stream=stream.cuda_stream)
        return [None if image is None else torch.utils.dlpack.from_dlpack(image) for image in images]

    def _source(self, whole: Any, jpeg: Jpeg) -> Any:
        if jpeg.whole:
            return whole
        return whole.get_sub_code_stream(region=self._codec.Region(jpeg.y0, jpeg.x0, jpeg.y1, jpeg.x1))


def keep_memory(device: int) -> None:
    """Have the driver's pool of `device`, where the library's images lie, keep up to `KEPT` bytes of what is free.

    It keeps none by default: each wait for a stream gives all of it back to the system, and a batch waits twice, so
    that every image would be new memory. A driver without pools is left alone, and a pool that keeps more.
    """
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        pool, kept = ctypes.c_void_p(), ctypes.c_uint64()
        if driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device):
            return
        if driver.cuMemPoolGetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(kept)) or kept.value >= KEPT:
            return
        driver.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(KEPT)))
