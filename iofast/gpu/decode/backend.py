"""The interface of a library that decodes JPEGs on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Jpeg(NamedTuple):
    """One baseline JPEG, grayscale or YCbCr, with a valid header; `data` is uint8 (bytes,) in host memory.

    The pixels wanted are those in [x0, x1) x [y0, y1) of `width` x `height`.
    """

    data: torch.Tensor
    width: int
    height: int
    x0: int
    y0: int
    x1: int
    y1: int

    @property
    def whole(self) -> bool:
        """Whether all pixels are wanted."""
        return (self.x0, self.y0, self.x1, self.y1) == (0, 0, self.width, self.height)


class Backend(Protocol):
    """A library for one device. One thread uses it at a time, with the stream for its work as the current one.

    name     as users know it
    ordered  whether its work on the device follows all earlier work of the current stream. False for libraries that
             may use nvJPEG's hardware engine: it writes at once, even where the stream waits for an event or still
             uses that memory (H100, nvJPEG 12.3 to 13.2: TorchCodec's pull request 1634)
    regions  whether it decodes only the pixels wanted; otherwise it decodes all, and `DeviceDecoder` crops
    """

    name: str
    ordered: bool
    regions: bool

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """Return RGB images on the device: uint8 (height, width, 3), any strides, the region if `regions`, else all.

        None for an image that the library cannot decode: the CPU then decides. EXIF is ignored.
        """
