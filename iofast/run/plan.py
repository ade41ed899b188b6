"""What has been asked of an image: orientation, a region, a resize, a window of the result, a mirror, colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

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
    """Operations on an image in the order of the fields.

    The methods with Pillow's names take Pillow's arguments. They return None where Pillow has to do it.
    """

    mode: str  # of the result: RGB or L
    turn: int  # EXIF orientation, 0 = as stored
    full: Size  # of the whole image after `turn`
    region: Box
    virtual: Size | None  # the size to which the region is resampled; None = not resampled
    window: Size  # the left upper corner of what is kept of the virtual image
    size: Size  # of the result
    resampling: int  # as in the kernel's `flips`; 0 = not resampled
    mirrored: bool  # left to right
    steps: tuple[colours.Colour, ...] = ()  # on the finished pixels

    @classmethod
    def whole(cls, mode: str, size: Size) -> Plan:
        """Return the plan of an unchanged image."""
        return cls(mode, 0, size, (0, 0, *size), None, (0, 0), size, 0, False)

    @property
    def is_whole(self) -> bool:
        """Whether all pixels of the file are needed at their own size."""
        return self.virtual is None and self.size == self.full

    def after(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> Plan | None:
        """Return the plan with one more operation of Pillow or torchvision; None where Pillow has to do it.

        `given` and `named` are its arguments behind the image.
        """
        try:
            if name in colours.STEPS:
                return self._step(colours.STEPS[name](*given, **named))
            plan: Plan | None = getattr(self, name)(*given, **named)
        except (TypeError, ValueError, LookupError, OverflowError):  # Pillow has its own error, or other arguments
            return None
        return plan

    def _step(self, step: colours.Colour | None) -> Plan | None:
        return self._replace(steps=(*self.steps, step)) if step and self.mode == "RGB" else None

    def copy(self) -> Plan:
        """Change nothing."""
        return self

    def convert(self, mode: str | None = None) -> Plan | None:
        """Between RGB and L. Pillow's gray of a whole image is as fast."""
        if mode in (None, self.mode):
            return self
        if (self.mode, mode) == ("L", "RGB"):
            return self._replace(mode="RGB")
        gray = None if mode != "L" or self.is_whole else self._step(colours.LUMA)
        return gray and gray._replace(mode="L")

    def crop(self, box: Sequence[float] | None = None) -> Plan | None:
        """Cut out a box, rounded as Pillow rounds. Pillow fills what lies outside of an image."""
        if box is None:
            return self
        x0, y0, x1, y1 = (round(each) for each in box)
        width, height = self.size
        if self.steps or not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            return None
        if self.mirrored:
            x0, x1 = width - x1, width - x0
        size = x1 - x0, y1 - y0
        if self.virtual is not None:
            return self._replace(window=(self.window[0] + x0, self.window[1] + y0), size=size)
        x, y = self.region[:2]
        return self._replace(region=(x + x0, y + y0, x + x1, y + y1), size=size)

    def resize(self, size: Sequence[int], resample: int | None = None) -> Plan | None:
        """Resample to `size`; once, and not behind a mirror, whose weights could round in another way."""
        width, height = map(index, size)
        resampling = Image.Resampling(Image.Resampling.BICUBIC if resample is None else resample)
        if (width, height) == self.size:
            return self
        behind = self.virtual is not None or self.mirrored or self.steps
        if behind or resampling not in _FILTERS or min(width, height) < 1:
            return None
        return self._replace(virtual=(width, height), size=(width, height), resampling=_FILTERS[resampling])

    def transpose(self, method: int) -> Plan | None:
        """Mirror; any other transpose of a whole image that has not been turned."""
        across = method == Image.Transpose.FLIP_LEFT_RIGHT
        if across and not self.steps:
            return self._replace(mirrored=not self.mirrored)
        turn = _TURNS[Image.Transpose(method)]
        if self.turn or self.mirrored or self.steps or not self.is_whole:
            mirrors = across or method == Image.Transpose.FLIP_TOP_BOTTOM
            return self._replace(steps=(*self.steps, colours.flip(across=across))) if mirrors else None
        full = self.full[::-1] if turn >= 5 else self.full
        return self._replace(turn=turn, full=full, region=(0, 0, *full), size=full)

    def transform(
        self, size: Sequence[int], method: Any, data: Any, resample: int = 0, *, fillcolor: Any = None
    ) -> Plan | None:
        """Move pixels by an affine matrix, to the same size."""
        affine = method == Image.Transform.AFFINE and tuple(size) == self.size
        return self._step(colours.affine(self.size, data, resample, fillcolor)) if affine else None

    def numbers(self) -> tuple[int, ...]:
        """Return the eight numbers of a row of the kernel's `boxes`."""
        x0, y0, x1, y1 = self.region
        return (x0, y0, x1, y1, *(self.virtual or (x1 - x0, y1 - y0)), *self.window)

    def flips(self) -> int:
        """Return the row of the kernel's `flips`."""
        return (self.resampling or 1) << 1 | self.mirrored
