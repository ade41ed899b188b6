"""What has been asked of an image: orientation, a region, a resize, a window of the result, a mirror, colours.

Beside that, a plan has the script's calls themselves: Pillow repeats them on what the kernel refuses, and on checked
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from iofast.kernel.contract import ALL_FILTERS
from iofast.run import colours

Size = tuple[int, int]  # width, height
Box = tuple[int, int, int, int]  # x0, y0, x1, y1

_FILTERS = {
    each: ALL_FILTERS.index(name) + 1 for each in Image.Resampling if (name := each.name.lower()) in ALL_FILTERS
}
# The EXIF orientation whose correction is this transpose.
_TURNS = {
    Image.Transpose.FLIP_LEFT_RIGHT: 2,
    Image.Transpose.ROTATE_180: 3,
    Image.Transpose.FLIP_TOP_BOTTOM: 4,
    Image.Transpose.TRANSPOSE: 5,
    Image.Transpose.ROTATE_270: 6,
    Image.Transpose.TRANSVERSE: 7,
    Image.Transpose.ROTATE_90: 8,
}


class Plan(NamedTuple):
    """Operations on an image in the order of the fields. Every method returns None where Pillow has to do it."""

    turn: int  # EXIF orientation, 0 = as stored
    full: Size  # of the whole image after `turn`
    region: Box
    virtual: Size | None  # the size to which the region is resampled; None = not resampled
    window: Size  # the left upper corner of what is kept of the virtual image
    size: Size  # of the result
    filter: int  # as in the kernel's `flips`; 0 = not resampled
    flip: bool  # left to right
    steps: tuple[colours.Colour, ...] = ()  # on the finished pixels
    calls: tuple[colours.Call, ...] = ()  # the same, as the script called Pillow

    @classmethod
    def whole(cls, size: Size) -> Plan:
        """Return the plan of an unchanged image."""
        return cls(0, size, (0, 0, *size), None, (0, 0), size, 0, False)

    @property
    def is_whole(self) -> bool:
        """Whether all pixels of the file are needed at their own size."""
        return self.virtual is None and self.size == self.full

    def step(self, step: colours.Colour) -> Plan:
        """Do an operation on colours."""
        return self._replace(steps=(*self.steps, step))

    def crop(self, box: Sequence[float]) -> Plan | None:
        """Cut out a box, rounded as Pillow rounds. Pillow fills what lies outside of an image."""
        if self.steps:
            return None
        x0, y0, x1, y1 = (round(each) for each in box)
        width, height = self.size
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            return None
        if self.flip:
            x0, x1 = width - x1, width - x0
        size = x1 - x0, y1 - y0
        if self.virtual is not None:
            return self._replace(window=(self.window[0] + x0, self.window[1] + y0), size=size)
        x, y = self.region[:2]
        return self._replace(region=(x + x0, y + y0, x + x1, y + y1), size=size)

    def resize(self, size: Size, resample: int) -> Plan | None:
        """Resample to `size`; once, and not behind a mirror, whose weights could round in another way."""
        number = _FILTERS.get(resample)  # type: ignore[call-overload]
        if self.virtual is not None or self.flip or self.steps or number is None or min(size) < 1:
            return None
        return self._replace(virtual=size, size=size, filter=number)

    def transpose(self, method: int) -> Plan | None:
        """Mirror; any other transpose of a whole image that has not been turned."""
        if method == Image.Transpose.FLIP_LEFT_RIGHT and not self.steps:
            return self._replace(flip=not self.flip)
        turn = _TURNS.get(method)  # type: ignore[call-overload]
        if turn is None or self.turn or self.flip or self.steps or not self.is_whole:
            mirrors = method in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)
            return self.step(colours.flip(across=method == Image.Transpose.FLIP_LEFT_RIGHT)) if mirrors else None
        full = self.full[::-1] if turn >= 5 else self.full
        return self._replace(turn=turn, full=full, region=(0, 0, *full), size=full)

    def numbers(self) -> tuple[int, ...]:
        """Return the eight numbers of a row of the kernel's `boxes`."""
        x0, y0, x1, y1 = self.region
        return (x0, y0, x1, y1, *(self.virtual or (x1 - x0, y1 - y0)), *self.window)

    def flips(self) -> int:
        """Return the row of the kernel's `flips`."""
        return (self.filter or 1) << 1 | self.flip
