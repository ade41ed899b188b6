"""The records of a dataset and their order: a split, a subset, a filter's choice."""

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
    """The argument of a filter, one row per sample. Labels and sizes are read when they are used, by functions.

    index          place of the sample in the split
    label          -1 for none
    width, height  in pixels as the dataset gives the image, 0 for unknown
    """

    index: Indices
    labels: Callable[[], Indices]
    sizes: Callable[[], tuple[NDArray[np.int32], NDArray[np.int32]]]

    @property
    def label(self) -> Indices:
        """Labels, int64 (N,)."""
        return self.labels()

    @property
    def width(self) -> NDArray[np.int32]:
        """Widths, int32 (N,)."""
        return self.sizes()[0]

    @property
    def height(self) -> NDArray[np.int32]:
        """Heights, int32 (N,)."""
        return self.sizes()[1]


Filter = Callable[[Columns], ArrayLike]


class Selection:
    """Samples 0 … len-1, each the number of a record: ranges, which take little memory, or a list that was picked."""

    def __init__(self, ranges: Sequence[tuple[int, int]], picked: Indices | None = None) -> None:
        self._ranges, self._picked = list(ranges), picked
        self._ends = np.cumsum([stop - start for start, stop in self._ranges], dtype=np.int64)

    def __len__(self) -> int:
        if self._picked is not None:
            return len(self._picked)
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def is_subset(self) -> bool:
        """Whether the samples were picked one by one."""
        return self._picked is not None

    def resolve(self, indices: Indices) -> Indices:
        """The records of the samples `indices`, int64, which must be in range."""
        if self._picked is not None:
            return self._picked[indices]
        if len(self._ranges) == 1:
            return indices + self._ranges[0][0]
        shifts = np.array([stop for _, stop in self._ranges], np.int64) - self._ends
        dense: Indices = indices + shifts[np.searchsorted(self._ends, indices, side="right")]
        return dense

    def wrap(self, indices: Indices) -> Indices:
        """`indices` as 0 … len-1; negative ones count from the end. Raises `IndexError`."""
        wrapped = np.where(indices < 0, indices + len(self), indices)
        if wrapped.size and not 0 <= int(wrapped.min()) <= int(wrapped.max()) < len(self):
            outside = indices[(wrapped < 0) | (wrapped >= len(self))][0]
            raise IndexError(f"index {outside} is out of range for a dataset of {len(self)} samples")
        return wrapped

    def pick(self, name: str, wanted: ArrayLike) -> Selection:
        """Only the samples `wanted`, in that order; they may repeat. `name` is theirs in messages."""
        indices = _array(name, wanted)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise OptionError(f"{name} must be whole numbers in one dimension, found {indices.dtype} {indices.shape}")
        try:
            if indices.dtype == np.uint64:  # large ones would become negative, and count from the end
                indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
            picked = self.resolve(self.wrap(indices.astype(np.int64)))
        except IndexError as error:
            raise OptionError(f"{name}: {error}") from None
        return Selection(self._ranges, picked)

    def keep(self, chosen: ArrayLike) -> Selection:
        """The samples that a filter keeps: `chosen` is a bool for each sample, or the places of those to keep."""
        answer = _array("what filter returns", chosen)
        if answer.dtype != np.bool_:
            return self.pick("what filter returns", answer)
        if answer.shape != (len(self),):
            raise OptionError(f"filter must return a mask of shape ({len(self)},), found {answer.shape}")
        return self.pick("filter", np.flatnonzero(answer))

    def followed_by(self, other: Selection, records: int) -> Selection:
        """These samples, then those of `other`, whose records come after the `records` records of these."""
        moved = [(start + records, stop + records) for start, stop in other._ranges]
        ranges = self._ranges + moved
        if self._ranges and moved and self._ranges[-1][1] == moved[0][0]:  # one range, as a reader of both has
            ranges = [*self._ranges[:-1], (self._ranges[-1][0], moved[0][1]), *moved[1:]]
        if not self.is_subset and not other.is_subset:
            return Selection(ranges)
        both = self.resolve(np.arange(len(self))), other.resolve(np.arange(len(other))) + records
        return Selection(ranges, np.concatenate(both))

    def parts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The number of samples of each joined dataset, whose numbers of records are `sizes`.

        A single number if the samples are not in the order of the datasets, as a subset may be.
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
        """A SHA-256 of the samples; `records` is the fingerprint of the records."""
        digest = hashlib.sha256(f"{records} {self._ranges}".encode())
        if self._picked is not None:
            digest.update(np.ascontiguousarray(self._picked, "<i8").data)
        return f"sha256:{digest.hexdigest()}"


def _array(name: str, values: ArrayLike) -> NDArray[np.generic]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor on a GPU or with a gradient
        raise OptionError(f"{name} must be an array in one dimension: {' '.join(str(error).split())}") from None


def of_split(manifest: Manifest, split: str | None, path: object) -> Selection:
    """The samples of a split. Raises `OptionError` for an unknown name, or for no name if there are several splits."""
    names = list(manifest.splits)
    if not isinstance(split, str | None):
        raise OptionError(f"split must be the name of a split, found {shown(split)}")
    if split is None and len(names) > 1:
        raise OptionError(f"{path} has the splits {', '.join(names)}: name one with split=, or give split={WHOLE!r}")
    if split is None or split == WHOLE:
        return Selection([(0, manifest.count)])
    if split not in manifest.splits:
        raise OptionError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return Selection([(start, stop) for start, stop in manifest.splits[split] if stop > start])
