"""watch(): a meter around any loader."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from iofast.errors import OptionError, shown
from iofast.meter.clock import StallClock
from iofast.meter.page import LoaderInfo
from iofast.meter.stats import MeterStats

if TYPE_CHECKING:
    import torch

Batch = TypeVar("Batch")

_DEPTH = 4  # of nested lists and dictionaries in the search for a tensor
_FIELDS = 8  # entries of each in that search: a batch may be a list of ten thousand strings
_IMAGE = 3  # dimensions: a list of such tensors is a list of images


def watch(loader: Iterable[Batch], *, name: str | None = None, device: object = None) -> Meter[Batch]:
    """Measure how long training waits for the batches of `loader`, and iterate over the meter instead of it.

    `loader` may be any iterable: a torch DataLoader, a FastLoader, a list. `name` is its name in `iofast monitor`
    (default: its class). `device` (a string or torch.device) is where training runs: a CUDA device is measured by its
    own clock. By default this is the current CUDA device, if CUDA is in use when a pass begins.

        meter = watch(loader)
        for images, labels in meter:
            with meter.step("forward"): ...
        print(meter.stats)

    Raises `OptionError` if `loader` is not iterable, `name` is not a str, or `device` is not found.
    """
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise OptionError(f"watch takes an iterable of batches, found {type(loader).__name__}")
    if not isinstance(name, str | None):
        raise OptionError(f"name must be a str, found {shown(name)}")
    return Meter(loader, name, None if device is None else str(checked_device(device)))


def checked_device(device: Any) -> torch.device:
    """Return a device of torch; one that torch does not know or see raises OptionError."""
    import torch

    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise OptionError(
            f"device must be one that torch knows, such as 'cpu' or 'cuda', found {shown(device)}"
        ) from None
    if checked.type == "cuda" and not 0 <= (checked.index or 0) < torch.cuda.device_count():
        raise OptionError(f"device {device} not found: torch sees {torch.cuda.device_count()} CUDA devices")
    return checked


class Meter(Iterable[Batch], Generic[Batch]):
    """A loader that measures; made by `watch`. All other attributes are those of the wrapped loader.

    `stats` are the measurements so far, and `step` names a part of a step. A FastLoader measures itself, and its meter
    reads that clock, so nothing is counted twice.
    """

    def __init__(self, loader: Iterable[Batch], name: str | None, device: str | None) -> None:
        self.loader = loader
        own = getattr(loader, "clock", None)
        self._measures_itself = isinstance(own, StallClock)
        self.clock = own if isinstance(own, StallClock) else StallClock(_described(loader, device))
        if name is not None:
            self.clock.slot.info = replace(self.clock.slot.info, name=name)
        if device is not None:
            self.clock.device = device

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader) if self._measures_itself else _Batches(self.loader, self.clock)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type] # a loader without length raises the right TypeError

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # during unpickling, and what copy looks up
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"watch({self.loader!r})"

    @property
    def stats(self) -> MeterStats:
        """The measurements so far."""
        return self.clock.stats

    def step(self, name: str) -> AbstractContextManager[object]:
        """Measure a part of the step under a name: `with meter.step("forward"):`."""
        return self.clock.step(name)


class _Batches(Iterator[Batch]):
    """One pass over the loader. It keeps no batch, so the consumer alone decides when memory is freed."""

    def __init__(self, loader: Iterable[Batch], clock: StallClock) -> None:
        self._pass = clock.begin()
        self._pass.waiting()
        self._batches = iter(loader)
        self._pass.began()

    def __next__(self) -> Batch:
        self._pass.waiting()
        try:
            batch = next(self._batches)
        except BaseException:  # StopIteration too: there is no batch
            self._pass.left()
            raise
        count = None
        with contextlib.suppress(Exception):  # a batch may be anything, and its attributes may raise anything
            count = samples(batch)
        self._pass.got(count)
        return batch


def samples(batch: Any, depth: int = _DEPTH) -> int | None:
    """Return a batch's number of samples: its first tensor's first dimension, or the length of a list of images."""
    if not isinstance(batch, list | tuple):  # checked first: the usual case, and the fastest check
        if isinstance(shape := getattr(batch, "shape", None), tuple):
            return int(shape[0]) if shape else None
        if not isinstance(batch, Mapping):
            return None
        batch = list(batch.values())
    for field in batch[:_FIELDS] if depth else ():
        if isinstance(field, list) and field and all(len(getattr(each, "shape", ())) == _IMAGE for each in field):
            return len(field)  # images of different sizes
        if (count := samples(field, depth - 1)) is not None:
            return count
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
    """Return a positive int attribute, 0 if there is none."""
    value = getattr(loader, name, None)
    return value if isinstance(value, int) and value > 0 else 0


def _rank() -> tuple[int | None, int]:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None, 0
    return distributed.get_rank(), distributed.get_world_size()
