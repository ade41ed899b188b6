"""What all batches of a loader have in common: data, order, transform, memory, and who of how many this process is."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.containers.base import Located
from iofast.containers.joined import JoinedReader
from iofast.dataset import FastDataset
from iofast.errors import OptionError, StateError
from iofast.fields import PSEUDO_FIELDS, collate
from iofast.gpu import way_to
from iofast.loader.advice import spaced
from iofast.loader.auto import Limits, most_depth
from iofast.loader.buffers import BatchMemory
from iofast.loader.decoding import Decoding
from iofast.loader.failures import noted
from iofast.loader.mapping import Mapper
from iofast.loader.options import LoaderOptions
from iofast.loader.readahead import Readahead
from iofast.loader.resident import Resident
from iofast.loader.state import Identity
from iofast.loader.tally import Tally
from iofast.loader.targets import targets_of
from iofast.machine import cores_of_rank, free_memory, launcher_rank, local_ranks
from iofast.order import Order, Population, Schedule, Sequential
from iofast.source.folder import FolderReader
from iofast.stall import StallClock
from iofast.telemetry import LoaderInfo, Stages
from iofast.transforms import Pipeline
from iofast.transforms import compile as compile_transform
from iofast.transforms.compiling import in_gray
from iofast.transforms.geometry import RANDOM

SLICE = 32  # rows a thread takes at once: 10 ms of work, and half of the descriptors a folder reader may hold
ROUNDS = 4  # slices for each thread in the batches that are in the making: with so many, one may be twice as long
AUTO_DEPTH = 8  # batches ahead at most where that is found while running: more only hide a loader that is too slow
FIXED_DEPTH = 3  # where the number of workers was given

PAIR = ("image", "label")  # what a batch consists of without `fields`


class LoaderPlan:
    """What all batches of a loader have in common."""

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        self.dataset, self.options = dataset, options
        self.rank, self.world_size = rank_of(options)
        self.order, self.schedule = self._ordered()
        compiled = compile_transform(options.transform)
        self.pipeline = in_gray(compiled) if options.image_mode == "L" else compiled
        self.decode = decode_options(self.pipeline, options.pixels, strict=options.truncated == "strict")
        self.fields = PAIR if dataset.fields is None else dataset.fields
        self.stored = tuple(name for name in self.fields if name not in PSEUDO_FIELDS)  # those that are read
        self.with_images = "image" in self.fields
        self.collates = dict(options.collate or {})
        self.targets = targets_of(options.targets)
        self.mapper = None if options.map_sample is None else Mapper(options.map_sample, options.map_processes)
        self.device = torch.device(options.device)
        self.decoding = Decoding(options, self.pipeline, self.device, self.with_images)
        self.stages = Stages()
        self.way = way_to(self.device, self.stages.transfer)
        self.limits = self._limits()
        spare = self.limits.max_depth + 2
        self.pinned = self.device.type == "cuda"
        self.memory = BatchMemory(pinned=self.pinned, spare=spare)
        self.float_memory = BatchMemory(pinned=False, spare=spare)  # apart: blocks of two sizes push each other out
        self.clock = StallClock(self._described(), device=str(self.device), stages=self.stages)
        self.tally = Tally()
        self.resident: Resident | None = None  # with cache="device", from the first use on
        self.making = threading.Lock()

    @property
    def finishes(self) -> bool:
        """Whether the kernel does all there is to do in the call that decodes an image.

        It does not where something else sees the image before: a user's function, its partner, a device.
        """
        options, pipeline = self.options, self.pipeline
        alone = (
            not pipeline.views
            and self.mapper is None
            and "image" not in self.collates
            and pipeline.mix is None
            and options.cache is None
            and not self.deep
        )
        here = self.with_images and self.way is None and kernel.finish_batch is not None
        return alone and here and options.dtype in pixels.TYPES and (pipeline.finishes or options.dtype != torch.uint8)

    @property
    def deep(self) -> bool:
        """Whether images have 16 bits: then they are finished as they are decoded."""
        return self.options.image_mode == "I;16"

    @property
    def before(self) -> list[str]:
        """The fields that have to be read before it is known what is cut out of an image."""
        looks = self.pipeline.part is not None
        return [name for name, target in self.targets.items() if looks and target.kind == "boxes"]

    def _limits(self) -> Limits:
        options, size = self.options, self.pipeline.size or (512, 512)
        wanted = {"auto": AUTO_DEPTH if options.num_workers == "auto" else FIXED_DEPTH}.get(options.prefetch)  # type: ignore[arg-type]
        pixels_of_sample = self.pipeline.pixels or size[0] * size[1]
        batch_bytes = 3 * pixels_of_sample * options.batch_size * options.dtype.itemsize
        depth = options.prefetch if wanted is None else most_depth(batch_bytes, wanted, free_memory() // local_ranks())
        workers = self.decoding.workers(cores_of_rank()) if options.num_workers == "auto" else options.num_workers
        depth = depth if workers else 1
        # where nothing is decoded, a batch is not worth dividing
        self.slice = options.batch_size if options.cache else self._rows_of_slice(workers, int(depth))
        return Limits(workers, int(depth), -(-options.batch_size // self.slice))

    def _rows_of_slice(self, workers: int, depth: int) -> int:
        """Twice as many where there are enough for all threads: 5 % of the time of a thread that loads raw pixels."""
        reader = self.dataset.reader
        parts = reader.parts if isinstance(reader, JoinedReader) else (reader,)
        if any(isinstance(part, FolderReader) for part in parts):
            return SLICE
        return 2 * SLICE if self.options.batch_size * depth >= 2 * SLICE * ROUNDS * workers else SLICE

    def _described(self) -> LoaderInfo:
        options = self.options
        return LoaderInfo(
            name="FastLoader",
            kind="FastLoader",
            num_workers=self.limits.max_workers,
            prefetch=self.limits.max_depth,
            batch_size=options.batch_size,
            device=str(self.device),
            rank=self.rank,
            world_size=self.world_size,
        )

    def check_reserved(self, names: Iterable[str], where: str) -> None:
        """Raise `OptionError` where names of a batch's dictionary are those that the loader itself puts there."""
        own = {"valid"} | ({"size"} if self.options.ragged == "pad" else set())
        if self.dataset.fields is not None and (taken := sorted(own & set(names))):
            raise OptionError(f"{where} the name {taken[0]!r}, under which a batch has something of the loader's own")

    @property
    def ranks_may_part(self) -> bool:
        """Whether a rank that begins an epoch alone is out of step from then on; in sequence all epochs are alike."""
        return self.world_size > 1 and not isinstance(self.options.mode, Sequential)

    def check_ranks(self) -> None:
        """Raise `StateError` where the ranks are others than when this was made: each would load all of the data."""
        if (now := rank_of(self.options)) != (self.rank, self.world_size):
            raise StateError(
                f"this loader was made as rank {self.rank} of {self.world_size}, and this process is rank {now[0]} of "
                f"{now[1]} now: make it after torch.distributed has been initialised, or give it rank= and world_size="
            )

    @cached_property
    def identity(self) -> Identity:
        """What a state of this loader speaks of."""
        options = self.options
        global_batch = options.batch_size * self.world_size
        checksum = (lambda _: None) if self.order.sharded else self.order.checksum  # a share's is one rank's
        return Identity(options.seed, global_batch, self.order.describe(), self.dataset.fingerprint, checksum)

    def readahead(self, epoch: int) -> Readahead | None:
        """Advice on the batches of an epoch, in their order; None where it is not wanted."""
        reader, wanted = self.dataset.reader, self.options.readahead
        if wanted is False or self.options.cache:
            return None
        if wanted == "auto" and (isinstance(reader, FolderReader) or not self.limits.max_workers):
            return None  # no thread at all where none was wanted
        order, schedule, dataset = self.order, self.schedule, self.dataset
        fields = [*([None] if self.with_images else []), *self.stored]

        def located(batch: int, few: bool) -> list[Located]:
            positions = schedule.positions(batch)[0]
            indices = dataset.resolve(order.indices(epoch, spaced(positions) if few else positions))
            return [reader.locate(indices, field) for field in fields]

        return Readahead(reader, located, schedule.count) if fields else None

    def drawn_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What `positions` are to random choices. A sampler that shards by itself counts them on each rank from 0: with
        the same numbers on every rank, all would crop alike."""
        rank, ranks = self.order.sharded or (0, 1)
        return positions * ranks + rank

    def collate(self, name: str, values: list[Any], batch: str) -> Any:
        """The values of one field of a batch: by the user's function for it, or as `fields.collate` does.

        `batch` is what notes on errors call it.
        """
        if name not in self.collates:
            return collate(values)
        with noted(f"in collate[{name!r}]: {batch}"):
            return self.collates[name](values)

    def _ordered(self) -> tuple[Order, Schedule]:
        options, dataset = self.options, self.dataset
        mode = options.mode
        about = Population(len(dataset), dataset.labels, dataset.sizes, dataset.parts)
        order = mode.bind(about, options.seed, options.batch_size * self.world_size)
        ranks = self.rank, self.world_size
        if order.sharded and order.sharded != ranks:
            raise OptionError(
                f"the sampler gives the share of rank {order.sharded[0]} of {order.sharded[1]}, "
                f"and this loader is rank {self.rank} of {self.world_size}"
            )
        ranks = (0, 1) if order.sharded else ranks
        return order, Schedule(order.length, options.batch_size, *ranks, options.drop_last)


def decode_options(pipeline: Pipeline, pixels: str, *, strict: bool = True) -> kernel.DecodeOptions:
    """How the kernel decodes for `pipeline`: `pixels="fast"` never changes what an evaluation sees."""
    fast = pixels == "fast" and not pipeline.evaluation
    filter = "bilinear" if pipeline.filter == RANDOM else pipeline.filter
    clip = any(each.pads for each in pipeline.each)
    return kernel.DecodeOptions(filter=filter, fast=fast, strict=strict, clip=clip)


def rank_of(options: LoaderOptions) -> tuple[int, int]:
    """Rank and world size: as given, of torch.distributed where it runs, of the launcher's environment, or (0, 1)."""
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return launcher_rank() or (0, 1)
