"""TorchCodec and torchvision: they decode a list of JPEGs, and one broken image fails the whole list."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence

import torch

from iofast.gpu.decode.backend import Jpeg

Decode = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class AllOrNothing:
    """A function that decodes a list of JPEGs to (3, H, W) each, and raises if it cannot decode one of them.

    On failure each half of the list is tried again: one broken image of 256 costs 16 further calls.
    """

    def __init__(self, name: str, decode: Decode) -> None:
        self.name, self._decode = name, decode

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """See `Backend`. Raises the function's error if it can decode none of several images."""
        errors: list[RuntimeError] = []
        images = self._halved([jpeg.data for jpeg in jpegs], errors)
        if len(errors) > 1 and all(image is None for image in images):
            raise errors[0]  # the library fails, not an image
        return [None if image is None else image.permute(1, 2, 0) for image in images]

    def _halved(self, jpegs: list[torch.Tensor], errors: list[RuntimeError]) -> list[torch.Tensor | None]:
        try:
            return [*self._decode(jpegs)]
        except RuntimeError as error:
            errors.append(error)
        if len(jpegs) < 2:
            return [None] * len(jpegs)
        half = len(jpegs) // 2
        return [*self._halved(jpegs[:half], errors), *self._halved(jpegs[half:], errors)]


def torchcodec(device: torch.device) -> AllOrNothing:
    """Open TorchCodec 0.16 or later. Raises `ImportError` if it is missing or older."""
    module = importlib.import_module("torchcodec.decoders")
    if not hasattr(module, "decode_jpeg"):
        raise ImportError("torchcodec is older than 0.16 and decodes no images")
    return AllOrNothing("TorchCodec", functools.partial(module.decode_jpeg, mode="RGB", device=device))


def torchvision(device: torch.device) -> AllOrNothing:
    """Open torchvision 0.20 or later, the first that takes a list. Raises `ImportError` if it is missing."""
    module = importlib.import_module("torchvision.io")
    decode = functools.partial(module.decode_jpeg, mode=module.ImageReadMode.RGB, device=device)
    return AllOrNothing("torchvision", decode)
