"""nvImageCodec, which uses the hardware engine, CUDA and the host. A broken image does not fail the others."""

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
    """`nvidia.nvimgcodec.Decoder`: on the hardware engine where there is one, else on CUDA with `threads` of the host.

    The engine is asked to take whole batches: on an H100, where the first call had 256 images, it decoded 19,800 packed
    photographs a second, 15,800 of ImageNet's size; asked for half of them, 12,800 and 5,700. A share for CUDA would
    also make an image's pixels depend on its place in the batch. Images are decoded whole: with `_OPTIONS` nvJPEG older
    than 13.2 refuses regions.
    """

    name = "nvImageCodec"

    def __init__(self, threads: int) -> None:
        """Open the library on the current device. Raises `ImportError` if it is not installed."""
        self._codec: Any = importlib.import_module("nvidia.nvimgcodec")
        codec, device = self._codec, torch.cuda.current_device()
        keep_memory(device)
        kinds = codec.BackendKind  # without CPU_ONLY: iofast's own kernel is faster
        backends = [codec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)]
        self._decoder = codec.Decoder(
            device_id=device, max_num_cpu_threads=threads, backends=backends, options=_OPTIONS
        )
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB)

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """See `Backend`."""
        sources = [self._codec.CodeStream(jpeg.data.numpy()) for jpeg in jpegs]
        stream = torch.cuda.current_stream().cuda_stream
        images = self._decoder.decode(sources, params=self._params, cuda_stream=stream)
        return [None if image is None else torch.utils.dlpack.from_dlpack(image) for image in images]


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
