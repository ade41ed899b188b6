"""Crops that do not resample: the part of an image, or of a window around it. Torchvision's names and rounding."""

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from iofast.arguments import checked
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.option import check_choice
from iofast.transforms.arguments import Pair, Sides, colour, padding_mode, pair, sides
from iofast.transforms.transform import Boxes, Crop, Floats


class Padding(Crop):
    """A crop that may reach beyond its image, which continues there by `padding_mode`, with the colour `fill`."""

    fill: float | Sequence[float]
    padding_mode: str


@checked(size=pair, fill=colour, padding_mode=padding_mode)
class CenterCrop(Padding):
    """The central `size` (int = square, or (height, width)) of the image.

    A smaller image is reported as undecodable, unless `pad_if_needed`: then it is padded on all sides as by
    `RandomCrop`. (Torchvision always pads with black; timm's CenterCropOrPad is `padding_mode="reflect"`.)
    """

    size: int | Sequence[int]
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    @property
    def pads(self) -> bool:
        return self.pad_if_needed

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        height, width = cast(Pair, self.size)
        x, y = np.rint((widths - width) / 2), np.rint((heights - height) / 2)  # half to even, as Python's round
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))


def _pad_if_needed(name: str, value: object) -> object:
    if not isinstance(value, bool) and value != "end":
        raise OptionError(f"{name} must be True, False or 'end', found {value!r}")
    return value


@checked(size=pair, padding=sides, pad_if_needed=_pad_if_needed, fill=colour, padding_mode=padding_mode)
class RandomCrop(Padding):
    """A random `size` (int = square, or (height, width)) of the image, every place equally likely.

    First `padding` pixels are added around the image: one number, (left and right, top and bottom), or (left, top,
    right, bottom). They have the colour `fill` (0 to 1), or continue the image by `padding_mode`: "edge", "reflect",
    "symmetric". A smaller image is reported as undecodable, unless `pad_if_needed`: then it is padded on all sides, or
    with "end" on the right and below, as by torchvision's references/segmentation.
    """

    random = True
    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool | Literal["end"] = False
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        widest, shortest = max(cast(Sides, self.padding)), min(cast(Pair, self.size))
        if self.padding_mode in ("reflect", "symmetric") and widest >= shortest:
            found = f"found {widest} and {shortest}"
            raise OptionError(f"RandomCrop: padding with {self.padding_mode} must be less than the size, {found}")

    @property
    def pads(self) -> bool:
        return bool(self.pad_if_needed) or any(cast(Sides, self.padding))

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:
        height, width = cast(Pair, self.size)
        left, top, right, bottom = cast(Sides, self.padding)
        u = draw.uniform("crop", 2)
        y = self._starts(u[:, 0], heights, height, (top, bottom))
        x = self._starts(u[:, 1], widths, width, (left, right))
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))

    def _starts(self, u: Floats, lengths: Floats, wanted: int, around: Pair) -> Floats:
        """Where windows begin on an axis; `pad_if_needed` adds the missing pixels on both sides, or at the end."""
        missing = np.maximum(wanted - lengths - sum(around), 0) if self.pad_if_needed else np.zeros_like(lengths)
        before = np.zeros_like(lengths) if self.pad_if_needed == "end" else missing
        return np.asarray(np.floor(u * (lengths + before + missing + sum(around) - wanted + 1)) - around[0] - before)


@checked(padding=sides, fill=colour, padding_mode=padding_mode)
class Pad(Padding):
    """`padding` pixels around the result of `Resize((height, width))`; all parameters as of `RandomCrop`."""

    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0.0
    padding_mode: str = "constant"

    @property
    def pads(self) -> bool:
        return True

    def fixed(self, resized: Pair | None) -> Pair | None:
        left, top, right, bottom = cast(Sides, self.padding)
        return resized and (top + resized[0] + bottom, left + resized[1] + right)

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        left, top, right, bottom = cast(Sides, self.padding)
        x, y = np.full_like(widths, -left), np.full_like(heights, -top)
        return Boxes(x, y, widths + left + right, heights + top + bottom)


CORNERS = {
    "upper left": (0.0, 0.0),
    "upper right": (1.0, 0.0),
    "lower left": (0.0, 1.0),
    "lower right": (1.0, 1.0),
    "center": (0.5, 0.5),
}


@checked(size=pair)
class CornerCrop(Crop):
    """`size` pixels (int = square, or (height, width)) at a corner or in the middle: "upper left", "upper right",
    "lower left", "lower right", "center"."""

    size: int | Sequence[int]
    place: str

    def __post_init__(self) -> None:
        check_choice("CornerCrop: place", self.place, CORNERS)

    def boxes(self, draw: Draw, widths: Floats, heights: Floats) -> Boxes:  # noqa: ARG002  RandomCrop's signature
        height, width = cast(Pair, self.size)
        across, down = CORNERS[self.place]
        x, y = np.rint((widths - width) * across), np.rint((heights - height) * down)
        return Boxes(x, y, np.full_like(x, width), np.full_like(y, height))
