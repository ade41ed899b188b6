"""nvImageCodec: on the hardware engine, CUDA or the host; images fail one by one."""

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
# Images in a call. The engine seems to take as many of a batch as it got in its first call, and CUDA the others: on an
# H100 after a first call of 256 images 19,800 a second in calls of 256, 6,700 in calls of 1,024; after a first call of
# one image 6,000. So the first call has as many as the others.
AT_ONCE = 256

KEPT = 1 << 30  # bytes that the driver's pool keeps: as much as is decoded at once
_RELEASE_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


class NvImageCodec:
    """`nvidia.nvimgcodec.Decoder`: on the hardware engine where there is one, else on CUDA with `threads` of the host.

    On an H100 the engine alone decodes 19,800 packed photographs a second, 15,800 of ImageNet's size; with half of the
    batch for CUDA and four threads 12,800 and 5,700. All images then come from one engine, so that pixels do not depend
    on what else is in the batch. Images are decoded whole: with `_OPTIONS` nvJPEG before 13.2 refuses regions.
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
        images: list[Any] = []
        for start in range(0, len(sources), AT_ONCE):
            some = sources[start : start + AT_ONCE]
            images += self._decoder.decode(some, params=self._params, cuda_stream=stream)
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
