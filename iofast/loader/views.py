"""The canvas of several views of each image."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.batch_memory import BatchMemory
from iofast.boxes import COLUMNS, fits, output_sizes
from iofast.choices import Draw
from iofast.kernel import Payloads
from iofast.kernel.contract import Kind, Status
from iofast.loader.canvas import Canvas, RowsToDecode, laid_out
from iofast.loader.finishing import TYPES, Storage, finish_of, rows_of
from iofast.loader.plan import SamplePlan
from iofast.transforms.pipeline import View
from iofast.work import Work, no_work

_KEPT = 48 << 20  # bytes of scratch memory that a thread keeps: 16 million pixels
_DRAWN = ("steps", "numbers", "erased", "fills", "noise")  # columns of `Work`; views are not mixed

_scratch = threading.local()  # the pixels of one whole image


class Cut(NamedTuple):
    """What one group of views takes of each of N images: `count` boxes, flips and rows of work."""

    boxes: NDArray[np.int32]  # (N, count, 8)
    flips: NDArray[np.uint8]  # (N, count)
    work: Work  # N * count rows, those of an image next to each other

    @classmethod
    def of(cls, view: View, draw: Draw, widths: NDArray[np.int32], heights: NDArray[np.int32]) -> Cut:
        """Draw each view by itself, for images of these upright sizes."""
        size = cast(tuple[int, int], view.pipeline.size)
        n, count = len(draw), view.count or 1
        boxes, flips = np.zeros((n, count, COLUMNS), np.int32), np.zeros((n, count), np.uint8)
        works = []
        for number in range(count):
            own = replace(draw, view=f"{view.name} {number}")
            planned, flips[:, number] = view.pipeline.plan(own, widths, heights)
            if not view.pipeline.pads:  # another view does, so the kernel would move this window
                planned[~fits(planned, size)] = 0
            boxes[:, number] = planned
            works.append(view.pipeline.work(own, np.full(n, size[1]), np.full(n, size[0]), planned))
        # row i of each, one after the other
        columns = {name: np.stack([getattr(work, name) for work in works], axis=1) for name in _DRAWN}
        flat = {name: column.reshape(n * count, *column.shape[2:]) for name, column in columns.items()}
        return cls(boxes, flips, replace(no_work(n * count), **flat))

    def put(self, rows: NDArray[np.intp], other: Cut) -> None:
        """Replace `rows` by those of `other`."""
        self.boxes[rows], self.flips[rows] = other.boxes, other.flips
        count = self.boxes.shape[1]
        places = (rows[:, None] * count + np.arange(count)).ravel()
        for name in _DRAWN:
            getattr(self.work, name)[places] = getattr(other.work, name)


class Several(Canvas):
    """Several finished views of each image, cut from an image that is decoded once, upright and whole."""

    def __init__(self, plan: SamplePlan, memory: BatchMemory, storage: Storage) -> None:
        super().__init__(plan)
        self._dtype = storage.dtype
        self._views = plan.parts.spec.pipeline.views
        self._cuts = self._cut(slice(None))
        # (count, N, 3, H, W) for each group, all in one block of memory
        sizes = [(view.count or 1, len(plan), *cast(tuple[int, int], view.pipeline.size)) for view in self._views]
        counts = [3 * math.prod(size) for size in sizes]
        parts = zip(torch.split(memory.take((sum(counts),), storage.dtype), counts), sizes, strict=True)
        self._blocks = [laid_out(part, size, storage.memory_format) for part, size in parts]
        self._outs = [
            rows_of(block.flatten(0, 1)).reshape(-1, len(plan), *block.shape[3:], 3) for block in self._blocks
        ]

    def _cut(self, rows: NDArray[np.intp] | slice) -> list[Cut]:
        """What each group of views takes of some rows."""
        draw, located = self.plan.draw(rows), self.plan.located
        return [Cut.of(view, draw, located.width[rows], located.height[rows]) for view in self._views]

    def renew(self, rows: NDArray[np.intp]) -> None:
        """See `Canvas`: draw their views."""
        for cut, now in zip(self._cuts, self._cut(rows), strict=True):
            cut.put(rows, now)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        status = np.zeros(len(wanted.rows), np.int32)
        for number, row in enumerate(wanted.rows.tolist()):
            one, box, flip = slice(number, number + 1), self.plan.boxes[row : row + 1], self.plan.flips[row : row + 1]
            height, width = output_sizes(box)[0].tolist()
            whole = _scratch_of(3 * width * height).reshape(height, width, 3)
            kernel.decode_each(wanted.context, wanted.source.rows(one), box, flip, [whole], status[one])
            status[number] = status[number] or self._cut_out(wanted.context, whole, row)
        return status

    def _cut_out(self, context: kernel.Context, whole: NDArray[np.uint8], row: int) -> int:
        """Make all views of one image and return the first status that is not OK."""
        height, width = whole.shape[:2]
        for view, cut, out in zip(self._views, self._cuts, self._outs, strict=True):
            count = view.count or 1
            work = cut.work.rows(slice(row * count, (row + 1) * count))
            columns = ([each] * count for each in (whole.ctypes.data, whole.size, 1, (Kind.RGB, width, height)))
            source, status = Payloads.in_memory(*columns), np.zeros(count, np.int32)
            decode = partial(kernel.decode_batch, context, source, cut.boxes[row], view.with_filter(cut.flips[row]))
            self._make_views(view, work, out[:, row], partial(decode, status=status, start=0, stop=count))
            if status.any():
                return int(status[np.flatnonzero(status)[0]])
        return int(Status.OK)

    def _make_views(self, view: View, work: Work, out: NDArray[Any], decode: Callable[..., None]) -> None:
        """Views of one size, into `out` (count, height, width, 3); `decode` takes the array to decode into."""
        if self._dtype == torch.uint8 and not view.pipeline.finishes:
            decode(out)
            return
        stored = out if self._dtype in TYPES else np.zeros(out.shape, np.float32)
        decode(stored, finish=finish_of(view.pipeline.ops, work, self._dtype))
        if stored is not out:
            out[...] = stored

    def images(self) -> dict[str, Any]:
        """Name of a group -> (N, 3, H, W), or a list of `count` of them."""
        groups = zip(self._views, self._blocks, strict=True)
        return {view.name: block[0] if view.count is None else list(block) for view, block in groups}


def _scratch_of(size: int) -> NDArray[np.uint8]:
    """`size` bytes of this thread's own; more than `_KEPT` are not kept."""
    if size > _KEPT:
        return np.empty(size, np.uint8)
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.size < size:
        memory = _scratch.memory = np.empty(size, np.uint8)
    return cast(NDArray[np.uint8], memory[:size])
