"""Where a loader is, as a small dictionary: exact resume at any batch, at any number of ranks and workers.

A state says which global batch comes next. It holds nothing of what was made ahead: a batch that no consumer saw was
not returned. Every rank's state is the same, so any one of them serves all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iofast.errors import StateError, shown
from iofast.order import MAX_SEED

VERSION = 1
_WHOLE = ("version", "epoch", "batch", "seed", "B")
_MOST = 1000  # characters of an order's options in a message


Place = tuple[int, int]  # epoch, and global batch of it


@dataclass(slots=True)
class Progress:
    """One iterator's place: `batch` counts the global batches of `epoch` that it has returned, of `count` in all."""

    epoch: int
    batch: int
    count: int
    fresh: bool = True  # it has returned nothing yet
    confirmed: bool = False  # `set_epoch` named its epoch: the next iterator goes on behind it

    @property
    def next(self) -> Place:
        """The place to go on at; a finished epoch is the beginning of the one after."""
        return (self.epoch + 1, 0) if self.batch >= self.count else (self.epoch, self.batch)

    @property
    def unfinished(self) -> bool:
        """Whether batches were returned, and others are still to come."""
        return 0 < self.batch < self.count


class Course:
    """The places that a loader's iterators begin at, one after another."""

    def __init__(self) -> None:
        self._start: Place = (0, 0)  # of the first iterator, and of the first one after a state was loaded
        self._newest: Progress | None = None  # of the newest iterator since
        self._iterator: weakref.ref[object] | None = None  # the newest iterator itself
        self._other: int | None = None  # the epoch that `set_epoch` named since, where it is not the newest's

    @property
    def here(self) -> Place:
        """Where the newest iterator is, or the place that was set since it began."""
        if self._newest is None:
            return self._start
        return self._newest.next if self._other is None else (self._other, 0)

    @property
    def next(self) -> Place:
        """Where the next iterator begins. It goes on in an epoch that was left only if `set_epoch` named that epoch.

        An iterator that was dropped before it returned anything takes no epoch: Lightning makes one to see if it can.
        """
        newest = self._newest
        if newest is None or newest.confirmed or self._other is not None:
            return self.here
        if newest.fresh and self._iterator is not None and self._iterator() is None:
            return newest.next
        return newest.epoch + 1, 0

    @property
    def abandoned(self) -> Progress | None:
        """The unfinished epoch that the next iterator would leave behind, unless `set_epoch` has said what comes."""
        newest = self._newest
        said = newest is None or newest.confirmed or self._other is not None
        return newest if not said and newest is not None and newest.unfinished else None

    def set_epoch(self, epoch: int, *, anew: bool = False) -> None:
        """Let the next iterator begin `epoch`, or go on in it: with `anew` only where it has returned nothing yet.

        An iterator that has returned nothing begins `epoch` too, so a framework may call `iter` before `set_epoch`.
        """
        newest, self._other = self._newest, None
        if newest is None:
            self._start = self._start if self._start[0] == epoch else (epoch, 0)
            return
        if newest.fresh and newest.epoch != epoch:
            newest.epoch, newest.batch = epoch, 0
        newest.confirmed = newest.epoch == epoch and newest.batch < newest.count and (newest.fresh or not anew)
        if not newest.confirmed:
            self._other = epoch

    def load(self, place: Place) -> None:
        """Let the next iterator begin at `place`."""
        self._start, self._newest, self._iterator, self._other = place, None, None, None

    def begin(self, count: int, made: Callable[[Progress], Iterator[Any]]) -> Iterator[Any]:
        """The iterator that `made` makes of its progress, from now on the newest."""
        newest = Progress(*self.next, count)
        self._newest, self._other = newest, None
        iterator = made(newest)
        self._iterator = weakref.ref(iterator)
        return iterator


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state must agree with: `seed`, `B` (batch_size times world_size), `order` (its mode and all its options)
    and the `fingerprint` of what is read. `checksum(epoch)` is that of an epoch whose order the options do not tell.
    """

    seed: int
    B: int
    order: Mapping[str, Any]
    fingerprint: str
    checksum: Callable[[int], str | None]

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state of a loader that goes on at global batch `batch` of `epoch`."""
        return {
            "version": VERSION,
            "epoch": epoch,
            "batch": batch,
            "seed": self.seed,
            "B": self.B,
            "order": {**self.order, **({} if (found := self.checksum(epoch)) is None else {"checksum": found})},
            "fingerprint": self.fingerprint,
        }

    def place(self, state: Mapping[str, Any], count: int) -> Place:
        """The place of a state of this loader, which has `count` batches an epoch.

        Raises `StateError` that names what differs, or what a state lacks.
        """
        epoch = state.get("epoch", 0) if isinstance(state, Mapping) else 0
        own = self.state(epoch if isinstance(epoch, int) and 0 <= epoch <= MAX_SEED else 0, 0)
        if not isinstance(state, Mapping) or (lacking := [name for name in own if name not in state]):
            found = f"without {', '.join(lacking)}" if isinstance(state, Mapping) else type(state).__name__
            raise StateError(f"a loader's state has {', '.join(own)}; found one {found}")
        for name in _WHOLE:
            value = state[name]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEED:
                raise StateError(
                    f"{name} of a loader's state must be a whole number up to {MAX_SEED}, found {shown(value)}"
                )
        for name in ("version", "fingerprint", "seed", "order", "B"):
            if not _same(state[name], own[name]):
                raise StateError(_difference(name, state[name], own[name]))
        epoch, batch = state["epoch"], state["batch"]
        if batch > count:
            raise StateError(f"the state is at batch {batch} of epoch {epoch}, and this loader's epochs have {count}")
        return (epoch + 1, 0) if batch == count else (epoch, batch)


def _same(theirs: object, own: object) -> bool:
    """Of a state that may have come from anywhere: an array answers == with an array."""
    try:
        return bool(theirs == own)
    except Exception:
        return False


def _difference(name: str, theirs: object, own: object) -> str:
    what = {
        "version": "another version of the state",
        "fingerprint": "other data",
        "seed": "another seed",
        "order": "another order",
        "B": "another global batch (batch_size times world_size)",
    }[name]
    return f"the state is of {what}: it has {name} {shown(theirs, _MOST)}, this loader {own!r}"
