"""Puts a dataset into device memory, for `cache="device"`: its JPEGs if the device can decode them, or its pixels."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.bars import open_bar
from iofast.batch_memory import BatchMemory
from iofast.boxes import SIZE, whole
from iofast.containers.base import Located
from iofast.containers.changed import Rows, decode_again, refresh
from iofast.errors import OptionError
from iofast.kernel.contract import Payloads
from iofast.loader.decoding import Tables, decodes_most, spread
from iofast.loader.delivery import AHEAD
from iofast.loader.finishing import Storage, made_there
from iofast.loader.loader_stats import Contexts, Tally
from iofast.loader.resident import Resident
from iofast.loader.resources import Resources
from iofast.loader.spec import BatchSpec
from iofast.machine import free_memory, local_ranks
from iofast.meter import Stages
from iofast.prefetch import Prefetch, PrefetchJob

if TYPE_CHECKING:
    from iofast.gpu import Bus, Transfer

PART = 32 << 20  # bytes per copy to the device: page-locked memory is allocated in powers of two
ROWS = 32  # images in a slice
DEPTH = 3  # parts in the making: while one is copied, threads work on the next
DELAY_S = 2.0  # until a progress bar is shown
TRIED = 64  # images whose bytes tell whether JPEGs are kept
GAIN = 4  # JPEGs are kept if pixels would take so many times their memory: to cut from pixels is less work
_REDUCED = 6  # the sides of images that are decoded to find damage
_MOST_CHECKED = 1 << 24  # pixels of them at a time
_PER_PIXEL = 9  # bytes: coefficients and samples of 4:2:0, and RGBX
_BEHIND = 2048  # bytes that damaged JPEGs may read


class _Part(PrefetchJob["_Part", range]):
    """Some samples in memory of the host: their pixels, or records."""

    def __init__(
        self, spec: BatchSpec, contexts: Contexts, memory: BatchMemory, resident: Resident, samples: range
    ) -> None:
        self._spec, self._contexts, self._memory, self.samples = spec, contexts, memory, samples
        self._resident = resident
        rows = slice(samples.start, samples.stop)
        self._located, self._sizes = resident.located.rows(rows), resident.sizes[rows]
        self._offsets = resident.offsets[samples.start : samples.stop + 1] - resident.offsets[samples.start]

    def prepare(self) -> list[range]:
        self.bytes = self._memory.take((int(self._offsets[-1]),))
        rows = len(self.samples)
        return [range(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]

    def run(self, part: range) -> None:
        with self._contexts.one() as context:
            self._make(context, part)

    def _make(self, context: kernel.Context, part: range) -> None:
        rows = slice(part.start, part.stop)
        located, stages = self._located, self._contexts.stages
        begun, read = monotonic_ns(), -context.read_ns
        with self._spec.dataset.reader.payloads(located, part.start, part.stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            source = payloads.checked(self._spec.options.check is not None)
            status = np.zeros(len(part), np.int32)
            if self._resident.tables is not None:
                self._keep(context, source, part, self._resident.tables)
            else:
                decode, wanted = partial(self._decode, context), np.arange(part.start, part.stop)
                status = decode(source, wanted)
                again = Rows(self._spec.dataset.reader, located, wanted, source)
                decode_again(again, status, decode, lambda rows: rows < 0)  # there is no room for changed images
            for row in np.flatnonzero(status).tolist():
                self._resident.failed[self.samples[part.start + row]] = kernel.failure(int(status[row]), source, row)
        read += context.read_ns
        stages.read.add(len(part), work_ns=read, nbytes=int(located.length[rows].sum()))
        failed = int(np.count_nonzero(status))
        stages.decode.add(len(part), work_ns=monotonic_ns() - begun - read, failed=failed)

    def _keep(self, context: kernel.Context, source: Payloads, part: range, tables: Tables) -> None:
        """Make the records of a slice's JPEGs. Rows without a record are decoded by the CPU, for each batch."""
        from iofast.gpu import jpegs

        assert self._resident.files is not None
        first, status = self.samples.start, np.zeros(len(part), np.int32)
        places = self._offsets[part.start : part.stop + 1]
        files = self._resident.files[first + part.start : first + part.stop]
        jpegs.read(context, source, jpegs.Records(self.bytes.numpy(), places, tables.array, files, status))
        files["place"] += np.where(status == 0, self._resident.offsets[first], 0).astype(np.uint64)

    def _decode(self, context: kernel.Context, source: Payloads, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """Decode whole images and return their status."""
        boxes, outs = whole(self._located.width[rows], self._located.height[rows]), []
        for row in rows.tolist():
            start, stop = self._offsets[row : row + 2].tolist()
            outs.append(self.bytes[start:stop].view(*self._sizes[row].tolist(), 3).numpy())
        status = np.zeros(len(rows), np.int32)
        kernel.decode_each(context, source, boxes, np.zeros(len(rows), np.uint8), outs, status)
        return status

    def finish(self) -> _Part:
        return self


def fill(spec: BatchSpec, resources: Resources, stages: Stages, tally: Tally) -> Resident:
    """Put every image of a dataset into device memory, with a progress bar after `DELAY_S`.

    Raises `OptionError` if the memory is too small.
    """
    count, streams = len(spec.dataset), resources.streams if spec.finishes_there else None
    located = spec.dataset.locate(np.arange(count))
    refresh(spec.dataset.reader, located)
    jpegs = streams is not None and _keeps_jpegs(spec, located)
    resident = Resident.of(located, on_gpu=streams is not None, jpegs=jpegs)
    needed = int(resident.offsets[-1]) + _BEHIND
    resident.data = data = _allocated(spec, streams, needed, _working_bytes(spec, resident))
    with ExitStack() as ends:
        bar = open_bar(count, " images", "reading into device memory", delay=DELAY_S)
        ends.callback(bar.close)
        contexts = Contexts(kernel.DecodeOptions(strict=spec.decode.strict), stages)
        tally.begin(contexts)
        ends.callback(contexts.end)
        memory, ranges = BatchMemory(pinned=resources.pinned, spare=DEPTH), _parts(resident.offsets)
        parts = Prefetch(
            lambda number: _Part(spec, contexts, memory, resident, ranges[number]),
            len(ranges),
            num_workers=resources.limits.max_workers,
            depth=DEPTH,
        )
        ends.callback(parts.close)
        contexts.made_by(parts)
        for part in parts:
            _put(streams, data, int(resident.offsets[part.samples[0]]), part.bytes)
            bar.update(len(part.samples))
            del part  # the next one needs its memory
    if streams is not None and jpegs:
        _leave_damaged(streams, resident)
    resources.decoding.description = "on the device, which has the JPEGs" if jpegs else "on the CPU, once"
    return resident


def _parts(offsets: NDArray[np.int64]) -> list[range]:
    """Samples with no more than `PART` bytes together, or a single one that is larger."""
    found, start = list[range](), 0
    while start < len(offsets) - 1:
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + PART, "right")) - 1)
        found.append(range(start, stop))
        start = stop
    return found


def _keeps_jpegs(spec: BatchSpec, located: Located) -> bool:
    """Whether the device can decode the dataset's images, and saves memory by that; judged by some of them."""
    from iofast.gpu.jpegs import room

    some = located.rows(spread(len(located.length), TRIED))
    pixels = 3 * some.width.astype(np.int64) * some.height
    return decodes_most(spec.dataset.reader, some) and bool(GAIN * room(some.length)[-1] < pixels.sum())


def _leave_damaged(transfer: Transfer, resident: Resident) -> None:
    """Decode all JPEGs on the device once: those that it finds damaged are left to the CPU."""
    from iofast.gpu.structs import DAMAGED

    files, tables = resident.files, resident.tables
    assert files is not None
    assert tables is not None

    def work(bus: Bus) -> None:
        most = max(1, _MOST_CHECKED // int(resident.sizes.prod(axis=1).max()))
        for start in range(0, len(files), most):
            rows = np.arange(start, min(start + most, len(files)))
            memory = resident.data, tables.codes(bus)
            bad = _statuses(bus, resident.located.rows(rows), files[rows], memory) & DAMAGED != 0
            files[rows[bad]] = np.zeros(1, files.dtype)

    transfer.issue(work)


def _statuses(
    bus: Bus, located: Located, files: NDArray[np.void], memory: tuple[torch.Tensor, torch.Tensor]
) -> NDArray[np.int32]:
    """What the device finds when it decodes whole images."""
    from iofast.gpu import jpegs
    from iofast.gpu.images import DeviceImages
    from iofast.gpu.structs import IMAGE

    table = np.zeros(len(files), IMAGE)
    boxes = whole(located.width, located.height)
    boxes[:, SIZE] = np.maximum(-(-boxes[:, SIZE] // _REDUCED), 1)
    width, height = boxes[:, SIZE].max(axis=0).tolist()
    crops = jpegs.Crops(boxes, np.zeros(len(files), np.uint8), located.orientation)
    sizes = jpegs.place(files, crops, table, kernel.DecodeOptions(clip=True), (height, width))
    images = DeviceImages(table, sizes, (height, width), *memory)
    return made_there(bus, images, (), None, Storage(torch.uint8, torch.channels_last)).status.cpu().numpy()


def _working_bytes(spec: BatchSpec, resident: Resident) -> int:
    """Bytes to leave free: for two parts at first, and later for the batches that exist at a time and what they are
    made with."""
    options = spec.options
    height, width = spec.pipeline.size or resident.sizes.max(axis=0).tolist()
    batch = options.batch_size * 3 * height * width * spec.dtype.itemsize
    made_with = 0
    if resident.tables is not None:
        pixels = resident.sizes.prod(axis=1)
        made_with = _PER_PIXEL * max(options.batch_size * int(pixels.mean()), min(_MOST_CHECKED, int(pixels.sum())))
    return int(2 * min(PART, int(resident.offsets[-1])) + (AHEAD + 2) * batch + made_with)


def _allocated(spec: BatchSpec, streams: Transfer | None, nbytes: int, room: int) -> torch.Tensor:
    """Device memory for all pixels, with `room` bytes left; on the side stream, if there is one."""
    free = free_memory() // local_ranks() if streams is None else streams.free_bytes()
    if nbytes + room > free:
        raise _too_large(spec, nbytes, room, free)
    if streams is None:
        return torch.empty(nbytes, dtype=torch.uint8)
    try:
        return streams.issue(lambda bus: torch.empty(nbytes, dtype=torch.uint8, device=bus.device)).value
    except torch.cuda.OutOfMemoryError:  # free, but in pieces, or beyond this process's share
        raise _too_large(spec, nbytes, room, free) from None


def _too_large(spec: BatchSpec, nbytes: int, room: int, free: int) -> OptionError:
    return OptionError(
        f"cache='device' needs {_size(nbytes)} on {spec.device} for {len(spec.dataset):,} images and "
        f"{_size(room)} to work with, and {_size(free)} are free: pack smaller images (--resize), take fewer "
        "(indices=), or leave it out"
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def _put(streams: Transfer | None, data: torch.Tensor, start: int, made: torch.Tensor) -> None:
    there = data[start : start + len(made)]
    if streams is None:
        there.copy_(made)
    else:
        streams.issue(lambda bus: there.copy_(bus.copy([made])[0]))
