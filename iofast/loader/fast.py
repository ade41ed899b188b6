"""FastLoader: batches of decoded, augmented images, made ahead of the training step by threads.

order and choices say what a batch is, the reader where its bytes lie, the kernel makes pixels of them without the GIL
(batches.py), and `prefetch` keeps a few batches ahead. Nothing about a batch depends on how many threads made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Literal, NamedTuple

import torch

from iofast import pixels
from iofast.dataset import FastDataset
from iofast.errors import OptionError
from iofast.loader.batches import SLICE, BatchJob, Contexts, Plan
from iofast.loader.options import LoaderOptions as LoaderOptions
from iofast.loader.prefetch import Prefetch
from iofast.machine import cores
from iofast.transforms import Pipeline, Transform

Batch = tuple[torch.Tensor, torch.Tensor]


class LoaderStats(NamedTuple):
    """`images`: decoded so far. `ways`: how many of them in which way; `kernel.Counts` says what the names mean."""

    images: int
    ways: dict[str, int]


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
        self._plan = Plan(dataset, self.options)
        self._epoch = 0

    def __len__(self) -> int:
        """Batches per epoch and rank."""
        return self._plan.schedule.count

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins."""
        return self._epoch

    @property
    def stats(self) -> LoaderStats:
        """What this loader's threads have done so far, over all epochs."""
        ways = self._plan.tally.ways()
        return LoaderStats(images=sum(ways.values()), ways=ways)

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
        slices = len(self) * -(-options.batch_size // SLICE)  # of the epoch: more threads would have nothing to do
        contexts = Contexts(plan.decode)
        counted = plan.tally.begin(contexts)
        try:
            made = Prefetch(
                lambda batch: BatchJob(plan, contexts, epoch, batch),
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
        finally:
            plan.tally.end(counted)

    def _deliver(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        device = self._plan.device
        if device.type == "cpu":
            return images, labels
        images = images.to(device, non_blocking=True)
        ops, options = self._plan.pipeline.ops, self.options
        images = pixels.apply(images, ops, dtype=options.dtype, memory_format=options.memory_format)
        return images, labels.to(device, non_blocking=True)
