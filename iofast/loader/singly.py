"""Canvases whose images are made one by one: several views of each image, and gray images of 16 bits."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.choices import Draw
from iofast.kernel import Payloads
from iofast.kernel.contract import Kind, Status
from iofast.loader.canvas import Canvas, CanvasStorage
from iofast.ops import Op, affine
from iofast.transforms.pipeline import View
from iofast.work import Work, fits, no_work

_LEVELS = 257  # of 16 bits for one of 8: white is 255 and 65,535
_KEPT = 48 << 20  # bytes of a thread's scratch memory: 16 million pixels

_scratch = threading.local()  # a whole image's pixels: each thread has one at a time


class Singly(ABC):
    """A canvas whose images are made one by one, and finished in its own way."""

    def decode(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: NDArray[np.intp],
        finish: kernel.Finish | None = None,  # noqa: ARG002 (as every canvas has it)
    ) -> NDArray[np.int32]:
        """See `Canvas`."""
        status = np.zeros(len(rows), np.int32)
        for place, row in enumerate(rows.tolist()):
            one = slice(place, place + 1)
            status[place] = self.make(context, source.rows(one), boxes[one], flips[one], row)
        return status

    @abstractmethod
    def make(
        self, context: kernel.Context, source: Payloads, box: NDArray[np.int32], flip: NDArray[np.uint8], row: int
    ) -> int:
        """Make one row and return its status. The other columns have one row as well."""


class Cut(NamedTuple):
    """What one group of views takes of each of N images: `count` boxes, flips and rows of work."""

    boxes: NDArray[np.int32]  # (N, count, 8)
    flips: NDArray[np.uint8]  # (N, count)
    work: Work  # N * count rows, those of an image next to each other

    @classmethod
    def of(cls, view: View, draw: Draw, widths: NDArray[np.int32], heights: NDArray[np.int32]) -> Cut:
        """Drawn for images of these upright sizes, each view for itself."""
        size = cast(tuple[int, int], view.pipeline.size)
        n, count = len(draw), view.count or 1
        boxes, flips = np.zeros((n, count, 8), np.int32), np.zeros((n, count), np.uint8)
        works = []
        for number in range(count):
            own = replace(draw, view=f"{view.name} {number}")
            planned, flips[:, number] = view.pipeline.plan(own, widths, heights)
            if not view.pipeline.pads:  # beside a view that does, the kernel would move the window
                planned[~fits(planned, size)] = 0
            boxes[:, number] = planned
            works.append(view.pipeline.work(own, np.full(n, size[1]), np.full(n, size[0]), planned))
        return cls(boxes, flips, _beside(works))

    def put(self, rows: NDArray[np.intp], other: Cut) -> None:
        """Take others for some rows."""
        self.boxes[rows], self.flips[rows] = other.boxes, other.flips
        count = self.boxes.shape[1]
        places = (rows[:, None] * count + np.arange(count)).ravel()
        for name in ("steps", "numbers", "erased", "fills", "noise"):
            getattr(self.work, name)[places] = getattr(other.work, name)


def _beside(works: Sequence[Work]) -> Work:
    """Row i of each, one after the other."""
    names = ("steps", "numbers", "erased", "fills", "noise")
    columns = {name: np.stack([getattr(work, name) for work in works], axis=1) for name in names}
    rows = len(works[0]) * len(works)
    flat = {name: column.reshape(rows, *column.shape[2:]) for name, column in columns.items()}
    return replace(no_work(rows), **flat)


class Several(Singly):
    """Several views of each of `rows` images, finished: it is decoded once, upright and whole, and they are cut out."""

    def __init__(self, views: Sequence[View], cuts: Sequence[Cut], rows: int, stored: CanvasStorage) -> None:
        self._views, self._cuts, self._rows, self._stored = views, cuts, rows, stored
        self._blocks = self._room()
        self._outs = [pixels.rows_of(block.flatten(0, 1)).reshape(-1, rows, *_hwc(block)) for block in self._blocks]

    def _room(self) -> list[torch.Tensor]:
        """(count, N, 3, H, W) for each group, all in one block of memory."""
        memory, memory_format, dtype = self._stored
        sizes = [(view.count or 1, self._rows, *cast(tuple[int, int], view.pipeline.size)) for view in self._views]
        counts = [3 * int(np.prod(size)) for size in sizes]
        flat = torch.split(memory.take((sum(counts),), dtype), counts)
        if memory_format == torch.contiguous_format:
            return [each.view(size[0], size[1], 3, *size[2:]) for each, size in zip(flat, sizes, strict=True)]
        return [each.view(*size, 3).permute(0, 1, 4, 2, 3) for each, size in zip(flat, sizes, strict=True)]

    def make(
        self, context: kernel.Context, source: Payloads, box: NDArray[np.int32], flip: NDArray[np.uint8], row: int
    ) -> int:
        """See `Singly`; `box` is that of the whole image."""
        width, height = np.maximum(box[0, 4:6], 1).tolist()
        whole, status = _scratch_of(3 * width * height).reshape(height, width, 3), np.zeros(1, np.int32)
        kernel.decode_each(context, source, box, flip, [whole], status)
        return int(status[0]) or self._cut_out(context, whole, row)

    def _cut_out(self, context: kernel.Context, whole: NDArray[np.uint8], row: int) -> int:
        """All views of one image; the first status that is not OK."""
        for view, cut, out in zip(self._views, self._cuts, self._outs, strict=True):
            count = view.count or 1
            source, status = _in_memory(whole, count), np.zeros(count, np.int32)
            work = cut.work.rows(slice(row * count, (row + 1) * count))
            self._views_of(context, view, (source, cut.boxes[row], cut.flips[row]), work, out[:, row], status)
            if status.any():
                return int(status[np.flatnonzero(status)[0]])
        return int(Status.OK)

    def _views_of(
        self,
        context: kernel.Context,
        view: View,
        cut: tuple[Payloads, NDArray[np.int32], NDArray[np.uint8]],
        work: Work,
        out: NDArray[Any],
        status: NDArray[np.int32],
    ) -> None:
        """Views of one size, into `out` (count, height, width, 3)."""
        count, dtype, ops = len(status), self._stored.dtype, view.pipeline.ops
        flips = view.how(cut[2])
        if dtype == torch.uint8 and not view.pipeline.finishes:
            kernel.decode_batch(context, cut[0], cut[1], flips, out, status, 0, count)
            return
        if kernel.finish_batch is not None and dtype in pixels.TYPES:
            finish = pixels.finish_of(ops, work, dtype)
            kernel.decode_batch(context, cut[0], cut[1], flips, out, status, 0, count, finish=finish)
            return
        plain = np.zeros(out.shape, np.uint8)
        kernel.decode_batch(context, cut[0], cut[1], flips, plain, status, 0, count)
        made = pixels.apply(torch.from_numpy(plain).permute(0, 3, 1, 2), ops, work=work, dtype=dtype)
        out[...] = pixels.rows_of(made)

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        for own, theirs in zip(self._outs, cast(Several, other)._outs, strict=True):
            own[:, rows] = theirs[:, of]

    def images(self) -> dict[str, Any]:
        """By name a tensor (N, 3, H, W), or a list of as many as were asked for."""
        groups = zip(self._views, self._blocks, strict=True)
        return {view.name: block[0] if view.count is None else list(block) for view, block in groups}


class Deep(Singly):
    """Gray images of 16 bits, decoded by Pillow, (N, 1, height, width).

    int32 levels of 0 to 65,535, or with a float `dtype` what `ops` make of them in [0, 1].
    """

    def __init__(self, rows: int, size: tuple[int, int], dtype: torch.dtype, ops: Sequence[Op]) -> None:
        self.size = size
        self._images = torch.zeros((rows, 1, *size), dtype=torch.int32 if dtype == torch.uint8 else dtype)
        self._scale, self._bias = affine(ops)[:, 0].tolist()

    def make(
        self, context: kernel.Context, source: Payloads, box: NDArray[np.int32], flip: NDArray[np.uint8], row: int
    ) -> int:
        """See `Singly`."""
        out, status = np.zeros((1, *self.size), np.uint16), np.zeros(1, np.int32)
        kernel.decode_wide(context.options, source, box, flip, out, status)
        levels = torch.from_numpy(out.astype(np.int32))
        if self._images.dtype.is_floating_point:
            levels = levels.to(torch.float32) * (self._scale / _LEVELS) + self._bias
        self._images[row] = levels
        return int(status[0])

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        self._images[torch.from_numpy(rows)] = cast(Deep, other)._images[torch.from_numpy(of)]

    def images(self) -> torch.Tensor:
        """See `Canvas`."""
        return self._images


def _hwc(block: torch.Tensor) -> tuple[int, int, int]:
    return block.shape[3], block.shape[4], 3


def _scratch_of(size: int) -> NDArray[np.uint8]:
    """Bytes of this thread's own; for an image that is larger than most they are not kept."""
    if size > _KEPT:
        return np.empty(size, np.uint8)
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.size < size:
        memory = _scratch.memory = np.empty(size, np.uint8)
    return cast(NDArray[np.uint8], memory[:size])


def _in_memory(whole: NDArray[np.uint8], count: int) -> Payloads:
    """An upright image in memory, as the source of `count` rows."""
    height, width = whole.shape[:2]
    return Payloads(
        np.full(count, -1, np.int32),
        np.full(count, whole.ctypes.data, np.uint64),
        np.full(count, whole.size, np.uint64),
        None,
        np.ones(count, np.uint8),
        np.tile(np.array([Kind.RGB, width, height], np.int32), (count, 1)),
    )
