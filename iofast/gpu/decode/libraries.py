"""Which library decodes JPEGs on a device: the first one that is installed and gets a small picture right."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO

import torch
from PIL import Image

from iofast.errors import OptionError, reason_of
from iofast.gpu.decode.backend import Backend, Jpeg
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.nvimagecodec import NvImageCodec
from iofast.gpu.decode.torch_libraries import torchcodec, torchvision

_MODULES = {"nvImageCodec": "nvidia.nvimgcodec", "TorchCodec": "torchcodec", "torchvision": "torchvision"}  # best first
_SIZE, _COLOUR, _OFF = (48, 32), (200, 120, 40), 8  # the small picture, and how many levels it may be off


def lacking(device: torch.device) -> str | None:
    """Why nothing can be decoded on `device`, without touching it; None where there is a library to try."""
    if device.type != "cuda" or torch.version.hip is not None:
        name = "ROCm" if device.type == "cuda" else f"device={str(device)!r}"
        return f"it needs an NVIDIA GPU (device='cuda'), found {name}"
    if torch.cuda.get_allocator_backend() != "native":
        # it hands memory over in a stream's order, which the hardware engine does not keep
        return "it needs torch's own allocator: take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"
    if not any(_installed(module) for module in _MODULES.values()):
        major = (torch.version.cuda or "13").split(".")[0]
        return f"no library for it is installed: pip install 'iofast[cuda{major}]' for nvImageCodec"
    return None


def open_decoder(device: torch.device, threads: int, *, adaptive: bool = False) -> DeviceDecoder:
    """The decoder of `device`, which is the current one; `threads` of the host may help it.

    `adaptive` lets it change which engine decodes what while it runs: then pixels are not the same in every run.
    Raises `OptionError` saying what each library's trouble is where none works.
    """
    if (reason := lacking(device)) is not None:
        raise OptionError(f"JPEGs cannot be decoded on the device: {reason}")
    troubles = []
    for name, make in libraries(device, threads, adaptive=adaptive).items():
        try:
            return checked(make)
        except Exception as error:  # a missing library of CUDA, a driver that is too old, an operator that is not there
            troubles.append(f"{name}: {reason_of(error)}")
    raise OptionError(f"JPEGs cannot be decoded on the device: {'; '.join(troubles):.500}")


def libraries(device: torch.device, threads: int, *, adaptive: bool = False) -> dict[str, Callable[[], Backend]]:
    """What makes each library's back-end for `device`, which is the current one, the best first."""
    return {
        "nvImageCodec": lambda: NvImageCodec(threads, adaptive=adaptive),
        "TorchCodec": lambda: torchcodec(device),
        "torchvision": lambda: torchvision(device),
    }


def checked(make: Callable[[], Backend]) -> DeviceDecoder:
    """A decoder of the back-end that `make` makes, which has decoded a small picture; raises its trouble where not."""
    backend = make()
    check(backend)
    return DeviceDecoder(backend, lambda: torch.cuda.current_stream().synchronize())


def check(backend: Backend) -> None:
    """Raise `RuntimeError` unless `backend` decodes a small picture."""
    stream = BytesIO()
    Image.new("RGB", _SIZE, _COLOUR).save(stream, "JPEG")
    data = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    width, height = _SIZE
    (image,) = backend.decode([Jpeg(data, width, height, 0, 0, width, height)])
    if image is None or image.shape != (height, width, 3):
        raise RuntimeError("it did not decode a small picture")
    if (image.cpu().int() - torch.tensor(_COLOUR)).abs().max() > _OFF:
        raise RuntimeError("it got the colours of a small picture wrong")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the namespace that it lies in
        return False
