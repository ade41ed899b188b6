"""The place of a loader as a small dictionary: exact resume at any batch, with any number of ranks and workers.

A state names the next global batch. Batches made ahead but not returned are not part of it. All ranks have the same
state, so that of any rank serves all.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iofast.errors import StateError, shown
from iofast.order import MAX_SEED

VERSION = 1
_WHOLE = ("version", "epoch", "batch", "seed", "B")
_MEANINGS = {
    "version": "another version of the state",
    "fingerprint": "other data",
    "seed": "another seed",
    "order": "another order",
    "B": "another global batch (batch_size times world_size)",
}
_MOST = 1000  # characters of an order's options in a message

Place = tuple[int, int]  # epoch, and global batch in it


@dataclass(slots=True)
class Progress:
    """The place of an iterator: it has returned `batch` of the `count` global batches of `epoch`."""

    epoch: int
    batch: int
    count: int
    fresh: bool = True  # it has returned nothing yet
    confirmed: bool = False  # `set_epoch` named its epoch, so the next iterator continues from here

    @property
    def next(self) -> Place:
        """The place to continue at; after a finished epoch the beginning of the next."""
        return (self.epoch + 1, 0) if self.batch >= self.count else (self.epoch, self.batch)


class Course:
    """The places where a loader's iterators begin, one after another."""

    def __init__(self) -> None:
        self._start: Place = (0, 0)  # of the first iterator, or the first one after `load`
        self._newest: Progress | None = None  # of the newest iterator since then
        self._iterator: weakref.ref[object] | None = None  # the newest iterator itself
        self._other: int | None = None  # the epoch that `set_epoch` named since then, if not the newest iterator's

    @property
    def here(self) -> Place:
        """The place of the newest iterator, or the place set since it began."""
        if self._newest is None:
            return self._start
        return self._newest.next if self._other is None else (self._other, 0)

    @property
    def next(self) -> Place:
        """Where the next iterator begins. It resumes an epoch that was left only if `set_epoch` named that epoch.

        An iterator that was dropped before it returned a batch uses up no epoch: Lightning makes one as a check.
        """
        newest = self._newest
        if newest is None or newest.confirmed or self._other is not None:
            return self.here
        if newest.fresh and self._iterator is not None and self._iterator() is None:
            return newest.next
        return newest.epoch + 1, 0

    @property
    def abandoned(self) -> Progress | None:
        """The unfinished epoch that the next iterator would leave behind, unless `set_epoch` has named an epoch."""
        newest = self._newest
        if newest is None or newest.confirmed or self._other is not None:
            return None
        return newest if 0 < newest.batch < newest.count else None

    def set_epoch(self, epoch: int, *, anew: bool = False) -> None:
        """Let the next iterator begin or resume `epoch`; with `anew` resume it only if nothing was returned yet.

        An iterator that has returned nothing moves to `epoch` too: a framework may call `iter` before `set_epoch`.
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
        """Make the newest iterator: `made` of its progress."""
        newest = Progress(*self.next, count)
        self._newest, self._other = newest, None
        iterator = made(newest)
        self._iterator = weakref.ref(iterator)
        return iterator


@dataclass(frozen=True, slots=True)
class Identity:
    """What a state must agree with.

    seed         of order and choices
    B            batch_size times world_size
    order        the order's mode and all of its options
    fingerprint  of the data
    checksum     epoch -> checksum of its order, None if the options determine the order
    """

    seed: int
    B: int
    order: Mapping[str, Any]
    fingerprint: str
    checksum: Callable[[int], str | None]

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state of a loader that continues at global batch `batch` of `epoch`."""
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
        """The place in a state of this loader, which has `count` batches an epoch.

        Raises `StateError` for what differs, or what the state lacks.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"a loader's state must be a mapping, found {type(state).__name__}")
        epoch = state.get("epoch", 0)
        own = self.state(epoch if isinstance(epoch, int) and 0 <= epoch <= MAX_SEED else 0, 0)
        if lacking := [name for name in own if name not in state]:
            raise StateError(f"a loader's state must have {', '.join(own)}, found one without {', '.join(lacking)}")
        for name in _WHOLE:
            value = state[name]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SEED:
                raise StateError(
                    f"{name} of a loader's state must be a whole number up to {MAX_SEED}, found {shown(value)}"
                )
        for name, what in _MEANINGS.items():
            if not _equal(state[name], own[name]):
                found = shown(state[name], _MOST)
                raise StateError(f"the state is of {what}: expected {name} {own[name]!r}, found {found}")
        epoch, batch = state["epoch"], state["batch"]
        if batch > count:
            raise StateError(f"a state of epoch {epoch} must be at batch {count} or before, found batch {batch}")
        return (epoch + 1, 0) if batch == count else (epoch, batch)


def _equal(theirs: object, own: object) -> bool:
    """Whether a value of a state is this loader's. It may be anything: an array compares to an array."""
    try:
        return bool(theirs == own)
    except Exception:
        return False
