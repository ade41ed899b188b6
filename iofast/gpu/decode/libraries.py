"""The library that decodes JPEGs on a device: the first one that is installed and decodes a test image correctly."""

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
from iofast.gpu.decode.torch_libraries import torchcodec, torchvision

_MODULES = ("nvidia.nvimgcodec", "torchcodec", "torchvision")
_SIZE, _COLOUR, _TOLERANCE = (48, 32), (200, 120, 40), 8  # of the test image; tolerance in levels


def lacking(device: torch.device) -> str | None:
    """Return why nothing can be decoded on `device`, None if there is a library to try. Does not touch the device."""
    if device.type != "cuda" or torch.version.hip is not None:
        name = "ROCm" if device.type == "cuda" else f"device={str(device)!r}"
        return f"it needs an NVIDIA GPU (device='cuda'), found {name}"
    if torch.cuda.get_allocator_backend() != "native":
        # cudaMallocAsync reuses memory in a stream's order, which the hardware engine ignores
        return "it needs torch's own allocator: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"
    if not any(map(_installed, _MODULES)):
        major = (torch.version.cuda or "13").split(".")[0]
        return f"no library for it is installed: pip install 'iofast[cuda{major}]' for nvImageCodec"
    return None


def open_decoder(device: torch.device, threads: int) -> DeviceDecoder:
    """Return the decoder of `device`, which must be the current one; the library may use `threads` of the host.

    Raises `OptionError` with each library's failure if none works.
    """
    if (reason := lacking(device)) is not None:
        raise OptionError(f"JPEGs cannot be decoded on the device: {reason}")
    failures = []
    for name, make in libraries(device, threads).items():
        try:
            return checked(make)
        except Exception as error:  # a missing CUDA library, an old driver, a missing operator
            failures.append(f"{name}: {reason_of(error)}")
    raise OptionError(f"JPEGs cannot be decoded on the device: {'; '.join(failures):.500}")


def libraries(device: torch.device, threads: int) -> dict[str, Callable[[], Backend]]:
    """Return the constructor of each library for `device`, best first. The device must be the current one."""
    return {
        "nvImageCodec": lambda: NvImageCodec(threads),
        "TorchCodec": lambda: torchcodec(device),
        "torchvision": lambda: torchvision(device),
    }


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
