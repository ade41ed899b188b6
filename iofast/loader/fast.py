"""FastLoader: batches of decoded, augmented images, made ahead of the training step by threads.

order and choices say what a batch is, the reader where its bytes lie, the kernel makes pixels of them without the GIL
(samples.py), and `prefetch` keeps a few batches ahead. Nothing about a batch depends on how many threads made it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch

from iofast import kernel
from iofast.dataset import FastDataset
from iofast.errors import StateError
from iofast.loader.assemble import Batch
from iofast.loader.auto import Auto, Setting, State, first
from iofast.loader.batches import BatchJob
from iofast.loader.caching import make_resident
from iofast.loader.delivery import Delivery
from iofast.loader.failures import Failure, Ledger, OnError
from iofast.loader.mapping import SampleFunction
from iofast.loader.measure import measure
from iofast.loader.options import AnyOrder
from iofast.loader.options import LoaderOptions as LoaderOptions
from iofast.loader.plan import Plan
from iofast.loader.prefetch import Prefetch
from iofast.loader.split import Split
from iofast.loader.state import Progress
from iofast.loader.stats import LoaderStats
from iofast.loader.tally import DEVICE, Contexts, Epoch
from iofast.machine import cores_of_rank
from iofast.order import MAX_SEED
from iofast.order.base import check_whole
from iofast.stall import StallClock
from iofast.telemetry import Stages
from iofast.transforms import Pipeline, Transform


class FastLoader(Iterable[Any]):
    """Iterate over `(images, labels)` batches of a FastDataset; each `iter()` is the next epoch.

    `images` is (N, 3, H, W) of `dtype`, `labels` int64 of shape (N,), -1 where there is none; both on `device`. A
    dataset with `fields` gives dictionaries instead, with a mask `valid`. With several ranks every rank gets equally
    many batches; where the last one had to be filled up, `last_valid` (bool, (N,)) says which of its samples are real.

        loader = FastLoader(FastDataset("out.lmdb"), batch_size=256, shuffle=True, transform=T.train(224),
                            dtype=torch.float32)
        for images, labels in loader: ...

    `state_dict()` says in a few hundred bytes where the newest iterator is; after `load_state_dict` the next `iter()`
    goes on there, with any number of workers, and of ranks that make the same global batch.

    Raises `OptionError` at construction for options that cannot be carried out, and while iterating `DecodeError`
    naming the sample that cannot be made, or `ErrorBudgetError` where there are too many of them.
    """

    def __init__(
        self,
        dataset: FastDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        order: AnyOrder | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | Literal["auto"] = "auto",
        transform: Sequence[Transform] | Pipeline | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.uint8,
        memory_format: torch.memory_format = torch.contiguous_format,
        prefetch: int | Literal["auto"] = "auto",
        cache: Literal["device"] | None = None,
        readahead: bool | Literal["auto"] = "auto",
        decode: Literal["cpu", "gpu", "split", "auto"] | Split = "cpu",
        pixels: Literal["exact", "fast"] = "exact",
        check: Literal["crc"] | None = "crc",
        truncated: Literal["strict", "accept"] = "strict",
        on_error: OnError = "raise",
        max_errors: int | None = None,
        ragged: Literal["raise", "list", "pad"] = "raise",
        collate: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        map_sample: SampleFunction | None = None,
        map_processes: int = 0,
        map_batch: Callable[..., Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        given = locals()
        self.options = LoaderOptions(**{each.name: given[each.name] for each in fields(LoaderOptions)})
        self.dataset = dataset
        self.last_valid: torch.Tensor | None = None
        self._plan = Plan(dataset, self.options)
        self._ledger = Ledger(self.options.on_error, self.options.max_errors)
        self._auto: State | None = None  # of the last epoch
        self._progress: Progress | None = None  # of the newest iterator
        self._newest: weakref.ref[Iterator[Any]] | None = None
        self._start: tuple[int, int] | None = (0, 0)  # (epoch, batch) of the next one, where it was said
        self._wanted: int | None = None  # the epoch that set_epoch said since the newest iterator was made

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, is at the same place and makes its own threads."""
        options = {each.name: getattr(self.options, each.name) for each in fields(LoaderOptions)}
        options["decode"] = self._plan.decoding.option()
        return _anew, (self.dataset, options, self._here())

    def __len__(self) -> int:
        """Batches per epoch and rank."""
        return self._plan.schedule.count

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins, or goes on with."""
        return self._next()[0]

    @property
    def clock(self) -> StallClock:
        """How long the consumer waits; `watch(loader)` reads it."""
        return self._plan.clock

    @property
    def stats(self) -> LoaderStats:
        """What this loader has done so far, over all epochs."""
        plan, (ways, times) = self._plan, self._plan.tally.sum()
        if plan.way is not None:
            plan.way.collect()  # the last copies may have been at work when the last batch was made
        setting = self._setting()
        return LoaderStats(
            images=sum(ways.values()),
            ways={way: ways[way] for way in (*kernel.WAYS, *([DEVICE] if plan.decoding.on_device else []))},
            decode=plan.decoding.said,
            changed=self.dataset.reader.changed,
            errors=self._ledger.errors,
            stages=plan.stages.stats(),
            meter=plan.clock.stats,
            num_workers=setting.num_workers,
            depth=setting.depth,
            cpu_share=times.cpu_share(cores_of_rank()),
        )

    @property
    def failures(self) -> list[Failure]:
        """The last samples (up to 1000) that could not be made, with name and reason, of the batches returned."""
        return list(self._ledger.recent)

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter()` begin `epoch`; with the epoch that a state or an iterator is in, go on in it.

        Not needed: without it each `iter()` begins the epoch after the last.
        """
        epoch = check_whole("epoch", epoch, 0, MAX_SEED)
        if self._start is None:
            self._wanted = epoch  # the newest iterator may still go on: where it is then is what counts
        elif self._start[0] != epoch:
            self._start = (epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator is: a few hundred bytes, fit for JSON. Batches made ahead do not count."""
        return self._plan.identity.state(*self._here()) | self._plan.decoding.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` go on where `state` was taken. Raises `StateError` naming what differs."""
        place = self._plan.identity.place(state, len(self))
        self._plan.decoding.resume(state)
        self._start, self._wanted = place, None

    def peek(self) -> Batch:
        """The batch that would come next, without taking it: nothing of the loader's place or counts changes, but that
        the first use decodes what `cache="device"` keeps."""
        epoch, batch = self._here()
        delivery = self._delivery(Contexts(self._plan.decode, Stages()), epoch, batch, batch + 1)
        try:
            return delivery.hand_over(next(delivery), epoch, batch).batch
        finally:
            delivery.close()

    def __iter__(self) -> Iterator[Any]:
        self._plan.check_ranks()
        progress, said = self._progress, self._start is not None or self._wanted is not None
        if not said and self._plan.ranks_may_part and progress is not None and progress.unfinished:
            raise StateError(
                f"this iter() would abandon epoch {progress.epoch} after {progress.batch} of {progress.count} batches, "
                f"and the other ranks may not: say on every rank what comes next, set_epoch({progress.epoch + 1}), or "
                f"set_epoch({progress.epoch}) to go on in this one; peek() looks at a batch and takes none"
            )
        epoch, batch = self._next()
        self._start, self._wanted, self._progress = None, None, Progress(epoch, batch, len(self))
        batches = self._batches(self._progress)
        self._newest = weakref.ref(batches)
        return batches

    def _here(self) -> tuple[int, int]:
        """(epoch, batch) to go on at."""
        if self._start is not None or self._progress is None:
            return self._start or (0, 0)
        here = self._progress.next
        return here if self._wanted is None or self._wanted == here[0] else (self._wanted, 0)

    def _next(self) -> tuple[int, int]:
        """(epoch, batch) of the next `iter()`: an epoch that was left is not gone on with, unless it was said.

        An iterator that was dropped before it returned anything takes no epoch: Lightning makes one to see if it can.
        """
        progress, newest = self._progress, self._newest
        if self._start is not None or self._wanted is not None or progress is None:
            return self._here()
        if progress.fresh and newest is not None and newest() is None:
            return progress.next
        return progress.epoch + 1, 0

    def _batches(self, progress: Progress) -> Iterator[Batch]:
        plan = self._plan
        timing = plan.clock.begin(progress.epoch)
        timing.waiting()
        contexts, ahead = Contexts(plan.decode, plan.stages), plan.readahead(progress.epoch)
        with ExitStack() as ends:  # each is called, also where a Ctrl-C comes within another; the last one first
            epoch = Epoch(contexts)
            ends.callback(plan.tally.end, plan.tally.begin(epoch))
            ends.callback(timing.left)
            if ahead is not None:
                ends.callback(ahead.close)
                ahead.ask(progress.batch)
            delivery = self._delivery(contexts, progress.epoch, progress.batch, progress.count)
            ends.callback(delivery.close)
            epoch.made_by(*delivery.threads)
            timing.began()
            while True:
                timing.waiting()
                plan.stages.queue.observe(delivery.ready, delivery.depth)
                issued = next(delivery, None)
                if issued is None:
                    return
                timing.arrived()
                self._ledger.check(issued.value.failures)
                made = delivery.hand_over(issued, progress.epoch, progress.batch)
                self.last_valid = torch.from_numpy(made.valid)
                self._ledger.add(made.failures)
                if ahead is not None:
                    ahead.ask(progress.batch + 1)
                timing.got(len(made.valid))
                held = [made.batch]
                del issued, made  # whoever takes the batch is to be the only one that holds it
                progress.fresh = False
                progress.batch += 1  # the last thing before it is handed over: a Ctrl-C up to here loses nothing
                yield held.pop()
                self._auto = delivery.taken() or self._auto

    def _setting(self) -> Setting:
        limits = self._plan.limits
        if self.options.num_workers != "auto":
            return Setting(limits.max_workers, limits.max_depth)
        return (self._auto or first(limits)).setting

    def _delivery(self, contexts: Contexts, epoch: int, start: int, stop: int) -> Delivery:
        plan, setting = self._plan, self._setting()
        if plan.way is not None:
            plan.way.check()  # before anything is allocated: within a capture that would break it
            plan.way.begin()
        make_resident(plan)
        plan.decoding.settle(partial(measure, plan, epoch, start))
        slices = (stop - start) * plan.limits.slices  # more threads would have nothing to do
        made = Prefetch(
            lambda batch: BatchJob(plan, contexts, epoch, batch),
            stop,
            num_workers=max(1, min(setting.num_workers, slices)),
            depth=setting.depth,
            start=start,
        )
        auto = Auto(made, plan.limits, self._auto) if self.options.num_workers == "auto" else None
        return Delivery(plan, made, auto, start, stop)


def _anew(dataset: FastDataset, options: dict[str, Any], here: tuple[int, int]) -> FastLoader:
    loader = FastLoader(dataset, **options)
    loader._start = here
    return loader
