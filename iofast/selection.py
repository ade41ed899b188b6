"""Which of a reader's records a dataset has, and in which order: a split, a subset, what a filter leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.containers.manifest import WHOLE, Manifest
from iofast.errors import OptionError, shown

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """What a filter gets: one row per sample.

    `index` is the sample's place in the split; `width` and `height` are in pixels as the dataset gives the image, 0
    where unknown; `label` is -1 where there is none.
    """

    index: Indices
    label: Indices
    width: NDArray[np.int32]
    height: NDArray[np.int32]


Filter = Callable[[Columns], ArrayLike]


class Selection:
    """Samples 0 … len-1, each the number of a record. Without a subset it is as small for ten million as for ten."""

    def __init__(self, ranges: Sequence[tuple[int, int]], picked: Indices | None = None) -> None:
        self._ranges, self._picked = list(ranges), picked
        self._ends = np.cumsum([stop - start for start, stop in self._ranges], dtype=np.int64)

    def __len__(self) -> int:
        if self._picked is not None:
            return len(self._picked)
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def is_subset(self) -> bool:
        """Whether `pick` made it."""
        return self._picked is not None

    def resolve(self, indices: Indices) -> Indices:
        """The records that are the samples `indices`, which must be in range."""
        if self._picked is not None:
            return self._picked[indices]
        if len(self._ranges) == 1:
            return indices + self._ranges[0][0]
        shifts = np.array([stop for _, stop in self._ranges], np.int64) - self._ends
        dense: Indices = indices + shifts[np.searchsorted(self._ends, indices, side="right")]
        return dense

    def wrap(self, indices: Indices) -> Indices:
        """`indices` in 0 … len-1; negative ones count from the end. Raises `IndexError`."""
        wrapped = np.where(indices < 0, indices + len(self), indices)
        if wrapped.size and not 0 <= int(wrapped.min()) <= int(wrapped.max()) < len(self):
            outside = indices[(wrapped < 0) | (wrapped >= len(self))][0]
            raise IndexError(f"index {outside} is out of range for a dataset of {len(self)} samples")
        return wrapped

    def pick(self, name: str, wanted: ArrayLike) -> Selection:
        """The samples `wanted` alone, in that order, repeats and all. `name` is what messages call them."""
        given = _array(name, wanted)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise OptionError(f"{name} must be whole numbers in one dimension, found {given.dtype} {given.shape}")
        try:
            if given.dtype == np.uint64:  # one that does not fit would become negative, and count from the end
                given = np.minimum(given, np.uint64(np.iinfo(np.int64).max))
            picked = self.resolve(self.wrap(given.astype(np.int64)))
        except IndexError as error:
            raise OptionError(f"{name}: {error}") from None
        return Selection(self._ranges, picked)

    def keep(self, chosen: ArrayLike) -> Selection:
        """What a filter's answer leaves: a mask with a bool for each sample, or the places of those to keep."""
        answer = _array("what filter returns", chosen)
        if answer.dtype != np.bool_:
            return self.pick("what filter returns", answer)
        if answer.shape != (len(self),):
            raise OptionError(f"filter must return a mask of shape ({len(self)},), found {answer.shape}")
        return self.pick("filter", np.flatnonzero(answer))

    def followed_by(self, other: Selection, records: int) -> Selection:
        """These samples, then those of `other`, whose records come behind `records` of these."""
        moved = [(start + records, stop + records) for start, stop in other._ranges]
        ranges = self._ranges + moved
        if self._ranges and moved and self._ranges[-1][1] == moved[0][0]:  # one range, as of a reader of both
            ranges = [*self._ranges[:-1], (self._ranges[-1][0], moved[0][1]), *moved[1:]]
        if not self.is_subset and not other.is_subset:
            return Selection(ranges)
        both = self.resolve(np.arange(len(self))), other.resolve(np.arange(len(other))) + records
        return Selection(ranges, np.concatenate(both))

    def parts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many samples are of each of the joined datasets, whose records are so many.

        One number for all where they do not stand one dataset after another: a subset may have any order.
        """
        ends = np.cumsum(sizes)
        if self._picked is not None:
            owners = np.searchsorted(ends, self._picked, side="right")
            if (owners[1:] < owners[:-1]).any():
                return (len(self),)
            return tuple(np.bincount(owners, minlength=len(sizes)).tolist())
        starts = ends - sizes
        counts = [
            sum(max(0, min(stop, end) - max(start, first)) for start, stop in self._ranges)
            for first, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return tuple(counts)

    def fingerprint(self, records: str) -> str:
        """A SHA-256 that is the same for the same samples of records with the fingerprint `records`."""
        digest = hashlib.sha256(f"{records} {self._ranges}".encode())
        if self._picked is not None:
            digest.update(np.ascontiguousarray(self._picked, "<i8").data)
        return f"sha256:{digest.hexdigest()}"


def _array(name: str, values: ArrayLike) -> NDArray[np.generic]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor's, on a GPU or with a gradient
        raise OptionError(f"{name} must be an array in one dimension: {' '.join(str(error).split())}") from None


def of_split(manifest: Manifest, split: str | None, path: object) -> Selection:
    """The samples of a split. Raises `OptionError` where there is none of that name, or several and none was named."""
    names = list(manifest.splits)
    if not isinstance(split, str | None):
        raise OptionError(f"split must be the name of a split, found {shown(split)}")
    if split is None and len(names) > 1:
        raise OptionError(f"{path} has the splits {', '.join(names)}: say split= one of them, or split={WHOLE!r}")
    if split is None or split == WHOLE:
        return Selection([(0, manifest.count)])
    if split not in manifest.splits:
        raise OptionError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return Selection([(start, stop) for start, stop in manifest.splits[split] if stop > start])
