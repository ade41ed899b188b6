"""One batch, from positions to tensors: the work that a loader's threads do."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from iofast import kernel, pixels
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.dataset import FastDataset
from iofast.errors import DecodeError, OptionError
from iofast.loader.buffers import BatchMemory
from iofast.loader.options import LoaderOptions
from iofast.loader.prefetch import Job
from iofast.order import Population, Schedule, Sequential, Shuffled
from iofast.transforms import Pipeline
from iofast.transforms import compile as compile_transform

SLICE = 32  # rows a thread takes at once: 10 ms of work, and half of the descriptors a folder reader may hold


class Made(NamedTuple):
    """A finished batch; `valid` (bool, (N,)) is False where a sample only fills up."""

    images: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor


class Slice(NamedTuple):
    """Rows [start, stop) of a batch: what a thread does in one go."""

    start: int
    stop: int


class Plan:
    """What all batches of a loader have in common."""

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        if not isinstance(dataset, FastDataset):
            raise OptionError(f"FastLoader reads a FastDataset, found {type(dataset).__name__}")
        if not len(dataset):
            raise OptionError(f"there is nothing to load: {dataset!r}")
        if dataset.transform is not None or dataset.target_transform is not None:
            raise OptionError(
                "the dataset has a transform of its own, which FastLoader would not call: "
                "give FastLoader the transform, or use torch's DataLoader"
            )
        rank, world_size = rank_of(options)
        self.dataset, self.options = dataset, options
        mode = Shuffled() if options.shuffle else Sequential()
        self.order = mode.bind(Population(len(dataset)), options.seed)
        self.schedule = Schedule(len(dataset), options.batch_size, rank, world_size, options.drop_last)
        self.pipeline = compile_transform(options.transform)
        self.decode = decode_options(self.pipeline, options.pixels)
        self.device = torch.device(options.device)
        spare = options.prefetch + 2
        self.memory = BatchMemory(pinned=self.device.type == "cuda", spare=spare)
        self.tally = Tally()
        self.float_memory = BatchMemory(pinned=False, spare=spare)  # apart: blocks of two sizes push each other out


class Contexts:
    """One kernel context per thread of an epoch."""

    def __init__(self, options: kernel.DecodeOptions) -> None:
        self._options = options
        self._contexts: dict[int, kernel.Context] = {}

    def context(self, number: int) -> kernel.Context:
        if number not in self._contexts:
            self._contexts[number] = kernel.Context(self._options)
        return self._contexts[number]

    def ways(self) -> Counter[str]:
        """Images by the way they were decoded, so far."""
        return sum((Counter(context.counts().ways) for context in list(self._contexts.values())), Counter())


class Tally:
    """What all epochs of a loader have decoded: those that ended, and those that are going on.

    `end` runs in finalizers, which may come at any point of any thread, also between two lines of `ways`: it takes no
    lock and only replaces a value under a key that is there.
    """

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._epochs: dict[int, Contexts | Counter[str]] = {}  # going on, or ended and not yet added up
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def begin(self, contexts: Contexts) -> int:
        """Count an epoch in; the number is for `end`."""
        number = next(self._numbers)
        with self._lock:
            self._add_up()
            self._epochs[number] = contexts
        return number

    def end(self, number: int) -> None:
        """Once the threads that used the contexts have ended."""
        contexts = self._epochs[number]
        if isinstance(contexts, Contexts):
            self._epochs[number] = contexts.ways()

    def ways(self) -> dict[str, int]:
        with self._lock:
            self._add_up()
            total = self._ended.copy()
            for each in list(self._epochs.values()):
                total += each.ways() if isinstance(each, Contexts) else each
        return {way: total[way] for way in kernel.WAYS}

    def _add_up(self) -> None:
        for number, each in list(self._epochs.items()):
            if not isinstance(each, Contexts):
                self._ended += each
                del self._epochs[number]


class BatchJob(Job[Made, Slice]):
    """One batch, from positions to tensors."""

    def __init__(self, plan: Plan, contexts: Contexts, epoch: int, batch: int) -> None:
        self._plan, self._contexts, self._epoch, self._batch = plan, contexts, epoch, batch

    def prepare(self) -> list[Slice]:
        plan = self._plan
        positions, self._valid = plan.schedule.positions(self._batch)
        indices = plan.dataset.resolve(plan.order.indices(self._epoch, positions))
        self._located = plan.dataset.reader.locate(indices)
        draw = Draw(plan.options.seed, self._epoch, positions)
        self._boxes, self._flips = plan.pipeline.plan(draw, self._located.width, self._located.height)
        self._status = np.zeros(len(positions), np.int32)
        rows = len(positions)
        self._images = self._empty(plan.memory, (rows, 3, *self._size()), torch.uint8)
        self._out = self._images.permute(0, 2, 3, 1).numpy()
        return [Slice(start, min(start + SLICE, rows)) for start in range(0, rows, SLICE)]

    def run(self, number: int, part: Slice) -> None:
        start, stop = part
        context = self._contexts.context(number)
        out, status = self._out[start:stop], self._status[start:stop]
        boxes, flips = self._boxes[start:stop], self._flips[start:stop]
        with self._plan.dataset.reader.payloads(self._located, start, stop) as payloads:
            source = payloads if self._plan.options.check else payloads._replace(crcs=None)
            kernel.decode_batch(context, source, boxes, flips, out, status, 0, stop - start)

    def finish(self) -> Made:
        failed = np.flatnonzero(self._status)
        if len(failed):
            self._raise(self._located, int(failed[0]), len(failed))
        plan, options = self._plan, self._plan.options
        images = self._images
        del self._images, self._out  # the batch may wait for long, and its bytes are wanted for the next
        if plan.device.type == "cpu" and options.dtype != torch.uint8:
            out = self._empty(plan.float_memory, tuple(images.shape), options.dtype)
            format = options.memory_format
            images = pixels.apply(images, plan.pipeline.ops, dtype=options.dtype, memory_format=format, out=out)
        labels = torch.from_numpy(self._located.label.astype(np.int64))
        if plan.device.type == "cuda":
            labels = labels.pin_memory()
        return Made(images, labels, torch.from_numpy(self._valid))

    def _size(self) -> tuple[int, int]:
        size = self._plan.pipeline.size
        if size is not None:
            return size
        known = self._boxes[:, 4] > 0  # the others' headers could not be read: the kernel will say what is wrong
        sizes = np.unique(self._boxes[known, 5:3:-1], axis=0)
        if len(sizes) > 1:
            (h0, w0), (h1, w1) = sizes[0], sizes[-1]
            raise OptionError(
                f"the images of a batch differ in size ({w0}x{h0} and {w1}x{h1}): "
                "give the loader a transform with a fixed size, such as T.RandomResizedCrop(224)"
            )
        height, width = sizes[0].tolist() if len(sizes) else (1, 1)
        return height, width

    def _empty(self, memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Of shape (N, 3, H, W), stored as `memory_format` says."""
        if self._plan.options.memory_format == torch.contiguous_format:
            return memory.take(shape, dtype)
        rows, channels, height, width = shape
        return memory.take((rows, height, width, channels), dtype).permute(0, 3, 1, 2)

    def _raise(self, located: Located, row: int, count: int) -> None:
        name = self._plan.dataset.reader.name(int(located.indices[row]))
        more = f" (and {count - 1} more of this batch)" if count > 1 else ""
        raise DecodeError(f"{name}: {kernel.status_message(int(self._status[row]))}{more}")


def decode_options(pipeline: Pipeline, pixels: str) -> kernel.DecodeOptions:
    """How the kernel decodes for `pipeline`: `pixels="fast"` never changes what an evaluation sees."""
    return kernel.DecodeOptions(filter=pipeline.filter, fast=pixels == "fast" and not pipeline.evaluation)


def rank_of(options: LoaderOptions) -> tuple[int, int]:
    """Rank and world size: as given, or those of torch.distributed where it runs, or the only one."""
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
