"""FastLoader: batches of decoded, augmented images, made ahead of the training step by threads.

`order` and `choices` determine a batch, the reader locates its bytes, the kernel decodes them without the GIL
(samples.py), and `prefetch` keeps a few batches ahead. No batch depends on the number of threads.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, overload

import torch
from typing_extensions import TypeVar  # a dependency of torch; the default needs Python 3.13 otherwise

from iofast import kernel
from iofast.arguments import check_integer
from iofast.dataset import FastDataset
from iofast.errors import OptionError, StateError, shown
from iofast.loader.assemble import Batch
from iofast.loader.delivery import Delivery
from iofast.loader.epochs import NOT_REBUILT, EpochOrder, LoaderSampler, SequentialLoaderSampler
from iofast.loader.filling import fill
from iofast.loader.loader_stats import DEVICE, Contexts, Failure, FailureLog, LoaderStats, Tally
from iofast.loader.options import INSTEAD, Fields, UsualOptions
from iofast.loader.options import LoaderOptions as LoaderOptions
from iofast.loader.plan import LoaderParts
from iofast.loader.resident import Resident
from iofast.loader.resources import Resources, readahead
from iofast.loader.spec import BatchSpec, check_dataset
from iofast.loader.state import Course, Progress
from iofast.loader.trace import Trace
from iofast.machine import cores_of_rank
from iofast.meter import Stages, StallClock
from iofast.meter.traffic import traffic
from iofast.option import check_names, takes_options
from iofast.order import MAX_SEED, Sequential
from iofast.prefetch import StoredReadahead
from iofast.prefetch.auto import first

_log = logging.getLogger("iofast")

_BatchT = TypeVar("_BatchT", default=Any)
_FieldsT = TypeVar("_FieldsT", default=Any)
_P = ParamSpec("_P")


def _typed_by(
    _options: Callable[_P, LoaderOptions], _fields: type[_FieldsT] | None = None, _batch: type[_BatchT] | None = None
) -> Callable[[Callable[..., None]], Callable[Concatenate[FastLoader[_BatchT], FastDataset[_FieldsT], _P], None]]:
    """Type `FastLoader.__init__`: it takes a dataset with such `fields`, and these options; then such batches come."""
    return lambda function: function


def _made_by(
    _options: Callable[_P, LoaderOptions], _fields: type[_FieldsT] | None = None, _batch: type[_BatchT] | None = None
) -> Callable[[Callable[..., Any]], Callable[Concatenate[FastDataset[_FieldsT], _P], FastLoader[_BatchT]]]:
    """Type `FastLoader.__new__` alike."""
    return lambda function: function


class FastLoader(Iterable[_BatchT]):
    """Iterate over `(images, labels)` batches of a FastDataset; each `iter()` is the next epoch.

    `images` is (N, 3, H, W) of `dtype`, `labels` int64 (N,), -1 for no label; both on `device`. A dataset with `fields`
    gives dictionaries instead, with a mask `valid`. All ranks get equally many batches; `last_valid` (bool, (N,)) is
    False for samples that only fill a rank's last batch up.

        loader = FastLoader(FastDataset("out.lmdb"), batch_size=256, shuffle=True, transform=T.train(224))
        for images, labels in loader: ...

    The options, all but the first two by name:

    batch_size     samples per batch, on each rank
    shuffle        a new permutation in each epoch, by (seed, epoch)
    order          another order: one of iofast.order, or a torch Sampler; random samplers draw from (seed, epoch)
    seed           seed of the order and of all random choices, 0 to 2^64-1
    drop_last      leave out a short last batch of an epoch
    transform      a list of transforms, or several Views; without it all images must have one size, or see `ragged`
    dtype          of the images: torch.uint8, or a float type such as torch.float32 or 'float32', normalised by
                   Normalize, otherwise in [0, 1]; the default is float32 if the transform normalises, erases or mixes,
                   otherwise uint8
    device         where batches go; on a CUDA GPU two are finished ahead of the consumer. 'cuda' is the device that is
                   current in the consumer's thread when its first epoch begins
    output         what batches are made of: 'torch' for tensors, 'numpy' for arrays, for JAX, TensorFlow and others; on
                   the CPU only, as other frameworks take a tensor on a GPU by DLPack
    cache          'device': keep the whole dataset on the device, as JPEGs or, of small images, as pixels
    memory_format  torch.channels_last for a model in that format
    num_workers    decoding threads; 'auto' is the fewest that keep the consumer from waiting, at most one per core of
                   this rank; 0: the consumer's thread makes each batch, for a debugger or a profiler
    prefetch       batches made ahead of the consumer; 'auto' is the fewest that keep it from waiting, at most 8, or 3
                   if num_workers is a number
    readahead      advise the operating system on the bytes of coming batches, and fetch them from an object store;
                   'auto' does so for containers, not for folders
    decode         where JPEGs are decoded, with the same pixels: 'cpu', 'gpu' (on the device), or 'auto' (on the
                   device if it can)
    pixels         'exact' is within one level of Pillow; 'fast' may decode training crops of progressive and unusual
                   JPEGs at 1/2, 1/4 or 1/8 if enough pixels remain
    check          compare payloads with their checksums, if there are any; damage is an error. Raw pixels are compared
                   when the loader first reads the image (each time in an LMDB that another program has written to).
                   None: do not
    truncated      'strict': a JPEG that ends early is an error, 'accept': decode as much as possible; None: as the
                   dataset's option. A progressive JPEG that ends normally after fewer scans is no error
    on_error       a sample that cannot be made: 'raise', 'replace' it by another one drawn from (seed, epoch, position,
                   attempt), or 'drop' it. If all of 8 or more samples of a batch fail, raise
    max_errors     failures per epoch on this rank before ErrorBudgetError; None is any number
    ragged         images of different sizes: 'raise', a 'list' of (3, h, w) tensors, or 'pad' with zeros to the largest
    image_mode     'L' for gray: batches of one channel
    targets        {field: 'mask', 'boxes' or 'keypoints'}: fields that follow the image through crops, flips and warps
    collate        {field: function} from the list of a batch's values to the batch's column
    map_sample     function (sample dictionary, numpy Generator) -> dictionary, called for each sample after decoding
    map_batch      function of the finished batch; its parameters rng, epoch and position, if it has them, are filled in
    rank           number of this process; detected by default
    world_size     number of processes; detected by default
    group          processes that need different data, instead of rank and world_size: a process group, or a device
                   mesh's data-parallel dimensions; tensor- and context-parallel ranks then get the same batches

    `state_dict()` is the place of the newest iterator, in a few hundred bytes. After `load_state_dict` the next
    `iter()` continues there, with any number of workers, and of ranks that make the same global batch.

    Raises `OptionError` at construction for wrong options. Iteration raises `DecodeError` for a sample that cannot be
    made, or `ErrorBudgetError` if there are too many of them.
    """

    batch_sampler = None  # frameworks read it; batches are not made of a sampler
    if TYPE_CHECKING:  # mypy takes the type of a loader from __init__, pyright and so editors take it from __new__

        @overload
        @_made_by(UsualOptions, type(None), tuple[torch.Tensor, torch.Tensor])
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...  # type: ignore[misc]
        @overload
        @_made_by(UsualOptions, tuple[str, ...], Fields)
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...  # type: ignore[misc]
        @overload
        @_made_by(LoaderOptions)
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...  # type: ignore[misc]
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...

    @overload
    @_typed_by(UsualOptions, type(None), tuple[torch.Tensor, torch.Tensor])
    def __init__(self, dataset: FastDataset, *options: Any, **keywords: Any) -> None: ...
    @overload
    @_typed_by(UsualOptions, tuple[str, ...], Fields)
    def __init__(self, dataset: FastDataset, *options: Any, **keywords: Any) -> None: ...
    @overload
    @_typed_by(LoaderOptions)
    def __init__(self, dataset: FastDataset, *options: Any, **keywords: Any) -> None: ...
    @partial(takes_options, LoaderOptions)
    def __init__(self, dataset: FastDataset, *options: Any, **keywords: Any) -> None:
        if options[2:]:
            raise OptionError(
                f"FastLoader takes dataset, batch_size and shuffle by position, found {shown(options[2])} as the "
                "fourth argument: write its name before it"
            )
        check_names("FastLoader", LoaderOptions, keywords, INSTEAD)
        self.options = LoaderOptions(*options, **keywords)
        self.dataset = dataset
        self.last_valid: torch.Tensor | None = None
        check_dataset(dataset)
        epochs = EpochOrder(dataset, self.options)
        spec = BatchSpec(dataset, self.options)
        self._stages, self._tally = Stages(is_remote=dataset.reader.is_stored), Tally()
        self._resources = Resources(spec, self._stages.transfer)
        self._clock = StallClock(self._resources.described(spec, epochs), device=str(spec.device), stages=self._stages)
        self._spec = spec
        self._resident: Resident | None = None  # with cache="device", from the first use on
        self._decoding_all = threading.Lock()
        self._epochs = epochs  # from here on `_FIXED` attributes cannot be assigned
        self._failure_log = FailureLog(self.options.on_error, self.options.max_errors)
        self._auto = first(self._resources.limits)  # threads and depth at the end of the last epoch
        self._course = Course()
        self._trace: Trace | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, is at the same place and starts threads of its own."""
        options = {each.name: getattr(self.options, each.name) for each in fields(LoaderOptions)}
        return _anew, (self.dataset, options, self._course.here)

    def __setattr__(self, name: str, value: object) -> None:
        if "_epochs" in self.__dict__ and name in _FIXED:
            option = "order" if name in ("sampler", "batch_sampler") else name
            raise OptionError(
                f"{name} of a loader cannot be changed after construction: build a new FastLoader with {option}="
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Never:
        if name == "multiprocessing_context":  # read by functions of Accelerate, which build a DataLoader like it
            raise OptionError(NOT_REBUILT)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        epochs, (epoch, batch) = self._epochs, self._course.next
        count = "an epoch without an end" if epochs.order.endless else f"{epochs.schedule.count} batches an epoch"
        place = f"{count}, next is batch {batch} of epoch {epoch}"
        return f"FastLoader({self.dataset!r}{self.options.given()}, rank {epochs.rank} of {epochs.world_size}: {place})"

    def __len__(self) -> int:
        """Batches per epoch and rank. Raises `TypeError` if the order has no end."""
        if self._epochs.order.endless:
            raise TypeError("the loader has no length: its sampler never ends")
        return self._epochs.schedule.count

    def __bool__(self) -> bool:
        """True: there is always a batch, and `if loader:` must not call `len` of an endless one."""
        return True

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank."""
        return self.options.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch of an epoch is left out."""
        return self.options.drop_last

    @property
    def num_workers(self) -> int:
        """Decoding threads: the option, or with "auto" those at work now."""
        return self._auto.setting.num_workers

    @property
    def sampler(self) -> LoaderSampler:
        """For frameworks: `set_epoch`, and the indices of this rank's samples. It is sharded already."""
        kind = SequentialLoaderSampler if isinstance(self.options.mode, Sequential) else LoaderSampler
        return kind(self._epochs, self._course)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins or resumes."""
        return self._course.next[0]

    @property
    def batch(self) -> int:
        """The batch of `epoch` that the next `iter()` begins with: 0, or the place of a loaded state.

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
        resources, done, setting = self._resources, self._tally.sum(), self._auto.setting
        if resources.transfer is not None:
            resources.transfer.collect()  # times of the last copies
        return LoaderStats(
            images=sum(done.ways.values()),
            ways={way: done.ways[way] for way in (*kernel.WAYS, *([DEVICE] if resources.decoding.tables else []))},
            decode=resources.decoding.description,
            changed=self.dataset.reader.changed,
            errors=self._failure_log.errors,
            stages=self._stages.stats(),
            traffic=traffic.stats() if self._stages.is_remote else None,
            meter=self._clock.stats,
            num_workers=setting.num_workers,
            depth=setting.depth,
            cpu_share=done.cpu_s / (done.wall_s * cores_of_rank()) if done.wall_s else 0.0,
        )

    @property
    def failures(self) -> list[Failure]:
        """The last failed samples (up to 1000) of the batches returned, with name and reason."""
        return list(self._failure_log.recent)

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter()` begin `epoch`, or resume it if a loaded state or the newest iterator is in it.

        Without this call each `iter()` begins the epoch after the last.
        """
        self._course.set_epoch(check_integer("epoch", epoch, 0, MAX_SEED))

    def state_dict(self) -> dict[str, Any]:
        """The place of the newest iterator: a few hundred bytes, fit for JSON. Batches made ahead do not count."""
        return self._epochs.identity.state(*self._course.here)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter()` continue where `state` was taken. Raises `StateError` for what differs."""
        place = self._epochs.identity.place(state, self._epochs.schedule.count)
        if self._epochs.order.endless and place[1]:
            _log.warning("%r draws its sampler again from the start of epoch %d, and skips %d batches", self, *place)
        self._course.load(place)

    def peek(self) -> Batch:
        """The next batch, without taking it: place and counts do not change.

        With `cache="device"` the first use decodes the dataset.
        """
        epoch, batch = self._course.here
        delivery = self._delivery(Contexts(self._spec.decode, Stages()), (epoch, batch, batch + 1), None)
        try:
            return delivery.hand_over(next(delivery), epoch, batch).batch
        finally:
            delivery.close()

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Write into a file when each batch is made, from the next `iter()` on, for Perfetto or chrome://tracing.

        It ends with `close()` of the result, a context manager: `with loader.trace("trace.json"):`. Raises `OSError`.
        """
        self._trace = Trace(path)
        return self._trace

    def __iter__(self) -> Iterator[_BatchT]:
        self._epochs.check_ranks()
        if self._epochs.ranks_may_part and (left := self._course.abandoned) is not None:
            raise StateError(
                f"this iter() would abandon epoch {left.epoch} after {left.batch} of {left.count} batches, and other "
                f"ranks may not: call set_epoch({left.epoch + 1}) on every rank, or set_epoch({left.epoch}) to resume "
                "this epoch; peek() returns a batch without taking it"
            )
        return self._course.begin(self._epochs.schedule.count, self._batches)

    def _batches(self, progress: Progress) -> Iterator[Batch]:
        timing = self._clock.begin(progress.epoch)
        timing.waiting()
        trace = None if self._trace is None or self._trace.ended else self._trace
        contexts = Contexts(self._spec.decode, self._stages, trace)
        ahead = readahead(self._spec, self._epochs, self._resources, progress.epoch, progress.batch)
        with ExitStack() as ends:  # all are called, the last one first, also if a Ctrl-C interrupts one of them
            self._tally.begin(contexts)
            ends.callback(contexts.end)
            ends.callback(timing.left)
            if ahead is not None:
                ends.callback(ahead.close)
                ahead.ask(progress.batch)
            ready = ahead.wait if isinstance(ahead, StoredReadahead) else None
            delivery = self._delivery(contexts, (progress.epoch, progress.batch, progress.count), ready)
            ends.callback(delivery.close)
            contexts.made_by(*delivery.threads)
            timing.began()
            while True:
                timing.waiting()
                begun = monotonic_ns()
                if (issued := next(delivery, None)) is None:
                    return
                timing.arrived()
                arrived = monotonic_ns()
                made = delivery.hand_over(issued, progress.epoch, progress.batch)
                self._failure_log.check(made.failures)
                self.last_valid = torch.from_numpy(made.valid)
                self._failure_log.add(made.failures)
                if ahead is not None:
                    ahead.ask(progress.batch + 1)
                timing.got(len(made.valid))
                if trace is not None:
                    trace.handed_over((progress.epoch, progress.batch), begun, arrived)
                only = [made.batch]
                del issued, made  # so that the consumer has the only reference to the batch
                progress.fresh = False
                progress.batch += 1  # last: a Ctrl-C before this line loses no batch
                yield only.pop()
                self._auto = delivery.auto.state

    def _parts(self) -> LoaderParts:
        """What batches are made of. With `cache="device"` other consumers wait until the first has decoded all."""
        if self.options.cache is not None:
            with self._decoding_all:
                if self._resident is None:
                    self._resident = fill(self._spec, self._resources, self._stages, self._tally)
        return LoaderParts(self._spec, self._epochs, self._resources, self._resident)

    def _delivery(
        self, contexts: Contexts, span: tuple[int, int, int], ready: Callable[[int], None] | None
    ) -> Delivery:
        self._resources.begin_transfer()  # first: memory allocated during a capture would break the capture
        return Delivery(self._parts(), contexts, span, self._auto, ready)


_FIXED = {each.name for each in fields(LoaderOptions)} | {"dataset", "options", "sampler", "batch_sampler"}


def _anew(dataset: FastDataset, options: dict[str, Any], here: tuple[int, int]) -> FastLoader:
    loader = FastLoader(dataset, **options)
    loader._course.load(here)
    return loader
