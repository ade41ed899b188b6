"""nvImageCodec, opened and tried on test images before a loader uses it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO

import torch
from PIL import Image

from iofast.errors import OptionError, reason_of
from iofast.gpu.decode.backend import AT_ONCE, Backend, Jpeg
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.nvimagecodec import NvImageCodec

_SIZE, _COLOUR, _TOLERANCE = (48, 32), (200, 120, 40), 8  # of the test image; tolerance in levels


def lacking(device: torch.device) -> str | None:
    """Return why nothing can be decoded on `device`, None if nvImageCodec can be tried. Does not touch the device."""
    if device.type != "cuda" or torch.version.hip is not None:
        name = "ROCm" if device.type == "cuda" else f"device={str(device)!r}"
        return f"it needs an NVIDIA GPU (device='cuda'), found {name}"
    if torch.cuda.get_allocator_backend() != "native":
        # cudaMallocAsync reuses memory in a stream's order, which the hardware engine ignores
        return "it needs torch's own allocator: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"
    if not _installed("nvidia.nvimgcodec"):
        major = (torch.version.cuda or "13").split(".")[0]
        return f"nvImageCodec is not installed: pip install 'iofast[cuda{major}]'"
    return None


def open_decoder(device: torch.device, threads: int) -> DeviceDecoder:
    """Return the decoder of `device`, which must be the current one; the library may use `threads` of the host.

    Raises `OptionError` with the library's failure if it does not work.
    """
    if (reason := lacking(device)) is not None:
        raise OptionError(f"JPEGs cannot be decoded on the device: {reason}")
    try:
        return checked(lambda: NvImageCodec(threads))
    except Exception as error:  # a missing CUDA library, an old driver
        raise OptionError(f"JPEGs cannot be decoded on the device: nvImageCodec: {reason_of(error)}") from error


def checked(make: Callable[[], Backend]) -> DeviceDecoder:
    """Return a decoder for the library that `make` opens, after test images. Raises what `make` or `check` raises."""
    backend = make()
    check(backend)
    return DeviceDecoder(backend, lambda: torch.cuda.current_stream().synchronize())


def check(backend: Backend) -> None:
    """Raise `RuntimeError` unless `backend` decodes `AT_ONCE` test images in one call."""
    stream = BytesIO()
    Image.new("RGB", _SIZE, _COLOUR).save(stream, "JPEG")
    data = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    width, height = _SIZE
    images = backend.decode([Jpeg(data, width, height, 0, 0, width, height)] * AT_ONCE)
    good = [image for image in images if image is not None and image.shape == (height, width, 3)]
    if len(good) < AT_ONCE:
        raise RuntimeError(f"it decoded {len(good)} of {AT_ONCE} small pictures")
    if (torch.stack(good).cpu().int() - torch.tensor(_COLOUR)).abs().max() > _TOLERANCE:
        raise RuntimeError("it got the colours of a small picture wrong")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
