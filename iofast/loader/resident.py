"""`cache="device"`: a whole dataset decoded once into device memory, and the batches that are cut from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic_ns
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.bars import open_bar
from iofast.containers.base import Located
from iofast.containers.changed import fetch_damaged, refresh
from iofast.errors import OptionError
from iofast.gpu import AHEAD, Direct, Transfer
from iofast.gpu.batch_memory import BatchMemory
from iofast.loader.loader_stats import Contexts, Epoch, Tally
from iofast.loader.resources import Resources
from iofast.loader.spec import BatchSpec
from iofast.machine import free_memory, local_ranks
from iofast.meter import Stages
from iofast.prefetch import Prefetch, PrefetchJob
from iofast.work import Work, fits, within

PART = 32 << 20  # bytes of pixels per copy to the device: page-locked memory is allocated in powers of two
ROWS = 32  # images in a slice
DEPTH = 3  # parts in the making: while one is copied, threads work on the next
DELAY_S = 2.0  # until a progress bar is shown


@dataclass(frozen=True, slots=True, eq=False)
class PlannedImages:
    """The images of a batch before they are cut out of a `Resident`.

    indices  int64 (N,): samples of the dataset
    boxes    int32 (N, 8), flips uint8 (N,): from `Pipeline.plan`
    size     (height, width) of all
    """

    indices: NDArray[np.int64]
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self, rows: NDArray[np.intp]) -> PlannedImages:
        """Some of them."""
        return PlannedImages(self.indices[rows], self.boxes[rows], self.flips[rows], self.size)

    def outside(self, widths: NDArray[np.int32], heights: NDArray[np.int32], *, clip: bool) -> NDArray[np.bool_]:
        """Whether each box leaves its image of `widths` x `heights`, bool (N,); with `clip` its window may."""
        x0, y0, x1, y1 = self.boxes[:, :4].T
        inside = (x0 >= 0) & (x0 < x1) & (x1 <= widths) & (y0 >= 0) & (y0 < y1) & (y1 <= heights)
        return np.asarray(~(inside if clip else inside & fits(self.boxes, self.size)))


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Every image of a dataset of n samples, decoded, upright, uint8 RGB, in one block of memory on a device.

    data     uint8 (bytes,)
    offsets  int64 (n,): where each image begins
    sizes    int64 (n, 2): height and width
    located  the index's rows of all samples
    failed   sample -> why it could not be decoded; its pixels are zeros
    broken   bool (n,): whether a sample is in `failed`
    """

    data: torch.Tensor
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    located: Located
    failed: Mapping[int, str]
    broken: NDArray[np.bool_]

    def reasons(self, draft: PlannedImages, located: Located, *, clip: bool) -> dict[int, str]:
        """Row -> why it cannot be made, of the rows of `draft`, whose samples are `located`."""
        outside = draft.outside(located.width, located.height, clip=clip)
        bad = np.flatnonzero(self.broken[draft.indices] | outside).tolist()
        box = kernel.status_message(kernel.Status.BOX)
        return {row: self.failed.get(int(draft.indices[row]) % len(self.sizes), box) for row in bad}

    def images(self, spec: BatchSpec, draft: PlannedImages, work: Work | None) -> torch.Tensor:
        """Cut out and finish images, (N, 3, height, width), on the current stream."""
        batch = pixels.RaggedBatch(self.data, self.offsets[draft.indices], self.sizes[draft.indices])
        return pixels.augment(
            batch,
            within(draft.boxes, draft.size),
            draft.flips,
            draft.size,
            spec.pipeline.ops,
            work=work,
            dtype=spec.dtype,
            memory_format=spec.options.memory_format,
        )


class _Part(NamedTuple):
    """Decoded samples on the host."""

    samples: range
    pixels: torch.Tensor
    failed: dict[int, str]


class _Layout(NamedTuple):
    """Where the images of all samples go: `sizes` (height, width), and where each begins and ends."""

    located: Located
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]

    def parts(self) -> list[range]:
        """Samples with no more than `PART` bytes together, or a single one that is larger."""
        found, start = list[range](), 0
        while start < len(self.ends):
            stop = max(start + 1, int(np.searchsorted(self.ends, self.offsets[start] + PART, "right")))
            found.append(range(start, stop))
            start = stop
        return found


class _PartJob(PrefetchJob[_Part, range]):
    """Decode one part into memory of the host."""

    def __init__(
        self, spec: BatchSpec, contexts: Contexts, memory: BatchMemory, layout: _Layout, samples: range
    ) -> None:
        self._spec, self._contexts, self._memory, self._samples = spec, contexts, memory, samples
        rows = slice(samples.start, samples.stop)
        self._located, self._sizes = layout.located.rows(rows), layout.sizes[rows]
        self._ends = layout.ends[rows] - layout.offsets[samples.start]
        self._failed: dict[int, str] = {}

    def prepare(self) -> list[range]:
        self._pixels = self._memory.take((int(self._ends[-1]),))
        rows = len(self._ends)
        return [range(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]

    def run(self, number: int, part: range) -> None:
        rows = slice(part.start, part.stop)
        context, located, stages = self._contexts.context(number), self._located, self._contexts.stages
        boxes = np.zeros((len(part), 8), np.int32)
        boxes[:, 2] = boxes[:, 4] = located.width[rows]
        boxes[:, 3] = boxes[:, 5] = located.height[rows]
        status = np.zeros(len(boxes), np.int32)
        outs = [self._image(row) for row in part]
        begun, read = monotonic_ns(), -context.read_ns
        with self._spec.dataset.reader.payloads(located, part.start, part.stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            source = payloads.checked(self._spec.options.check is not None)
            kernel.decode_each(context, source, boxes, np.zeros(len(boxes), np.uint8), outs, status)
            for row in fetch_damaged(self._spec.dataset.reader, located, status, part.start).tolist():
                with self._spec.dataset.reader.payloads(located, part.start + row, part.start + row + 1) as again:
                    one = slice(row, row + 1)
                    kernel.decode_each(context, again, boxes[one], np.zeros(1, np.uint8), outs[one], status[one])
            for row in np.flatnonzero(status).tolist():
                self._failed[self._samples[part.start + row]] = kernel.failure(int(status[row]), source, row)
        read += context.read_ns
        stages.read.add(len(part), work_ns=read, nbytes=int(located.length[rows].sum()))
        failed = int(np.count_nonzero(status))
        stages.decode.add(len(part), work_ns=monotonic_ns() - begun - read, failed=failed)

    def finish(self) -> _Part:
        pixels = self._pixels
        del self._pixels
        return _Part(self._samples, pixels, self._failed)

    def _image(self, row: int) -> NDArray[np.uint8]:
        height, width = self._sizes[row].tolist()
        end = int(self._ends[row])
        image: NDArray[np.uint8] = self._pixels[end - 3 * height * width : end].view(height, width, 3).numpy()
        return image


def decode_all(spec: BatchSpec, resources: Resources, stages: Stages, tally: Tally) -> Resident:
    """Decode every image of a dataset into device memory, with a progress bar after `DELAY_S`.

    Raises `OptionError` if the memory is too small.
    """
    count = len(spec.dataset)
    located = spec.dataset.locate(np.arange(count))
    refresh(spec.dataset.reader, located)
    # at least one pixel: an image of unknown size fails, and the kernel reports why
    sizes = np.maximum(np.stack((located.height, located.width), axis=1), 1).astype(np.int64)
    lengths = 3 * sizes.prod(axis=1)
    layout = _Layout(located, sizes, np.cumsum(lengths) - lengths, np.cumsum(lengths))
    data = _allocated(spec, resources.transfer, int(layout.ends[-1]), _working_bytes(spec, layout))
    failed: dict[int, str] = {}
    with ExitStack() as ends:
        bar = open_bar(count, " images", "decoding into device memory", delay=DELAY_S)
        ends.callback(bar.close)
        contexts = Contexts(kernel.DecodeOptions(strict=spec.decode.strict), stages)
        epoch = Epoch(contexts)
        ends.callback(tally.end, tally.begin(epoch))
        memory, ranges = BatchMemory(pinned=resources.pinned, spare=DEPTH), layout.parts()
        parts = Prefetch(
            lambda number: _PartJob(spec, contexts, memory, layout, ranges[number]),
            len(ranges),
            num_workers=resources.limits.max_workers,
            depth=DEPTH,
        )
        ends.callback(parts.close)
        epoch.made_by(parts)
        for part in parts:
            _put(resources.transfer, data, int(layout.ends[part.samples[-1]]), part.pixels)
            failed |= part.failed
            bar.update(len(part.samples))
            del part  # the next one needs its memory
    broken = np.zeros(count, np.bool_)
    broken[list(failed)] = True
    return Resident(data, layout.offsets, sizes, located, failed, broken)


def _working_bytes(spec: BatchSpec, layout: _Layout) -> int:
    """Bytes to leave free: for two parts at first, and later for the batches that exist at a time."""
    options = spec.options
    height, width = spec.pipeline.size or layout.sizes.max(axis=0).tolist()
    batch = options.batch_size * 3 * height * width * spec.dtype.itemsize
    return int(2 * min(PART, int(layout.ends[-1])) + (AHEAD + 2) * batch)


def _allocated(spec: BatchSpec, transfer: Transfer | Direct | None, nbytes: int, room: int) -> torch.Tensor:
    """Device memory for all pixels, with `room` bytes left; on the side stream, if there is one."""
    free = free_memory() // local_ranks() if transfer is None else transfer.free_bytes()
    if free is not None and nbytes + room > free:
        raise _too_large(spec, nbytes, room, free)
    if transfer is None:
        return torch.empty(nbytes, dtype=torch.uint8)
    try:
        return transfer.issue(lambda bus: torch.empty(nbytes, dtype=torch.uint8, device=bus.device)).value
    except torch.cuda.OutOfMemoryError:  # free, but in pieces, or beyond this process's share
        raise _too_large(spec, nbytes, room, free) from None


def _too_large(spec: BatchSpec, nbytes: int, room: int, free: int | None) -> OptionError:
    count = "unknown how much is" if free is None else f"{_size(free)} are"
    return OptionError(
        f"cache='device' needs {_size(nbytes)} on {spec.device} for {len(spec.dataset):,} decoded images and "
        f"{_size(room)} to work with, and {count} free: pack smaller images (--resize), take fewer "
        "(indices=), or leave it out"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def _put(transfer: Transfer | Direct | None, data: torch.Tensor, end: int, pixels: torch.Tensor) -> None:
    there = data[end - len(pixels) : end]
    if transfer is None:
        there.copy_(pixels)
    else:
        transfer.issue(lambda bus: there.copy_(bus.copy([pixels])[0]))
