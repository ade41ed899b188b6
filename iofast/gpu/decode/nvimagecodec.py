"""nvImageCodec: one call per batch, shared out among hardware engine, CUDA and host; images fail one by one."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from iofast.gpu.decode.backend import Jpeg

# libjpeg's chroma interpolation, as in the CPU kernel; without it colour edges differ by a pixel
_OPTIONS = ":fancy_upsampling=1"

KEPT = 1 << 30  # bytes that the driver's pool keeps: as much as is decoded at once
_RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


class NvImageCodec:
    """`nvidia.nvimgcodec.Decoder` with `threads` of the host for Huffman decoding.

    Half of a batch goes to the hardware engine (NVIDIA's figures for DALI on an A100: 5,000 images/s with all on it,
    6,000 with none, 7,000 with three quarters). `adaptive` lets the library change that per batch: then an image may be
    decoded by another engine in the next run, with some pixels one level off.
    """

    name = "nvImageCodec"
    ordered = False
    regions = True

    def __init__(self, threads: int, *, adaptive: bool) -> None:
        """Open the library on the current device. Raises `ImportError` if it is not installed."""
        self._codec: Any = importlib.import_module("nvidia.nvimgcodec")
        codec, device = self._codec, torch.cuda.current_device()
        keep_memory(device)
        kinds, policies = codec.BackendKind, codec.LoadHintPolicy
        policy = policies.ADAPTIVE_MINIMIZE_IDLE_TIME if adaptive else policies.FIXED
        backends = [
            codec.Backend(kinds.HW_GPU_ONLY, load_hint=0.5, load_hint_policy=policy),
            codec.Backend(kinds.GPU_ONLY),
            codec.Backend(kinds.HYBRID_CPU_GPU),
        ]  # without CPU_ONLY: iofast's own kernel is faster
        self._decoder = codec.Decoder(
            device_id=device, max_num_cpu_threads=threads, backends=backends, options=_OPTIONS
        )
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """See `Backend`."""
        wholes = [self._codec.CodeStream(jpeg.data.numpy()) for jpeg in jpegs]  # must outlive their regions
        sources = [self._source(whole, jpeg) for whole, jpeg in zip(wholes, jpegs, strict=True)]
        stream = torch.cuda.current_stream().cuda_stream
        images = self._decoder.decode(sources, params=self._params, cuda_stream=stream)
        return [None if image is None else torch.utils.dlpack.from_dlpack(image) for image in images]

    def _source(self, whole: Any, jpeg: Jpeg) -> Any:
        if jpeg.whole:
            return whole
        return whole.get_sub_code_stream(region=self._codec.Region(jpeg.y0, jpeg.x0, jpeg.y1, jpeg.x1))


def keep_memory(device: int) -> None:
    """Make the driver's memory pool of `device`, which the library uses, keep up to `KEPT` free bytes.

    By default each wait for a stream returns all of it to the system, and a batch waits twice. A driver without pools,
    or a pool that keeps more, is left alone.
    """
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        pool, kept = ctypes.c_void_p(), ctypes.c_uint64()
        if driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device):
            return
        if driver.cuMemPoolGetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(kept)) or kept.value >= KEPT:
            return
        driver.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(ctypes.c_uint64(KEPT)))
