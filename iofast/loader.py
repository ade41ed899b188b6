"""FastLoader: batches of decoded, augmented images, made ahead of the training step by threads.

order and choices say what a batch is, the reader where its bytes lie, the kernel makes pixels of them without the GIL,
`prefetch` keeps a few batches ahead. Nothing about a batch depends on how many threads made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import Literal, NamedTuple, SupportsIndex

import numpy as np
import torch

from iofast import kernel, pixels
from iofast.buffers import BatchMemory
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.dataset import FastDataset
from iofast.errors import DecodeError, OptionError
from iofast.machine import cores
from iofast.order import MAX_SAMPLES, MAX_SEED, Order, Schedule
from iofast.prefetch import Job, Prefetch
from iofast.transforms import Pipeline, Transform
from iofast.transforms import compile as compile_transform

Batch = tuple[torch.Tensor, torch.Tensor]

MAX_WORKERS = 256
MAX_PREFETCH = 64
_SLICE = 32  # rows a thread takes at once: 10 ms of work, and half of the descriptors a folder reader may hold


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Everything about a loader but its dataset; checks itself. FastLoader takes the same names as keywords.

    batch_size      samples per batch and rank
    shuffle         a new permutation each epoch, a function of (seed, epoch)
    seed            of the order and of every random choice, 0 to 2^64-1
    drop_last       leave out the last batch of an epoch where it is short
    num_workers     decoding threads; "auto" = the cores this process may use
    transform       a list from iofast.transforms; without one all images must be of one size
    device          where batches go; copied from page-locked memory where it is a GPU
    dtype           uint8 as decoded, or a float type: normalised, or scaled to [0, 1] without Normalize
    memory_format   torch.channels_last (default) or torch.contiguous_format
    prefetch        batches made ahead of the consumer
    pixels          "exact" (within 1 level of Pillow) or "fast" (DCT scaling in training transforms)
    check           "crc": damaged bytes raise where the container has checksums; None: they are not looked for
    rank            this process's number and how many there are; found from torch.distributed when left out
    world_size
    """

    batch_size: int = 1
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    num_workers: int | Literal["auto"] = "auto"
    transform: Sequence[Transform] | Pipeline | None = None
    device: str | torch.device = "cpu"
    dtype: torch.dtype = torch.uint8
    memory_format: torch.memory_format = torch.channels_last
    prefetch: int = 3
    pixels: Literal["exact", "fast"] = "exact"
    check: Literal["crc"] | None = "crc"
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1, MAX_SAMPLES)
        _check_whole("seed", self.seed, 0, MAX_SEED)
        _check_whole("prefetch", self.prefetch, 1, MAX_PREFETCH)
        if self.num_workers != "auto":
            _check_whole("num_workers (or 'auto')", self.num_workers, 1, MAX_WORKERS)
        if self.pixels not in ("exact", "fast"):
            raise OptionError(f"pixels must be 'exact' or 'fast', found {self.pixels!r}")
        if self.check not in ("crc", None):
            raise OptionError(f"check must be 'crc' or None, found {self.check!r}")
        if self.memory_format not in (torch.channels_last, torch.contiguous_format):
            raise OptionError(f"memory_format must be channels_last or contiguous_format, found {self.memory_format}")
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank and world_size go together, found {self.rank} and {self.world_size}")
        if self.rank is not None and self.world_size is not None:
            _check_whole("world_size", self.world_size, 1, MAX_SAMPLES)
            _check_whole("rank", self.rank, 0, self.world_size - 1)
        pipeline = compile_transform(self.transform)
        if self.transform is not None:
            object.__setattr__(self, "transform", pipeline)  # what was given may be an iterator, now at its end
        pixels.check_dtype(pipeline.ops, self.dtype)
        object.__setattr__(self, "device", _checked_device(self.device))


class FastLoader(Iterable[Batch]):
    """Iterate over `(images, labels)` batches of a FastDataset; each `iter()` is the next epoch.

    `images` is (N, 3, H, W) of `dtype`, `labels` int64 of shape (N,), -1 where there is none; both on `device`. With
    several ranks every rank gets equally many batches; where the last one had to be filled up, `last_valid` (bool,
    (N,)) says which of its samples are real.

        loader = FastLoader(FastDataset("out.lmdb"), batch_size=256, shuffle=True, transform=T.train(224),
                            dtype=torch.float32)
        for images, labels in loader: ...

    Raises `OptionError` at construction for options that cannot be carried out, and while iterating `DecodeError`
    naming the image that cannot be decoded.
    """

    def __init__(
        self,
        dataset: FastDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | Literal["auto"] = "auto",
        transform: Sequence[Transform] | Pipeline | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.uint8,
        memory_format: torch.memory_format = torch.channels_last,
        prefetch: int = 3,
        pixels: Literal["exact", "fast"] = "exact",
        check: Literal["crc"] | None = "crc",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        given = locals()
        self.options = LoaderOptions(**{each.name: given[each.name] for each in fields(LoaderOptions)})
        self.dataset = dataset
        self.last_valid: torch.Tensor | None = None
        self._plan = _Plan(dataset, self.options)
        self._epoch = 0

    def __len__(self) -> int:
        """Batches per epoch and rank."""
        return self._plan.schedule.count

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter()` begin `epoch`. Without it each `iter()` begins the one after the last."""
        if epoch < 0:
            raise OptionError(f"epoch must be 0 or more, found {epoch}")
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        plan, options = self._plan, self.options
        workers = cores() if options.num_workers == "auto" else options.num_workers
        slices = len(self) * -(-options.batch_size // _SLICE)  # of the epoch: more threads would have nothing to do
        threads = _Threads(plan.decode)
        made = Prefetch(
            lambda batch: _BatchJob(plan, threads, epoch, batch),
            len(self),
            num_workers=min(workers, slices),
            depth=options.prefetch,
        )
        try:
            for images, labels, valid in made:
                self.last_valid = valid
                yield self._deliver(images, labels)
        finally:
            made.close()

    def _deliver(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        device = self._plan.device
        if device.type == "cpu":
            return images, labels
        images = images.to(device, non_blocking=True)
        ops, options = self._plan.pipeline.ops, self.options
        images = pixels.apply(images, ops, dtype=options.dtype, memory_format=options.memory_format)
        return images, labels.to(device, non_blocking=True)


class _Made(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor


class _Slice(NamedTuple):
    start: int
    stop: int


class _Plan:
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
        rank, world_size = _rank_of(options)
        self.dataset, self.options = dataset, options
        self.order = Order(len(dataset), options.shuffle, options.seed)
        self.schedule = Schedule(len(dataset), options.batch_size, rank, world_size, options.drop_last)
        self.pipeline = compile_transform(options.transform)
        fast = options.pixels == "fast" and not self.pipeline.evaluation
        self.decode = kernel.DecodeOptions(filter=self.pipeline.filter, fast=fast)
        self.device = torch.device(options.device)
        self.memory = BatchMemory(pinned=self.device.type == "cuda", spare=options.prefetch + 2)


class _Threads:
    """One kernel context per thread of an epoch."""

    def __init__(self, options: kernel.DecodeOptions) -> None:
        self._options = options
        self._contexts: dict[int, kernel.Context] = {}

    def context(self, number: int) -> kernel.Context:
        if number not in self._contexts:
            self._contexts[number] = kernel.Context(self._options)
        return self._contexts[number]


class _BatchJob(Job[_Made, _Slice]):
    """One batch, from positions to tensors."""

    def __init__(self, plan: _Plan, threads: _Threads, epoch: int, batch: int) -> None:
        self._plan, self._threads, self._epoch, self._batch = plan, threads, epoch, batch

    def prepare(self) -> list[_Slice]:
        plan = self._plan
        positions, self._valid = plan.schedule.positions(self._batch)
        indices = plan.dataset.resolve(plan.order.indices(self._epoch, positions))
        self._located = plan.dataset.reader.locate(indices)
        draw = Draw(plan.options.seed, self._epoch, positions)
        self._boxes, self._flips = plan.pipeline.plan(draw, self._located.width, self._located.height)
        self._status = np.zeros(len(positions), np.int32)
        self._images = self._empty(len(positions), self._size())
        rows = len(positions)
        return [_Slice(start, min(start + _SLICE, rows)) for start in range(0, rows, _SLICE)]

    def run(self, number: int, part: _Slice) -> None:
        start, stop = part
        context = self._threads.context(number)
        out = self._images.permute(0, 2, 3, 1).numpy()[start:stop]
        boxes, flips, status = self._boxes[start:stop], self._flips[start:stop], self._status[start:stop]
        with self._plan.dataset.reader.payloads(self._located, start, stop) as payloads:
            source = payloads if self._plan.options.check else payloads._replace(crcs=None)
            kernel.decode_batch(context, source, boxes, flips, out, status, 0, stop - start)

    def finish(self) -> _Made:
        failed = np.flatnonzero(self._status)
        if len(failed):
            self._raise(self._located, int(failed[0]), len(failed))
        plan, options = self._plan, self._plan.options
        images = self._images
        if plan.device.type == "cpu" and options.dtype != torch.uint8:
            images = pixels.apply(images, plan.pipeline.ops, dtype=options.dtype, memory_format=options.memory_format)
        labels = torch.from_numpy(self._located.label.astype(np.int64))
        if plan.device.type == "cuda":
            labels = labels.pin_memory()
        return _Made(images, labels, torch.from_numpy(self._valid))

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

    def _empty(self, rows: int, size: tuple[int, int]) -> torch.Tensor:
        """Uint8 (rows, 3, H, W), stored as `memory_format` says."""
        if self._plan.options.memory_format == torch.channels_last:
            return self._plan.memory.take((rows, *size, 3)).permute(0, 3, 1, 2)
        return self._plan.memory.take((rows, 3, *size))

    def _raise(self, located: Located, row: int, count: int) -> None:
        name = self._plan.dataset.reader.name(int(located.indices[row]))
        more = f" (and {count - 1} more of this batch)" if count > 1 else ""
        raise DecodeError(f"{name}: {kernel.status_message(int(self._status[row]))}{more}")


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, SupportsIndex) or not low <= index(value) <= high:
        raise OptionError(f"{name} must be a whole number from {low} to {high}, found {value!r}")


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError):
        raise OptionError(f"device must be one that torch knows, such as 'cpu' or 'cuda', found {device!r}") from None
    if checked.type == "cuda" and not 0 <= (checked.index or 0) < torch.cuda.device_count():
        raise OptionError(f"device {device} is not here: torch sees {torch.cuda.device_count()} CUDA devices")
    return checked


def _rank_of(options: LoaderOptions) -> tuple[int, int]:
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
