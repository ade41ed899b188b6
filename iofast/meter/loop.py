"""watch(): a meter round any loader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from iofast.errors import OptionError, shown
from iofast.meter.clock import StallClock, cuda_device
from iofast.meter.page import LoaderInfo
from iofast.meter.stats import MeterStats

Batch = TypeVar("Batch")

_DEPTH = 4  # of nested lists and dictionaries that are searched for a tensor,
_FIELDS = 8  # and how many entries of each: a batch may be a list of ten thousand strings
_IMAGE_DIMENSIONS = 3  # a list of such tensors is a list of images


def watch(loader: Iterable[Batch], *, name: str | None = None, device: object = None) -> Meter[Batch]:
    """Measure how long training waits for the batches of `loader`, and iterate over the meter instead of it.

    Any iterable will do: a torch DataLoader, a FastLoader, a list. `name` is what `iofast monitor` calls it (by default
    its class). `device` (a string or torch.device): where training runs, so that a CUDA device's own clock is used;
    found by itself where CUDA is in use when a pass begins.

        meter = watch(loader)
        for images, labels in meter:
            with meter.step("forward"): ...
        print(meter.stats)

    Raises `OptionError` where `loader` is no iterable, `name` no str, or `device` is not here.
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise OptionError(f"watch takes an iterable of batches, found {type(loader).__name__}")
    if not isinstance(name, str | None):
        raise OptionError(f"name must be a str, found {shown(name)}")
    return Meter(loader, name, cuda_device(device))


class Meter(Iterable[Batch], Generic[Batch]):
    """Stands for its loader, and measures; made by `watch`. What it does not know itself, it asks its loader.

    `stats` says what was measured so far and `step` names a part of a step. A FastLoader measures itself: its meter
    reads that clock, so nothing is counted twice.
    """

    def __init__(self, loader: Iterable[Batch], name: str | None, device: str | None) -> None:
        self.loader = loader
        own = getattr(loader, "clock", None)
        self._measures_itself = isinstance(own, StallClock)
        self.clock = own if isinstance(own, StallClock) else StallClock(_described(loader, device))
        if name is not None:
            self.clock.info = replace(self.clock.info, name=name)
        if device is not None:
            self.clock.device = device

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader) if self._measures_itself else _Batches(self.loader, self.clock)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type] # its TypeError is the right one for a loader without length

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # while it is being unpickled, and what copy asks of an object
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"watch({self.loader!r})"

    @property
    def stats(self) -> MeterStats:
        """What was measured so far."""
        return self.clock.stats

    def step(self, name: str) -> AbstractContextManager[object]:
        """`with meter.step("forward"):` measures a part of the step under that name."""
        return self.clock.step(name)


class _Batches(Iterator[Batch]):
    """One pass over the loader. It keeps no batch, so that its memory is free when the consumer lets go of it."""

    def __init__(self, loader: Iterable[Batch], clock: StallClock) -> None:
        self._pass = clock.begin()
        self._kind: type | None = None  # of the last batch, whose samples its entry `_at` said by its length,
        self._at: Any = 0
        self._field: type | None = None  # which was of this kind
        self._pass.waiting()
        self._batches = iter(loader)
        self._pass.began()

    def __next__(self) -> Batch:
        self._pass.waiting()
        try:
            batch = next(self._batches)
        except BaseException:  # also the end: there is no batch
            self._pass.left()
            raise
        try:  # where the last one said it: after a step has emptied the caches, `samples` takes 17 us more, and the
            # len() of a tensor, which is written in Python, 15
            hinted = type(batch) is self._kind and type(field := batch[self._at]) is self._field  # type: ignore[index]
            count = field.shape[0] if hinted else self._samples(batch)
        except Exception:  # a batch may be anything, and asking it may raise anything; it has been taken, and is theirs
            count = self._samples(batch)
        self._pass.got(count)
        return batch

    def _samples(self, batch: Batch) -> int | None:
        """How many samples it has, None where nobody knows; and for the next one, where that stood."""
        self._kind = count = None
        with contextlib.suppress(Exception):
            count = samples(batch)
            if count is not None and type(batch) in (list, tuple, dict):  # those of others may change when asked
                self._at = next(iter(batch)) if isinstance(batch, dict) else 0
                field = batch[self._at]  # type: ignore[index]
                if _dimensions(field) and field.shape[0] == count:
                    self._kind, self._field = type(batch), type(field)
        return count


def samples(batch: object, depth: int = _DEPTH) -> int | None:
    """How many samples a batch has: the first dimension of its first tensor, or the length of a list of images."""
    if not isinstance(batch, list | tuple):  # asked first: it is what batches are, and the quickest to find out
        dimensions = _dimensions(batch)
        if dimensions is not None:
            return int(batch.shape[0]) if dimensions else None  # type: ignore[attr-defined]
        if not isinstance(batch, Mapping):
            return None
        batch = list(batch.values())
    if not depth:
        return None
    for field in batch[:_FIELDS]:
        if isinstance(field, list) and field and all(_dimensions(each) == _IMAGE_DIMENSIONS for each in field):
            return len(field)  # images of different sizes, not stacked
        found = samples(field, depth - 1)
        if found is not None:
            return found
    return None


def _dimensions(value: object) -> int | None:
    """Of a tensor or array; None for anything else, and for one that does not say (nested tensors raise)."""
    try:
        shape = value.shape  # type: ignore[attr-defined]
        return len(shape) if isinstance(shape, tuple) else None
    except (AttributeError, RuntimeError):
        return None


def _described(loader: object, device: str | None) -> LoaderInfo:
    workers = _whole(loader, "num_workers")
    rank, world_size = _rank()
    return LoaderInfo(
        name=type(loader).__name__,
        num_workers=workers,
        prefetch=workers * _whole(loader, "prefetch_factor"),
        batch_size=_whole(loader, "batch_size"),
        device="cpu" if device is None else device,
        rank=rank,
        world_size=world_size,
    )


def _whole(loader: object, name: str) -> int:
    """An attribute that is a number of things; 0 where the loader has none of that name."""
    value = getattr(loader, name, None)
    return value if isinstance(value, int) and value > 0 else 0


def _rank() -> tuple[int | None, int]:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None, 0
    return distributed.get_rank(), distributed.get_world_size()
