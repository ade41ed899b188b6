"""What a library that decodes JPEGs on a device has to do for a loader, and what it may leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Jpeg(NamedTuple):
    """One baseline JPEG, grayscale or YCbCr, whose header was looked at; `data` is uint8 (bytes,) in host memory.

    Of its `width` x `height` pixels those in [x0, x1) x [y0, y1) are wanted.
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
        """Whether all of it is wanted."""
        return (self.x0, self.y0, self.x1, self.y1) == (0, 0, self.width, self.height)


class Backend(Protocol):
    """A library, for one device. Used by one thread at a time, with the stream current that its work is for.

    name     as users know it
    ordered  whether what it does on the device comes after all that was put on the current stream before. Those that
             may use nvJPEG's hardware engine are not: it writes as soon as it is called, whatever the stream still has
             to do with that memory, and also where the stream waits for an event (H100, nvJPEG 12.3 to 13.2)
    regions  whether it leaves out what is not wanted; of others all is decoded, and the region cut out
    """

    name: str
    ordered: bool
    regions: bool

    def decode(self, jpegs: Sequence[Jpeg]) -> list[torch.Tensor | None]:
        """Each as RGB on the device, uint8 (height, width, 3) of any strides: the region where `regions`, or all.

        None for one that it cannot decode, which is not an error: another decoder judges. There is no EXIF in them.
        """
