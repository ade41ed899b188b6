"""A list of transforms, compiled into what the kernel and `pixels` carry out: boxes, flips, filter, pixel work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.choices import Draw
from iofast.errors import OptionError, shown
from iofast.ops import CutMix, Level, Mix, MixUp, Normalize, Op, RandomErasing, drawn
from iofast.transforms.buckets import ResizeToBucket
from iofast.transforms.drawing import work
from iofast.transforms.elsewhere import hint
from iofast.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    pair,
)
from iofast.work import Work

Crop = CenterCrop | RandomCrop | RandomResizedCrop | ResizeToBucket
Transform = Resize | Crop | RandomHorizontalFlip | Op

_ALLOWED = (
    "expected ResizeToBucket or RandomResizedCrop, or Resize and then CenterCrop or RandomCrop (each may be left "
    "out), then RandomHorizontalFlip, then operations on colours (ColorJitter, GaussianBlur, RandomApply, …), then "
    "Normalize and RandomErasing, then MixUp or CutMix"
)
_CROPS = dict.fromkeys((CenterCrop, RandomCrop, RandomResizedCrop, ResizeToBucket), 1)
_COLOURS = dict.fromkeys(get_args(Level), 3)
_STAGE: dict[type, int] = {
    Resize: 0,
    RandomHorizontalFlip: 2,
    Normalize: 4,
    RandomErasing: 4,
    MixUp: 5,
    CutMix: 5,
    **_CROPS,
    **_COLOURS,
}
_DRAWN = (RandomCrop, RandomResizedCrop)
_SEVERAL = (3, 4)  # the stages that may hold several transforms


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled transform. Holds no state and no randomness; picklable."""

    resize: Resize | None = None
    crop: Crop | None = None
    flip: RandomHorizontalFlip | None = None
    ops: tuple[Op, ...] = ()

    @property
    def transforms(self) -> list[Transform]:
        """The transforms that it was compiled from."""
        return [each for each in (self.resize, self.crop, self.flip, *self.ops) if each is not None]

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output; None where it depends on the image: then columns 5 and 4 of its box."""
        if isinstance(self.crop, ResizeToBucket):
            return None
        if self.crop is not None:
            return pair("crop", self.crop.size)
        if self.resize is not None and not isinstance(self.resize.size, int):
            return pair("Resize", self.resize.size)
        return None

    @property
    def moves(self) -> Transform | None:
        """What first takes pixels of the stored image to another place; None where all stay."""
        return self.resize or self.crop or self.flip

    @property
    def filter(self) -> str:
        """The kernel's resampling filter."""
        if isinstance(self.crop, RandomResizedCrop | ResizeToBucket):
            return self.crop.interpolation
        return "bilinear" if self.resize is None else self.resize.interpolation

    @property
    def mix(self) -> Mix | None:
        """The operation that mixes images and labels, if there is one."""
        return self.ops[-1] if self.ops and isinstance(self.ops[-1], Mix) else None

    @property
    def drawn(self) -> bool:
        """Whether images differ in what is done to their pixels: then a batch needs its `work`."""
        return drawn(self.ops)

    @property
    def evaluation(self) -> bool:
        """Whether geometry is not random: then decoding stays exact, also with `pixels="fast"`."""
        drawn = self.crop.random if isinstance(self.crop, ResizeToBucket) else isinstance(self.crop, _DRAWN)
        return self.flip is None and not drawn

    def plan(self, draw: Draw, widths: ArrayLike, heights: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes (int32, (N, 8)) and flips (uint8, (N,), 1 = mirror) for N images of upright `widths` x `heights`.

        Columns of a box: region x0, y0, x1, y1 in source pixels; width and height to which the region is resampled
        (without `size` also the output's); x, y of the output window in that. An image smaller than the crop gets a
        region or window that lies outside it, one of unknown size (0) a box of zeros: the kernel answers `Status.BOX`.
        256 rows of `train()` take 130 us.
        """
        w, h = np.asarray(widths, np.float64), np.asarray(heights, np.float64)
        unknown = (w < 1) | (h < 1)
        boxes = np.zeros((len(draw), 8), np.int32)
        for column, values in enumerate(self._columns(draw, np.maximum(w, 1), np.maximum(h, 1))):
            boxes[:, column] = values
        boxes[unknown] = 0
        flips = np.zeros(len(draw), np.uint8) if self.flip is None else self.flip.flips(draw)
        return boxes, flips

    def work(self, draw: Draw, widths: ArrayLike, heights: ArrayLike) -> Work:
        """What `ops` do to each of N finished images of `widths` x `heights` pixels; see `Work`."""
        return work(self.ops, draw, np.asarray(widths, np.float64), np.asarray(heights, np.float64))

    def _columns(
        self, draw: Draw, widths: NDArray[np.float64], heights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64] | int, ...]:
        if self.crop is not None and self.resize is None:
            x, y, w, h = self.crop.boxes(draw, widths, heights)
            if isinstance(self.crop, ResizeToBucket):
                return x, y, x + w, y + h, *self.crop.outputs(widths, heights)
            out_height, out_width = pair("crop", self.crop.size)
            return x, y, x + w, y + h, out_width, out_height
        if self.resize is None:
            return 0, 0, widths, heights, widths, heights
        resized = self.resize.sizes(widths, heights)
        window = () if self.crop is None else self.crop.boxes(draw, *resized)[:2]
        return 0, 0, widths, heights, *resized, *window


def compile(transforms: Iterable[Transform] | Pipeline | None) -> Pipeline:
    """Check the order of `transforms` (None = none) and compile it, or raise `OptionError` saying what is allowed."""
    if isinstance(transforms, Pipeline):
        return transforms
    listed = _listed(transforms)
    for before, after in pairwise(listed):
        first, second = _STAGE[type(before)], _STAGE[type(after)]
        if second < first or (second == first and first not in _SEVERAL):
            raise OptionError(f"{after!r} cannot follow {before!r}: {_ALLOWED}")
    pipeline = Pipeline(
        resize=next((each for each in listed if isinstance(each, Resize)), None),
        crop=next((each for each in listed if isinstance(each, Crop)), None),
        flip=next((each for each in listed if isinstance(each, RandomHorizontalFlip)), None),
        ops=tuple(each for each in listed if isinstance(each, Op)),
    )
    return _checked(pipeline)


def _listed(transforms: Iterable[Transform] | None) -> list[Transform]:
    if transforms is None:
        return []
    if not isinstance(transforms, Iterable) or not getattr(transforms, "shape", True):  # an array of no dimension
        raise OptionError(
            f"transform must be a list such as T.train(224), found {shown(transforms)}{_advice(transforms)}"
        )
    listed = list(transforms)
    if strange := [each for each in listed if type(each) not in _STAGE]:
        raise OptionError(f"{_named(strange[0])} is no transform of iofast: {_ALLOWED}{_advice(strange[0])}")
    return listed


def _named(transform: object) -> str:
    """The class of another library's transform by its whole name; what is no transform at all as it is."""
    kind = type(transform)
    own = kind.__module__ in ("builtins", __name__) or isinstance(transform, type)
    return shown(transform) if own else f"{kind.__module__}.{kind.__qualname__}"


def _advice(transform: object) -> str:
    """What to do about a transform that is not one of ours, to stand at the end of a message."""
    name = type(transform).__name__
    if isinstance(transform, type) and transform in _STAGE:
        return f"; write {transform.__name__}(…)"
    if name in {kind.__name__ for kind in _STAGE}:
        return f"; use iofast.transforms.{name}"
    if (known := hint(name)) is not None:
        return f"; {name} {known}"
    return "; functions of your own are the loader's map_sample" if callable(transform) else ""


def _checked(pipeline: Pipeline) -> Pipeline:
    resize, crop = pipeline.resize, pipeline.crop
    if resize is None or crop is None:
        return pipeline
    if isinstance(crop, RandomResizedCrop | ResizeToBucket):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: {_ALLOWED}")
    height, width = pair("Resize", resize.size)
    high, wide = pair("crop", crop.size)
    short_only = isinstance(resize.size, int)  # then one side is as long as `size`, and the other may be longer
    if min(high, wide) > height if short_only else (high > height or wide > width):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: the crop is larger than any image that was resized so")
    return pipeline
