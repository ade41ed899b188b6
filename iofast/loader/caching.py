"""Decoding a whole dataset once, into the device's memory: what the first use of `cache="device"` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic_ns
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.bars import open_bar
from iofast.containers.base import Located
from iofast.containers.changed import refresh
from iofast.errors import OptionError
from iofast.gpu import AHEAD
from iofast.loader.buffers import BatchMemory
from iofast.loader.plan import LoaderPlan
from iofast.loader.prefetch import Prefetch, PrefetchJob
from iofast.loader.resident import Resident
from iofast.loader.tally import Contexts, Epoch
from iofast.machine import free_memory, local_ranks

PART = 32 << 20  # bytes of pixels that go to the device at once: page-locked memory is taken in powers of two
ROWS = 32  # images a thread decodes in one go
DEPTH = 3  # parts in the making: while one is copied, threads have the next
DELAY_S = 2.0  # a bar is shown from then on


def make_resident(plan: LoaderPlan) -> None:
    """Have `plan.resident` where it is wanted; a second consumer waits until the first has made it."""
    if plan.options.cache is None:
        return
    with plan.making:
        if plan.resident is None:
            plan.resident = _decoded(plan)


class _Part(NamedTuple):
    """Samples [start, stop), and what came of them."""

    start: int
    stop: int
    pixels: torch.Tensor
    failed: dict[int, str]


class _Layout(NamedTuple):
    """Where the images of all samples go: `sizes` (height, width), and where each begins and ends."""

    located: Located
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]

    def parts(self) -> list[tuple[int, int]]:
        """Samples [start, stop) with no more than `PART` bytes together, or one that has more."""
        found, start = list[tuple[int, int]](), 0
        while start < len(self.ends):
            stop = max(start + 1, int(np.searchsorted(self.ends, self.offsets[start] + PART, "right")))
            found.append((start, stop))
            start = stop
        return found


class _Room(NamedTuple):
    """What the threads that decode work with."""

    contexts: Contexts
    memory: BatchMemory


class _PartJob(PrefetchJob[_Part, range]):
    """One part: samples [start, stop), decoded into memory of the host."""

    def __init__(self, plan: LoaderPlan, room: _Room, layout: _Layout, start: int, stop: int) -> None:
        self._plan, self._room, self._start, self._stop = plan, room, start, stop
        self._located = layout.located.rows(slice(start, stop))
        self._sizes = layout.sizes[start:stop]
        self._ends = layout.ends[start:stop] - layout.offsets[start]
        self._failed: dict[int, str] = {}

    def prepare(self) -> list[range]:
        self._pixels = self._room.memory.take((int(self._ends[-1]),))
        rows = len(self._ends)
        return [range(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]

    def run(self, number: int, part: range) -> None:
        rows = slice(part.start, part.stop)
        context, located, stages = self._room.contexts.context(number), self._located, self._room.contexts.stages
        boxes = np.zeros((len(part), 8), np.int32)
        boxes[:, 2] = boxes[:, 4] = located.width[rows]
        boxes[:, 3] = boxes[:, 5] = located.height[rows]
        status = np.zeros(len(boxes), np.int32)
        outs = [self._image(row) for row in part]
        begun, read = monotonic_ns(), -context.read_ns
        with self._plan.dataset.reader.payloads(located, part.start, part.stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            source = payloads.checked(self._plan.options.check is not None)
            kernel.decode_each(context, source, boxes, np.zeros(len(boxes), np.uint8), outs, status)
            for row in np.flatnonzero(status).tolist():
                self._failed[self._start + part.start + row] = kernel.failure(int(status[row]), source, row)
        read += context.read_ns
        stages.read.add(len(part), work_ns=read, nbytes=int(located.length[rows].sum()))
        failed = int(np.count_nonzero(status))
        stages.decode.add(len(part), work_ns=monotonic_ns() - begun - read, failed=failed)

    def finish(self) -> _Part:
        pixels = self._pixels
        del self._pixels
        return _Part(self._start, self._stop, pixels, self._failed)

    def _image(self, row: int) -> NDArray[np.uint8]:
        height, width = self._sizes[row].tolist()
        end = int(self._ends[row])
        made: NDArray[np.uint8] = self._pixels[end - 3 * height * width : end].view(height, width, 3).numpy()
        return made


def _decoded(plan: LoaderPlan) -> Resident:
    count = len(plan.dataset)
    located = plan.dataset.locate(np.arange(count))
    refresh(plan.dataset.reader, located)
    # one pixel at least: an image of unknown size fails, and the kernel says why
    sizes = np.maximum(np.stack((located.height, located.width), axis=1), 1).astype(np.int64)
    lengths = 3 * sizes.prod(axis=1)
    layout = _Layout(located, sizes, np.cumsum(lengths) - lengths, np.cumsum(lengths))
    data = _allocated(plan, int(layout.ends[-1]), _working_bytes(plan, layout))
    failed: dict[int, str] = {}
    with ExitStack() as ends:
        bar = open_bar(count, " images", "decoding into device memory", delay=DELAY_S)
        ends.callback(bar.close)
        for part in _parts(plan, layout, ends):
            _put(plan, data, int(layout.ends[part.stop - 1]), part.pixels)
            failed |= part.failed
            bar.update(part.stop - part.start)
            del part  # its memory is wanted for the next
    broken = np.zeros(count, np.bool_)
    broken[list(failed)] = True
    return Resident(data, layout.offsets, sizes, located, failed, broken)


def _parts(plan: LoaderPlan, layout: _Layout, ends: ExitStack) -> Iterator[_Part]:
    contexts = Contexts(kernel.DecodeOptions(strict=plan.options.truncated == "strict"), plan.stages)
    room = _Room(contexts, BatchMemory(pinned=plan.pinned, spare=DEPTH))  # gone when this is done
    epoch = Epoch(contexts)
    ends.callback(plan.tally.end, plan.tally.begin(epoch))
    listed = layout.parts()
    parts = Prefetch(
        lambda number: _PartJob(plan, room, layout, *listed[number]),
        len(listed),
        num_workers=plan.limits.max_workers,
        depth=DEPTH,
    )
    ends.callback(parts.close)
    epoch.made_by(parts)
    return parts


def _working_bytes(plan: LoaderPlan, layout: _Layout) -> int:
    """Bytes that are to remain: for two parts at first, and for the batches that are there at a time later on."""
    options = plan.options
    height, width = plan.pipeline.size or layout.sizes.max(axis=0).tolist()
    batch = options.batch_size * 3 * height * width * options.dtype.itemsize
    return int(2 * min(PART, int(layout.ends[-1])) + (AHEAD + 2) * batch)


def _allocated(plan: LoaderPlan, nbytes: int, room: int) -> torch.Tensor:
    """Memory for all pixels, on the device, with `room` left; of the side stream, where there is one."""
    way = plan.way
    free = free_memory() // local_ranks() if way is None else way.free_bytes()
    if free is not None and nbytes + room > free:
        raise _too_large(plan, nbytes, room, free)
    if way is None:
        return torch.empty(nbytes, dtype=torch.uint8)
    try:
        return way.issue(lambda bus: torch.empty(nbytes, dtype=torch.uint8, device=bus.device)).value
    except torch.cuda.OutOfMemoryError:  # free, but not for a single block, or this process's share is less
        raise _too_large(plan, nbytes, room, free) from None


def _too_large(plan: LoaderPlan, nbytes: int, room: int, free: int | None) -> OptionError:
    count = "unknown how much is" if free is None else f"{_size(free)} are"
    return OptionError(
        f"cache='device' needs {_size(nbytes)} on {plan.device} for {len(plan.dataset):,} decoded images and "
        f"{_size(room)} to work with, and {count} free: pack smaller images (--resize), take fewer "
        "(indices=), or leave it out"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def _put(plan: LoaderPlan, data: torch.Tensor, end: int, pixels: torch.Tensor) -> None:
    there = data[end - len(pixels) : end]
    if plan.way is None:
        there.copy_(pixels)
    else:
        plan.way.issue(lambda bus: there.copy_(bus.copy([pixels])[0]))
