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
from iofast.kernel.contract import ALL_FILTERS
from iofast.ops import (
    ImageOp,
    Mix,
    Mixes,
    Move,
    Normalize,
    Op,
    Policy,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomHorizontalFlip,
    RandomOrder,
    drawn,
)
from iofast.transforms.buckets import ResizeToBucket
from iofast.transforms.drawing import work
from iofast.transforms.elsewhere import hint
from iofast.transforms.geometry import (
    EDGES,
    RANDOM,
    CenterCrop,
    RandomCrop,
    Resize,
    filter_of,
    pair,
)
from iofast.transforms.programs import Program, numbers, one
from iofast.transforms.resized_crops import RandomResizedCrop, ResizedCenterCrop
from iofast.transforms.resizing import RandomSize, Resizing
from iofast.transforms.views import CornerCrop, Views
from iofast.transforms.warps import mirrored
from iofast.work import Step, Work

Crop = CenterCrop | RandomCrop | CornerCrop | RandomResizedCrop | ResizedCenterCrop | ResizeToBucket
_Resampled = RandomResizedCrop | ResizedCenterCrop | ResizeToBucket
Transform = Resizing | Crop | Op

_ALLOWED = (
    "expected ResizeToBucket, or Resize (RandomResize, ScaleJitter, …) and then RandomResizedCrop, CenterCrop or "
    "RandomCrop (each may be left out), then operations on images (RandomHorizontalFlip, RandAugment, ColorJitter, "
    "RandomApply, …), then Normalize and RandomErasing, then MixUp or CutMix or RandomChoice of them"
)
_CROPS = dict.fromkeys(get_args(Crop), 1)
_IMAGES = dict.fromkeys(get_args(ImageOp), 2)
_MIXES = dict.fromkeys(get_args(Mix), 4)
_RESIZINGS = dict.fromkeys(get_args(Resizing), 0)
_STAGE: dict[type, int] = {**_RESIZINGS, Normalize: 3, RandomErasing: 3, **_CROPS, **_IMAGES, **_MIXES}
_DRAWN = (RandomCrop, RandomResizedCrop)
_SEVERAL = (2, 3)  # the stages that may hold several transforms


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled transform. Holds no state and no randomness; picklable."""

    resize: Resizing | None = None
    crop: Crop | None = None
    flip: RandomHorizontalFlip | None = None
    ops: tuple[Op, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def transforms(self) -> list[Transform]:
        """The transforms that it was compiled from; of several views those of all."""
        if self.views:
            return [each for view in self.views for each in view.pipeline.transforms]
        return [each for each in (self.resize, self.crop, self.flip, *self.ops) if each is not None]

    @property
    def each(self) -> tuple[Pipeline, ...]:
        """Itself and those of its views."""
        return self, *(view.pipeline for view in self.views)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output; None where it depends on the image: then columns 5 and 4 of its box."""
        if isinstance(self.crop, ResizeToBucket):
            return None
        if self.crop is not None:
            return pair("crop", self.crop.size)
        if isinstance(self.resize, Resize) and not isinstance(self.resize.size, int):
            return pair("Resize", self.resize.size)
        return None

    @property
    def pixels(self) -> int:
        """How many pixels are made of each image; 0 where that depends on the image."""
        sizes = [(view.count or 1, view.pipeline.size) for view in self.views] or [(1, self.size)]
        return sum(count * height * width for count, (height, width) in ((n, size or (0, 0)) for n, size in sizes))

    @property
    def moves(self) -> Transform | None:
        """What first takes pixels of the stored image to another place; None where all stay."""
        own = self.resize or self.crop or self.flip or next((op for op in self.ops if moving(op)), None)
        return own or next((view.pipeline.moves for view in self.views), None)

    @property
    def warps(self) -> bool:
        """Whether pixels are moved after the crop and its flip: by steps of `work`."""
        return self.pads or any(moving(op) for op in self.ops)

    @property
    def finishes(self) -> bool:
        """Whether anything is done to images once they are cut out."""
        return bool(self.ops) or self.pads

    @property
    def pads(self) -> bool:
        """Whether a crop may take in what lies outside of an image."""
        return isinstance(self.crop, RandomCrop | CenterCrop) and self.crop.pads

    @property
    def filter(self) -> str:
        """The kernel's resampling filter; "random" where each image has its own."""
        resampling = self.crop if isinstance(self.crop, _Resampled) else self.resize
        return "bilinear" if resampling is None else filter_of(resampling)

    @property
    def mix(self) -> Mix | None:
        """The operation that mixes images and labels, if there is one."""
        return self.ops[-1] if self.ops and isinstance(self.ops[-1], Mix) else None

    @property
    def drawn(self) -> bool:
        """Whether images differ in what is done to their pixels: then a batch needs its `work`."""
        return drawn(self.ops) or self.pads

    @property
    def evaluation(self) -> bool:
        """Whether geometry is not random: then decoding stays exact, also with `pixels="fast"`."""
        drawn = self.crop.random if isinstance(self.crop, ResizeToBucket) else isinstance(self.crop, _DRAWN)
        return self.flip is None and not drawn and not isinstance(self.resize, RandomSize)

    def plan(self, draw: Draw, widths: ArrayLike, heights: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes (int32, (N, 8)) and flips (uint8, (N,), 1 = mirror) for N images of upright `widths` x `heights`.

        With random interpolation the filter's number stands in the higher bits of a flip, as the kernel has it.

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
        flips = self._flips(draw)
        if self.filter == RANDOM:
            bicubic = draw.uniform("interpolation")[:, 0] < 0.5
            flips |= (1 + np.where(bicubic, *map(ALL_FILTERS.index, ("bicubic", "bilinear"))) << 1).astype(np.uint8)
        return boxes, flips

    def _flips(self, draw: Draw) -> NDArray[np.uint8]:
        if self.flip is None:
            return np.zeros(len(draw), np.uint8)
        return mirrored(self.flip, draw, "flip").astype(np.uint8)

    def work(
        self, draw: Draw, widths: ArrayLike, heights: ArrayLike, stored: tuple[ArrayLike, ArrayLike] | None = None
    ) -> Work:
        """What is done to each of N images of `widths` x `heights` pixels that were cut out as `plan` says; see `Work`.

        `stored` are the widths and heights of the images that they were cut out of, which a pipeline that `pads` has to
        know.
        """
        first = []
        if self.pads and stored is not None:
            wide, high = (np.maximum(np.asarray(each, np.float64), 1) for each in stored)
            first.append(self._padding(draw, wide, high))
        return work(self.ops, draw, np.asarray(widths, np.float64), np.asarray(heights, np.float64), first)

    def _padding(self, draw: Draw, widths: NDArray[np.float64], heights: NDArray[np.float64]) -> Program:
        """The step that puts what the kernel could cut out of images to where it belongs, and goes on beyond them."""
        assert isinstance(self.crop, RandomCrop | CenterCrop)
        wide, high = self._resized(draw, widths, heights)
        x, y, width, height = self.crop.boxes(draw, wide, high)
        beyond = x - _within(x, wide, width), y - _within(y, high, height)
        edge = np.full_like(x, EDGES[self.crop.padding_mode])
        fills = [np.full_like(x, 255 * level) for level in self.crop.fill]  # type: ignore[union-attr]
        own = numbers(*beyond, np.minimum(wide, width), np.minimum(high, height), edge, *fills)
        return one(Step.PAD, np.ones(len(draw), np.bool_), own)

    def _resized(
        self, draw: Draw, widths: NDArray[np.float64], heights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return (widths, heights) if self.resize is None else self.resize.sizes(draw, widths, heights)

    def _columns(
        self, draw: Draw, widths: NDArray[np.float64], heights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64] | int, ...]:
        resized = self._resized(draw, widths, heights)
        if self.crop is None:
            return 0, 0, widths, heights, *resized
        x, y, w, h = self.crop.boxes(draw, *resized)
        if isinstance(self.crop, ResizeToBucket):
            return x, y, x + w, y + h, *self.crop.outputs(widths, heights)
        height, width = pair("crop", self.crop.size)
        if self.pads:
            return 0, 0, widths, heights, *resized, _within(x, resized[0], w), _within(y, resized[1], h)
        if self.resize is None:
            return x, y, x + w, y + h, width, height
        if isinstance(self.crop, _Resampled):  # of the stored image: once resampled, not twice
            across, down = widths / resized[0], heights / resized[1]
            x0, y0 = np.rint(x * across), np.rint(y * down)
            x0, y0 = np.minimum(x0, widths - 1), np.minimum(y0, heights - 1)
            x1, y1 = np.maximum(np.rint((x + w) * across), x0 + 1), np.maximum(np.rint((y + h) * down), y0 + 1)
            return x0, y0, np.minimum(x1, widths), np.minimum(y1, heights), width, height
        return 0, 0, widths, heights, *resized, x, y


@dataclass(frozen=True, slots=True)
class View:
    """Views of one name: `count` of them, or one where that is None."""

    name: str
    count: int | None
    pipeline: Pipeline

    def how(self, flips: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """`flips` with the filter that the pipeline resamples with, as the kernel has it."""
        if self.pipeline.filter == RANDOM:
            return flips
        return flips | np.uint8(1 + ALL_FILTERS.index(self.pipeline.filter) << 1)


def compile(transforms: Iterable[Transform] | Views | Pipeline | None) -> Pipeline:
    """Check the order of `transforms` (None = none) and compile it, or raise `OptionError` saying what is allowed."""
    if isinstance(transforms, Pipeline):
        return transforms
    if isinstance(transforms, Views):
        return Pipeline(views=tuple(_view(name, count, compile(own)) for name, count, own in transforms.views))  # type: ignore[arg-type]
    listed = _listed(transforms)
    for before, after in pairwise(listed):
        first, second = _STAGE[type(before)], _STAGE[type(after)]
        if second < first or (second == first and first not in _SEVERAL):
            raise OptionError(f"{after!r} cannot follow {before!r}: {_ALLOWED}")
    ops = [each for each in listed if isinstance(each, Op)]
    crop = next((each for each in listed if isinstance(each, Crop)), None)
    # the kernel mirrors what it cuts out, for nothing; beside other steps, or what lies beyond an edge, it is a step
    first = bool(ops) and isinstance(ops[0], RandomHorizontalFlip) and not Pipeline(crop=crop).pads
    flip = ops.pop(0) if first else None
    resize = next((each for each in listed if isinstance(each, Resizing)), None)
    return _checked(Pipeline(resize, crop, flip, tuple(ops)))  # type: ignore[arg-type]


def _view(name: str, count: int | None, pipeline: Pipeline) -> View:
    if pipeline.size is None or pipeline.views:
        raise OptionError(f"Views: {name} must make images of one size: give it a crop, or Resize((height, width))")
    if pipeline.mix is not None:
        raise OptionError(f"Views: {name} cannot have {pipeline.mix!r}, which mixes a batch's images and labels")
    return View(name, count, pipeline)


def moving(op: Op) -> bool:
    """Whether an operation may take pixels to other places."""
    match op:
        case RandomApply() | RandomOrder():
            return any(map(moving, op.transforms))
        case RandomChoice():
            return any(moving(one) for each in op.transforms for one in each)  # type: ignore[union-attr]
    return isinstance(op, Move | Policy)


def _within(start: NDArray[np.float64], side: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where windows begin that are moved into what there is."""
    return np.clip(start, 0, np.maximum(side - wanted, 0))


def _listed(transforms: Iterable[Transform] | None) -> list[Transform]:
    if transforms is None:
        return []
    if not isinstance(transforms, Iterable) or not getattr(transforms, "shape", True):  # an array of no dimension
        raise OptionError(
            f"transform must be a list such as T.train(224), found {shown(transforms)}{_advice(transforms)}"
        )
    listed = [_as_mix(each) for each in transforms]
    if strange := [each for each in listed if type(each) not in _STAGE]:
        raise OptionError(f"{_named(strange[0])} is no transform of iofast: {_ALLOWED}{_advice(strange[0])}")
    return listed


def _as_mix(transform: Transform) -> Transform:
    """A choice between ways of mixing is one of them."""
    if isinstance(transform, RandomChoice) and transform.mixes:
        return Mixes(tuple(each[0] for each in transform.transforms), tuple(transform.p or ()))  # type: ignore[index, misc]
    return transform


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
    if isinstance(crop, ResizeToBucket):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: {_ALLOWED}")
    if isinstance(crop, _Resampled) or pipeline.pads or not isinstance(resize, Resize):
        return pipeline
    height, width = pair("Resize", resize.size)
    high, wide = pair("crop", crop.size)
    short_only = isinstance(resize.size, int)  # then one side is as long as `size`, and the other may be longer
    if min(high, wide) > height if short_only else (high > height or wide > width):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: the crop is larger than any image that was resized so")
    return pipeline
