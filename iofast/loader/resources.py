"""Threads and depth, memory, the path to the device and readahead of a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from iofast.batch_memory import BatchMemory
from iofast.containers.base import Located
from iofast.containers.joined import JoinedReader
from iofast.loader.decoding import Decoding, decodes_most, spread
from iofast.loader.epochs import EpochOrder
from iofast.loader.spec import BatchSpec
from iofast.machine import cores_of_rank, free_memory, local_ranks
from iofast.meter import LoaderInfo, StageCounter
from iofast.prefetch import Limits, Readahead, StoredReadahead, most_depth
from iofast.prefetch.stored_readahead import spaced
from iofast.record import RAW_FIELDS
from iofast.source.folder import FolderReader

if TYPE_CHECKING:
    from iofast.gpu import Direct, Transfer

SLICE = 32  # rows in a slice: 10 ms of work, and half of the descriptors that a folder reader may hold
ROUNDS = 4  # slices per thread in the batches in the making, if slices are longer than that
PLANNED = 1024  # rows whose places and boxes are computed together: a third of the time of 64 at a time
TRIED = 16  # images that tell whether a device can decode them
MOST_TOGETHER = 16  # batches
AUTO_DEPTH = 8  # most batches ahead if "auto" finds the depth: more only hide a loader that is too slow
FIXED_DEPTH = 3  # if `num_workers` is a number


class Resources:
    """The resources of a loader, shared by all of its epochs.

    transfer  how batches get to the device; None for the CPU
    decoding  where JPEGs are decoded
    limits    most threads and batches ahead; `slice` is the number of rows in a slice
    together  how many batches are planned together; 1 for object stores, where finding a place may cost a request
    compared  bool (samples,): images of raw pixels whose checksum was compared; None if there are none to compare, or
              they are in an object store and may be fetched again
    memory    uint8 pixels; `float_memory`: finished pixels, apart because blocks of two sizes displace each other
    """

    def __init__(self, spec: BatchSpec, counter: StageCounter) -> None:
        options = spec.options
        self.decoding = Decoding(options.decode, spec.device, decode_obstacles(spec))
        self.transfer: Transfer | Direct | None = None
        if spec.device.type != "cpu":
            from iofast.gpu import transfer_to

            self.transfer = transfer_to(spec.device, counter)
        self.limits, self.slice = self._limits(spec)
        reader = spec.dataset.reader
        self.together = 1 if reader.is_stored else max(1, min(MOST_TOGETHER, PLANNED // options.batch_size))
        raw = options.check is not None and set(RAW_FIELDS) & set(reader.manifest.fields)
        self.compared = np.zeros(len(spec.dataset), np.bool_) if raw and not reader.is_stored else None
        spare = self.limits.max_depth + 2
        self.pinned = spec.device.type == "cuda"
        self.memory = BatchMemory(pinned=self.pinned, spare=spare)
        self.float_memory = BatchMemory(pinned=self.pinned, spare=spare)

    @property
    def streams(self) -> Transfer | None:
        """`transfer`, if the device has streams, so that batches are finished there ahead of the consumer."""
        if self.transfer is None:
            return None
        from iofast.gpu import Transfer

        return self.transfer if isinstance(self.transfer, Transfer) else None

    def begin_transfer(self) -> None:
        """Let the device's stream follow that of the consumer. Raises `StateError` during a capture."""
        if self.transfer is not None:
            self.transfer.check()
            self.transfer.begin()

    def described(self, spec: BatchSpec, epochs: EpochOrder) -> LoaderInfo:
        """The loader, as the monitor shows it."""
        return LoaderInfo(
            name="FastLoader",
            kind="FastLoader",
            num_workers=self.limits.max_workers,
            prefetch=self.limits.max_depth,
            batch_size=spec.options.batch_size,
            device=str(spec.options.device),
            rank=epochs.rank,
            world_size=epochs.world_size,
        )

    def _limits(self, spec: BatchSpec) -> tuple[Limits, int]:
        options, size = spec.options, spec.pipeline.size or (512, 512)
        workers = options.num_workers
        if workers == "auto":
            workers = cores_of_rank()
        depth = options.prefetch
        if depth == "auto":
            wanted = AUTO_DEPTH if options.num_workers == "auto" else FIXED_DEPTH
            pixels_of_sample = spec.pipeline.pixels or size[0] * size[1]
            batch_bytes = 3 * pixels_of_sample * options.batch_size * spec.dtype.itemsize
            depth = most_depth(batch_bytes, wanted, free_memory() // local_ranks())
        depth = depth if workers else 1
        # with cache="device" nothing is decoded, so a batch is one slice
        step = options.batch_size if options.cache else self._rows_of_slice(spec, workers, depth)
        return Limits(workers, depth, -(-options.batch_size // step), fixed=options.num_workers != "auto"), step

    def _rows_of_slice(self, spec: BatchSpec, workers: int, depth: int) -> int:
        """`SLICE`, or more if that leaves enough slices for all threads: twice as many save 5 % of the time for raw
        pixels. If the device decodes, Python takes a third of a slice's time, and eight times as many are allowed."""
        reader = spec.dataset.reader
        parts = reader.parts if isinstance(reader, JoinedReader) else (reader,)
        if any(isinstance(part, FolderReader) for part in parts):
            return SLICE
        most, rounds = (8 * SLICE, 1) if self.decoding.tables else (2 * SLICE, ROUNDS)
        return max(SLICE, min(most, spec.options.batch_size * depth // (rounds * max(1, workers))))


def readahead(
    spec: BatchSpec, epochs: EpochOrder, resources: Resources, epoch: int, start: int
) -> Readahead | StoredReadahead | None:
    """Advice to the operating system on the batches of an epoch, in order; None if `readahead` is off.

    In an object store, the batches from `start` on are brought.
    """
    reader, dataset, wanted = spec.dataset.reader, spec.dataset, spec.options.readahead
    if wanted is False or spec.options.cache:
        return None
    fields = [*([None] if spec.with_images else []), *spec.stored]
    if fields and reader.is_stored:

        def of_machine(batch: int, few: bool) -> tuple[int, list[Located]]:
            mine, others = map(spaced, epochs.of_machine(batch)) if few else epochs.of_machine(batch)
            indices = dataset.resolve(epochs.indices(epoch, np.concatenate((mine, others))))
            return len(mine), [reader.places(indices, field) for field in fields]

        return StoredReadahead(reader, of_machine, range(start, epochs.schedule.count), resources.limits.max_depth)
    if wanted == "auto" and (isinstance(reader, FolderReader) or not resources.limits.max_workers):
        return None  # with num_workers=0 there is no thread at all

    def located(batch: int) -> list[Located]:
        indices = dataset.resolve(epochs.indices(epoch, epochs.schedule.positions(batch)[0]))
        return [reader.places(indices, field) for field in fields]

    return Readahead(reader, located, epochs.schedule.count) if fields else None


def decode_obstacles(spec: BatchSpec) -> Iterator[str]:
    """Why batches cannot be decoded on any device, the most important reason first."""
    options, reader = spec.options, spec.dataset.reader
    if options.cache is not None:
        yield f"cache={options.cache!r} chooses it, when it fills the device's memory"
    if not spec.with_images:
        yield "the dataset's fields have no image"
    if options.map_sample is not None or "image" in spec.collates:
        yield "map_sample and collate['image'] need images on the CPU"
    if spec.pipeline.views:
        yield "several views of an image are cut on the CPU"
    if spec.pipeline.size is None:
        yield "it needs a transform that makes all images one size, such as T.RandomResizedCrop(224)"
    if spec.pipeline.filter != "bilinear":
        yield f"a device resamples bilinearly, found interpolation={spec.pipeline.filter!r}"
    if options.decode != "auto":
        return
    # otherwise the CPU would decode them one by one: a fifth of its usual rate
    if not decodes_most(reader, spec.dataset.locate(spread(len(spec.dataset), TRIED))):
        yield "a device decodes JPEGs with restart markers, which `iofast pack` makes, and most images are none"
