"""Pipeline: a compiled list of transforms. It plans boxes, flips and pixel work for the kernel and `pixels`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.boxes import COLUMNS, CORNER, HEIGHT, WIDTH, within
from iofast.choices import Draw
from iofast.kernel.contract import ALIASED, ALL_FILTERS
from iofast.transforms.arguments import EDGES, RANDOM, Pair
from iofast.transforms.crops import Padding
from iofast.transforms.erasing import Erased, RandomErasing
from iofast.transforms.mixing import Mix
from iofast.transforms.moving import RandomHorizontalFlip
from iofast.transforms.normalize import Normalize
from iofast.transforms.resized_crops import ResamplingCrop
from iofast.transforms.transform import (
    Column,
    Crop,
    DrawnImages,
    ImageOp,
    Op,
    Program,
    Resampling,
    Resizing,
    Transform,
    in_a_row,
    numbers,
    one_step,
)
from iofast.work import Step, Work, no_work


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled transform. Holds no state and no randomness; picklable."""

    resize: Resizing | None = None
    crop: Crop | None = None
    flip: RandomHorizontalFlip | None = None
    ops: tuple[Op, ...] = ()
    views: tuple[View, ...] = ()
    flips_first: bool = False  # the first of `ops` is a flip that comes before the crop

    @property
    def transforms(self) -> list[Transform]:
        """The compiled transforms; with several views those of all views."""
        if self.views:
            return [each for view in self.views for each in view.pipeline.transforms]
        before, after = self.ops[: self.flips_first], self.ops[self.flips_first :]
        listed = self.resize, *before, self.crop, self.flip, *after
        return [each for each in listed if each is not None]

    @property
    def each(self) -> tuple[Pipeline, ...]:
        """This pipeline and those of its views."""
        return self, *(view.pipeline for view in self.views)

    @property
    def size(self) -> Pair | None:
        """(height, width) of every output; None if it depends on the image: then HEIGHT and WIDTH of its box are it."""
        resized = None if self.resize is None else self.resize.fixed
        return resized if self.crop is None else self.crop.fixed(resized)

    @property
    def pixels(self) -> int:
        """Pixels of an image's output, of all views together; 0 if that depends on the image."""
        sizes = [(view.count or 1, view.pipeline.size) for view in self.views] or [(1, self.size)]
        return sum(count * math.prod(size or (0,)) for count, size in sizes)

    @property
    def moves(self) -> Transform | None:
        """The first transform that moves pixels of the stored image, if any."""
        first = self.resize or self.crop or self.flip or next((op for op in self.ops if _moves(op)), None)
        return first or next((view.pipeline.moves for view in self.views), None)

    @property
    def warps(self) -> bool:
        """Whether steps of `work` move pixels after the crop and its flip."""
        return self.pads or any(map(_moves, self.ops))

    @property
    def finishes(self) -> bool:
        """Whether anything is done to images after the crop."""
        return bool(self.ops) or self.pads

    @property
    def pads(self) -> bool:
        """Whether a crop may reach beyond its image."""
        return self._padded is not None

    @property
    def _padded(self) -> Padding | None:
        """The transform that defines how an image continues beyond its edges."""
        return self.crop if isinstance(self.crop, Padding) and self.crop.pads else None

    @property
    def filter(self) -> str:
        """The kernel's resampling filter; "random" if each image has its own."""
        resampling = self.crop if isinstance(self.crop, Resampling) else self.resize
        if resampling is None:
            return "bilinear"
        aliased = resampling.interpolation == "bilinear" and not resampling.antialias
        return ALIASED if aliased else resampling.interpolation

    @property
    def mix(self) -> Mix | None:
        """The operation that mixes images and labels, if any."""
        return self.ops[-1] if self.ops and isinstance(self.ops[-1], Mix) else None

    @property
    def drawn(self) -> bool:
        """Whether the images of a batch get different pixel operations, so that the batch needs `work`."""
        return self.pads or any(not isinstance(op, Normalize) for op in self.ops)

    @property
    def evaluation(self) -> bool:
        """Whether geometry is not random: then decoding stays exact even with `pixels="fast"`."""
        return self.flip is None and not any(each.random for each in (self.resize, self.crop) if each is not None)

    def plan(self, draw: Draw, widths: ArrayLike, heights: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes (int32, (N, 8)) and flips (uint8, (N,), 1 = mirror) for N images of upright `widths` x `heights`.

        With random interpolation the higher bits of a flip hold the filter's number, as the kernel expects.

        Columns of a box: region x0, y0, x1, y1 in source pixels; width and height of the resampled region (without
        `size` also of the output); x, y of the output window in that. If an image is smaller than the crop, its region
        or window lies outside of it; if its size is unknown (0), the box is all zeros. The kernel rejects both with
        `Status.BOX`. A pipeline that `pads` has windows outside on purpose; a step of `work` fills them. 256 rows of
        `train()` take 130 us.
        """
        w, h = np.asarray(widths, np.float64), np.asarray(heights, np.float64)
        unknown = (w < 1) | (h < 1)
        boxes = np.zeros((len(draw), COLUMNS), np.int32)
        w, h = np.maximum(w, 1), np.maximum(h, 1)
        for column, values in enumerate(self._columns(draw, w, h)):
            boxes[:, column] = values
        boxes[unknown] = 0
        flips = np.zeros(len(draw), np.uint8) if self.flip is None else self.flip.mirrored(draw, "flip").view(np.uint8)
        if self.filter == RANDOM:
            bicubic = draw.uniform("interpolation")[:, 0] < 0.5
            flips |= (1 + np.where(bicubic, *map(ALL_FILTERS.index, ("bicubic", "bilinear"))) << 1).astype(np.uint8)
        return boxes, flips

    def work(self, draw: Draw, widths: ArrayLike, heights: ArrayLike, boxes: NDArray[np.int32] | None = None) -> Work:
        """The pixel work of N images of `widths` x `heights` pixels after the crop.

        `boxes` are those of `plan`; a pipeline that `pads` needs them. Mixing has shares and patches, but no partners:
        those depend on the batch.
        """
        images = DrawnImages(draw, np.asarray(widths, np.float64), np.asarray(heights, np.float64))
        steps = [] if boxes is None or self._padded is None else [self._padding(self._padded, boxes)]
        erased: list[Erased] = []
        drawn, seen = no_work(len(draw)), Counter[str]()
        for number, op in enumerate(self.ops):
            match op:
                case ImageOp():
                    steps.append(op.draw(images, _numbered(op.drawn_as, seen)))
                case RandomErasing():
                    erased.append(op.draw(images, _numbered("erasing", seen), self.ops[number + 1 :]))
                case Mix():
                    drawn = op.draw(images, drawn)
        if steps:
            codes, of_codes = in_a_row(steps, len(draw))
            drawn = replace(drawn, steps=codes, numbers=of_codes)
        if erased:
            rectangles, fills, noises = (np.concatenate(each, axis=1) for each in zip(*erased, strict=True))
            drawn = replace(drawn, erased=rectangles, fills=fills, noise=noises)
        return drawn

    def _padding(self, padded: Padding, boxes: NDArray[np.int32]) -> Program:
        """The step that moves the kernel's part of a window to its place, and fills the window beyond the image."""
        height, width = cast(Pair, self.size)
        beyond = (boxes - within(boxes, (height, width)))[:, CORNER].T
        wide, high = np.clip(boxes[:, WIDTH], 1, width), np.clip(boxes[:, HEIGHT], 1, height)
        fills = [255 * level for level in cast(tuple[float, ...], padded.fill)]
        of_step = numbers(*beyond, wide, high, EDGES[padded.padding_mode], *fills)  # type: ignore[arg-type]  # one for all images
        return one_step(Step.PAD, np.ones(len(boxes), np.bool_), of_step)

    def _resized(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column, Column]:
        return (widths, heights) if self.resize is None else self.resize.sizes(draw, widths, heights)

    def _columns(self, draw: Draw, widths: Column, heights: Column) -> tuple[Column | int, ...]:
        resized = self._resized(draw, widths, heights)
        if self.crop is None:
            return 0, 0, widths, heights, *resized
        x, y, w, h = self.crop.boxes(draw, *resized)
        if self.flips_first:
            first = cast(RandomHorizontalFlip, self.ops[0])
            done = first.mirrored(draw, first.drawn_as)
            x = np.where(done, resized[0] - w - x, x)
        if not isinstance(self.crop, ResamplingCrop):
            if self.pads or self.resize is not None:
                return 0, 0, widths, heights, *resized, x, y
            return x, y, x + w, y + h, w, h
        outputs = self.crop.outputs(*resized)
        if self.resize is None:
            return x, y, x + w, y + h, *outputs
        # the same part of the stored image: resampled once, not twice
        across, down = widths / resized[0], heights / resized[1]
        x0, y0 = np.rint(x * across), np.rint(y * down)
        x0, y0 = np.minimum(x0, widths - 1), np.minimum(y0, heights - 1)
        x1, y1 = np.maximum(np.rint((x + w) * across), x0 + 1), np.maximum(np.rint((y + h) * down), y0 + 1)
        return x0, y0, np.minimum(x1, widths), np.minimum(y1, heights), *outputs


@dataclass(frozen=True, slots=True)
class View:
    """Views of one name: `count` of them, or one if that is None."""

    name: str
    count: int | None
    pipeline: Pipeline

    def with_filter(self, flips: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """`flips` with the pipeline's filter in the higher bits, as the kernel expects."""
        if self.pipeline.filter == RANDOM:
            return flips
        return flips | np.uint8(1 + ALL_FILTERS.index(self.pipeline.filter) << 1)


def _moves(op: Op) -> bool:
    """Whether an operation may move pixels."""
    return isinstance(op, ImageOp) and op.moves


def _numbered(name: str, seen: Counter[str]) -> str:
    """A name of its own for each operation that draws under `name`."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name} {seen[name]}"
