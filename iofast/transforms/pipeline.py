"""A list of transforms, compiled into what the kernel and `pixels` carry out: boxes, flips, filter, pixel work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.choices import Draw
from iofast.kernel.contract import ALL_FILTERS
from iofast.ops import (
    Mix,
    Move,
    Op,
    Policy,
    RandomApply,
    RandomChoice,
    RandomHorizontalFlip,
    RandomOrder,
    drawn,
)
from iofast.transforms.buckets import ResizeToBucket
from iofast.transforms.drawing import work
from iofast.transforms.geometry import (
    EDGES,
    RANDOM,
    CenterCrop,
    Column,
    Pad,
    RandomCrop,
    Resize,
    filter_of,
    pair,
)
from iofast.transforms.programs import Program, numbers, one
from iofast.transforms.resized_crops import RandomResizedCrop, ResizedCenterCrop
from iofast.transforms.resizing import RandomSize, Resizing
from iofast.transforms.views import CornerCrop
from iofast.transforms.warps import mirrored
from iofast.transforms.windows import Places, RandomIoUCrop, RandomZoomOut
from iofast.work import Step, Work, within

Crop = CenterCrop | RandomCrop | Pad | CornerCrop | RandomResizedCrop | ResizedCenterCrop | ResizeToBucket
_Padding = CenterCrop | RandomCrop | Pad | RandomZoomOut
Resampled = RandomResizedCrop | ResizedCenterCrop | ResizeToBucket
Window = RandomZoomOut | RandomIoUCrop
Transform = Window | Resizing | Crop | Op

_DRAWN = (RandomCrop, RandomResizedCrop)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled transform. Holds no state and no randomness; picklable."""

    zoom: RandomZoomOut | None = None
    part: RandomIoUCrop | None = None
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
        first = self.zoom, self.part, self.resize, self.crop, self.flip
        return [each for each in (*first, *self.ops) if each is not None]

    @property
    def each(self) -> tuple[Pipeline, ...]:
        """Itself and those of its views."""
        return self, *(view.pipeline for view in self.views)

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output; None where it depends on the image: then columns 5 and 4 of its box."""
        if isinstance(self.crop, ResizeToBucket):
            return None
        if self.crop is not None and not isinstance(self.crop, Pad):
            return pair("crop", self.crop.size)
        if not isinstance(self.resize, Resize) or isinstance(self.resize.size, int):
            return None
        height, width = pair("Resize", self.resize.size)
        left, top, right, bottom = self.crop.around if self.crop is not None else (0, 0, 0, 0)
        return top + height + bottom, left + width + right

    @property
    def pixels(self) -> int:
        """How many pixels are made of each image; 0 where that depends on the image."""
        sizes = [(view.count or 1, view.pipeline.size) for view in self.views] or [(1, self.size)]
        return sum(count * height * width for count, (height, width) in ((n, size or (0, 0)) for n, size in sizes))

    @property
    def moves(self) -> Transform | None:
        """What first takes pixels of the stored image to another place; None where all stay."""
        first = self.zoom or self.part or self.resize or self.crop or self.flip
        own = first or next((op for op in self.ops if moving(op)), None)
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
        return self._padded is not None

    @property
    def _padded(self) -> _Padding | None:
        """What says how an image goes on beyond its edges."""
        crops = isinstance(self.crop, RandomCrop | CenterCrop | Pad) and self.crop.pads
        return self.crop if crops else self.zoom  # type: ignore[return-value]

    @property
    def filter(self) -> str:
        """The kernel's resampling filter; "random" where each image has its own."""
        resampling = self.crop if isinstance(self.crop, Resampled) else self.resize
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
        drawn = drawn or isinstance(self.resize, RandomSize) or self.zoom is not None or self.part is not None
        return self.flip is None and not drawn

    def plan(
        self, draw: Draw, widths: ArrayLike, heights: ArrayLike, places: Sequence[Places] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes (int32, (N, 8)) and flips (uint8, (N,), 1 = mirror) for N images of upright `widths` x `heights`.

        `places` are the boxes that `RandomIoUCrop` goes by, of each image; without them it leaves images whole.

        With random interpolation the filter's number stands in the higher bits of a flip, as the kernel has it.

        Columns of a box: region x0, y0, x1, y1 in source pixels; width and height to which the region is resampled
        (without `size` also the output's); x, y of the output window in that. An image smaller than the crop gets a
        region or window that lies outside it, one of unknown size (0) a box of zeros: the kernel answers `Status.BOX`.
        A pipeline that `pads` has windows that lie outside on purpose: what is out there is a step of `work`.
        256 rows of `train()` take 130 us.
        """
        w, h = np.asarray(widths, np.float64), np.asarray(heights, np.float64)
        unknown = (w < 1) | (h < 1)
        boxes = np.zeros((len(draw), 8), np.int32)
        w, h = np.maximum(w, 1), np.maximum(h, 1)
        framed = self.zoom is not None or self.part is not None
        columns = self._framed(draw, w, h, places) if framed else self._columns(draw, w, h)
        for column, values in enumerate(columns):
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

    def work(self, draw: Draw, widths: ArrayLike, heights: ArrayLike, boxes: NDArray[np.int32] | None = None) -> Work:
        """What is done to each of N images of `widths` x `heights` pixels that were cut out as `plan` says; see `Work`.

        `boxes` are those that it made; a pipeline that `pads` has to know them.
        """
        first = [] if boxes is None or self._padded is None else [self._padding(self._padded, boxes)]
        return work(self.ops, draw, np.asarray(widths, np.float64), np.asarray(heights, np.float64), first)

    def _padding(self, padded: _Padding, boxes: NDArray[np.int32]) -> Program:
        """The step that puts what the kernel could cut out of images to where it belongs, and goes on beyond them."""
        height, width = cast(tuple[int, int], self.size)
        beyond = (boxes - within(boxes, (height, width)))[:, 6:].T
        wide, high = np.clip(boxes[:, 4], 1, width), np.clip(boxes[:, 5], 1, height)
        mode = "constant" if isinstance(padded, RandomZoomOut) else padded.padding_mode
        fills = [255 * level for level in cast(tuple[float, ...], padded.fill)]
        own = numbers(*beyond, wide, high, EDGES[mode], *fills)  # type: ignore[arg-type]  # one for all images
        return one(Step.PAD, np.ones(len(boxes), np.bool_), own)

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
        if self.pads or isinstance(self.crop, Pad):
            return 0, 0, widths, heights, *resized, x, y
        height, width = pair("crop", self.crop.size)
        if self.resize is None:
            return x, y, x + w, y + h, width, height
        if isinstance(self.crop, Resampled):  # of the stored image: once resampled, not twice
            across, down = widths / resized[0], heights / resized[1]
            x0, y0 = np.rint(x * across), np.rint(y * down)
            x0, y0 = np.minimum(x0, widths - 1), np.minimum(y0, heights - 1)
            x1, y1 = np.maximum(np.rint((x + w) * across), x0 + 1), np.maximum(np.rint((y + h) * down), y0 + 1)
            return x0, y0, np.minimum(x1, widths), np.minimum(y1, heights), width, height
        return 0, 0, widths, heights, *resized, x, y

    def _framed(
        self, draw: Draw, widths: Column, heights: Column, places: Sequence[Places] | None
    ) -> tuple[Column, ...]:
        """The window that is taken before the resize: of what there is of it the share of the output that it fills."""
        x, y, w, h = np.zeros_like(widths), np.zeros_like(heights), widths, heights
        if self.zoom is not None:
            x, y, w, h = self.zoom.windows(draw, w, h)
        if self.part is not None and places is not None:
            shown = [own - (left, top) * 2 for own, left, top in zip(places, x.tolist(), y.tolist(), strict=True)]
            left, top, w, h = self.part.windows(draw, w, h, shown)
            x, y = x + left, y + top
        made = self._resized(draw, w, h)
        sides = _share(x, w, widths, made[0]), _share(y, h, heights, made[1])
        (x0, x1, wide, left), (y0, y1, high, top) = sides
        return x0, y0, x1, y1, wide, high, -left, -top


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


def moving(op: Op) -> bool:
    """Whether an operation may take pixels to other places."""
    match op:
        case RandomApply() | RandomOrder():
            return any(map(moving, op.transforms))
        case RandomChoice():
            return any(moving(one) for each in op.transforms for one in each)  # type: ignore[union-attr]
    return isinstance(op, Move | Policy)


def _share(start: Column, length: Column, side: Column, outputs: Column) -> tuple[Column, Column, Column, Column]:
    """Of a window on an axis of an image with `side` pixels: from where to where there is something of the image, and
    how many of the `outputs` that is made into, from which one on."""
    low, high = np.maximum(start, 0), np.minimum(start + length, side)
    scale = outputs / length
    made = np.clip(np.rint((high - low) * scale), 1, outputs)
    return low, high, made, np.clip(np.rint((low - start) * scale), 0, outputs - made)
