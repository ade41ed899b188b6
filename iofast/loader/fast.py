"""FastLoader: batches of decoded, augmented images, made ahead of the training step by threads.

order and choices say what a batch is, the reader where its bytes lie, the kernel makes pixels of them without the GIL
(samples.py), and `prefetch` keeps a few batches ahead. Nothing about a batch depends on how many threads made it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from typing import Any, Literal, Never

import torch

from iofast import kernel
from iofast.dataset import FastDataset
from iofast.errors import OptionError, StateError
from iofast.gpu.decode import Split
from iofast.loader.assemble import Batch
from iofast.loader.batches import BatchJob, measure
from iofast.loader.checks import check_dataset, check_spec
from iofast.loader.delivery import Delivery
from iofast.loader.epochs import EpochOrder, LoaderSampler, sampler_of
from iofast.loader.loader_stats import DEVICE, Contexts, Epoch, Failure, Ledger, LoaderStats, OnError, Tally
from iofast.loader.mapping import SampleFunction
from iofast.loader.options import AnyOrder, refuse_unknown
from iofast.loader.options import LoaderOptions as LoaderOptions
from iofast.loader.resident import Resident, decode_all
from iofast.loader.resources import Resources, readahead
from iofast.loader.samples import LoaderParts
from iofast.loader.spec import BatchSpec
from iofast.loader.state import Course, Progress
from iofast.machine import cores_of_rank
from iofast.meter import LoaderInfo, Stages, StallClock
from iofast.order import MAX_SEED
from iofast.order.base import check_whole
from iofast.prefetch import Auto, Prefetch, Setting
from iofast.prefetch.auto import State, first
from iofast.transforms import Pipeline, Transform, Views


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
        transform: Sequence[Transform] | Views | Pipeline | None = None,
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
        image_mode: Literal["RGB", "L", "I;16"] = "RGB",
        collate: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        targets: Mapping[str, str] | None = None,
        map_sample: SampleFunction | None = None,
        map_processes: int = 0,
        map_batch: Callable[..., Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **unknown: Never,
    ) -> None:
        given = locals()
        refuse_unknown(unknown)
        self.options = LoaderOptions(**{each.name: given[each.name] for each in fields(LoaderOptions)})
        self.dataset = dataset
        self.last_valid: torch.Tensor | None = None
        check_dataset(dataset)
        epochs = EpochOrder(dataset, self.options)
        spec = BatchSpec(dataset, self.options)
        check_spec(spec)
        self._stages, self._tally = Stages(), Tally()
        self._resources = Resources(spec, self._stages.transfer)
        self._clock = StallClock(self._described(epochs), device=str(spec.device), stages=self._stages)
        self._spec = spec
        self._resident: Resident | None = None  # with cache="device", from the first use on
        self._decoding_all = threading.Lock()
        self._epochs = epochs  # from here on what is fixed cannot be assigned
        self._ledger = Ledger(self.options.on_error, self.options.max_errors)
        self._auto: State | None = None  # of the last epoch
        self._course = Course()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, is at the same place and makes its own threads."""
        options = {each.name: getattr(self.options, each.name) for each in fields(LoaderOptions)}
        options["decode"] = self._resources.decoding.option()
        return _anew, (self.dataset, options, self._course.here)

    def __setattr__(self, name: str, value: object) -> None:
        if "_epochs" in self.__dict__ and name in _FIXED:
            option = "order" if name in ("sampler", "batch_sampler") else name
            raise OptionError(
                f"{name} of a loader cannot be changed after it was made: build a new FastLoader with {option}="
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Never:
        if name == "multiprocessing_context":  # read by Accelerate's skip_first_batches, which builds a DataLoader
            raise OptionError(
                "a FastLoader cannot be rebuilt as a DataLoader, so skip_first_batches cannot skip in it: "
                'loader.load_state_dict(loader.state_dict() | {"batch": 100}) begins with batch 100'
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        epochs, (epoch, batch) = self._epochs, self._course.next
        count = "an epoch without an end" if epochs.order.endless else f"{epochs.schedule.count} batches an epoch"
        place = f"{count}, next is batch {batch} of epoch {epoch}"
        return f"FastLoader({self.dataset!r}{self.options.given()}, rank {epochs.rank} of {epochs.world_size}: {place})"

    def __len__(self) -> int:
        """Batches per epoch and rank. Raises `TypeError` where the order has no end."""
        if self._epochs.order.endless:
            raise TypeError("the loader has no length: its sampler never ends")
        return self._epochs.schedule.count

    def __bool__(self) -> bool:
        """True: there is always a batch, and `if loader:` must not ask an endless one for its length."""
        return True

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank."""
        return self.options.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the last batch of an epoch is left out where it is short."""
        return self.options.drop_last

    @property
    def num_workers(self) -> int:
        """Threads that decode: as given, or with "auto" as many as are at work now."""
        return self._setting().num_workers

    @property
    def sampler(self) -> LoaderSampler:
        """What frameworks look for: `set_epoch`, and the indices of this rank's samples. It is sharded already."""
        return sampler_of(self._epochs, self._course, self.options)

    @property
    def batch_sampler(self) -> None:
        """None: batches are made by the loader, and no framework can rebuild it around another sampler."""

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins, or goes on with."""
        return self._course.next[0]

    @property
    def batch(self) -> int:
        """The batch of `epoch` that the next `iter()` begins with: 0, or the place of a state that was loaded.

        for number, (images, labels) in enumerate(loader, start=loader.batch): ...
        """
        return self._course.next[1]

    @property
    def clock(self) -> StallClock:
        """How long the consumer waits; `watch(loader)` reads it."""
        return self._clock

    @property
    def stats(self) -> LoaderStats:
        """What this loader has done so far, over all epochs."""
        resources, (ways, times), setting = self._resources, self._tally.sum(), self._setting()
        if resources.way is not None:
            resources.way.collect()  # the last copies may have been at work when the last batch was made
        return LoaderStats(
            images=sum(ways.values()),
            ways={way: ways[way] for way in (*kernel.WAYS, *([DEVICE] if resources.decoding.on_device else []))},
            decode=resources.decoding.description,
            changed=self.dataset.reader.changed,
            errors=self._ledger.errors,
            stages=self._stages.stats(),
            meter=self._clock.stats,
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
        self._course.set_epoch(check_whole("epoch", epoch, 0, MAX_SEED))

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator is: a few hundred bytes, fit for JSON. Batches made ahead do not count."""
        return self._epochs.identity.state(*self._course.here) | self._resources.decoding.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` go on where `state` was taken. Raises `StateError` naming what differs."""
        place = self._epochs.identity.place(state, self._epochs.schedule.count)
        self._resources.decoding.resume(state)
        self._course.load(place)

    def peek(self) -> Batch:
        """The batch that would come next, without taking it: nothing of the loader's place or counts changes, but that
        the first use decodes what `cache="device"` keeps."""
        epoch, batch = self._course.here
        delivery = self._delivery(Contexts(self._spec.decode, Stages()), epoch, batch, batch + 1)
        try:
            return delivery.hand_over(next(delivery), epoch, batch).batch
        finally:
            delivery.close()

    def __iter__(self) -> Iterator[Any]:
        self._epochs.check_ranks()
        if self._epochs.ranks_may_part and (left := self._course.abandoned) is not None:
            raise StateError(
                f"this iter() would abandon epoch {left.epoch} after {left.batch} of {left.count} batches, "
                f"and the other ranks may not: say on every rank what comes next, set_epoch({left.epoch + 1}), or "
                f"set_epoch({left.epoch}) to go on in this one; peek() looks at a batch and takes none"
            )
        return self._course.begin(self._epochs.schedule.count, self._batches)

    def _batches(self, progress: Progress) -> Iterator[Batch]:
        timing = self._clock.begin(progress.epoch)
        timing.waiting()
        contexts = Contexts(self._spec.decode, self._stages)
        ahead = readahead(self._spec, self._epochs, self._resources, progress.epoch)
        with ExitStack() as ends:  # each is called, also where a Ctrl-C comes within another; the last one first
            epoch = Epoch(contexts)
            ends.callback(self._tally.end, self._tally.begin(epoch))
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
                self._stages.queue.observe(delivery.ready, delivery.depth)
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
        limits = self._resources.limits
        if self.options.num_workers != "auto":
            return Setting(limits.max_workers, limits.max_depth)
        return (self._auto or first(limits)).setting

    def _described(self, epochs: EpochOrder) -> LoaderInfo:
        limits = self._resources.limits
        return LoaderInfo(
            name="FastLoader",
            kind="FastLoader",
            num_workers=limits.max_workers,
            prefetch=limits.max_depth,
            batch_size=self.options.batch_size,
            device=str(self.options.device),
            rank=epochs.rank,
            world_size=epochs.world_size,
        )

    def _parts(self) -> LoaderParts:
        """What batches are made of. With `cache="device"` a second consumer waits until the first has decoded all."""
        if self.options.cache is not None:
            with self._decoding_all:
                if self._resident is None:
                    self._resident = decode_all(self._spec, self._resources, self._stages, self._tally)
        return LoaderParts(self._spec, self._epochs, self._resources, self._resident)

    def _delivery(self, contexts: Contexts, epoch: int, start: int, stop: int) -> Delivery:
        resources, setting = self._resources, self._setting()
        if resources.way is not None:
            resources.way.check()  # before anything is allocated: within a capture that would break it
            resources.way.begin()
        parts = self._parts()
        resources.decoding.settle(partial(measure, parts, epoch, start))
        slices = (stop - start) * resources.limits.slices  # more threads would have nothing to do
        made = Prefetch(
            lambda batch: BatchJob(parts, contexts, epoch, batch),
            stop,
            num_workers=min(setting.num_workers, max(1, slices)),
            depth=setting.depth,
            start=start,
        )
        auto = Auto(made, resources.limits, self._auto) if self.options.num_workers == "auto" else None
        return Delivery(parts, made, auto, start, stop)


_FIXED = {each.name for each in fields(LoaderOptions)} | {"dataset", "options", "sampler", "batch_sampler"}


def _anew(dataset: FastDataset, options: dict[str, Any], here: tuple[int, int]) -> FastLoader:
    loader = FastLoader(dataset, **options)
    loader._course.load(here)
    return loader
