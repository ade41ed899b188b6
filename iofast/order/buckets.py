"""Size buckets: batches of images with similar aspect ratios, so that little is cut off or padded."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import check_integer
from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, Population, checksum
from iofast.order.permutation import key_word, permuted, permuted_each, streams

MAX_SIDE = 1 << 24
Sizes = tuple[tuple[int, int], ...]


def nearest(
    sizes: Sequence[tuple[int, int]],
    widths: NDArray[np.integer | np.floating],
    heights: NDArray[np.integer | np.floating],
) -> NDArray[np.int64]:
    """The number of the size (height, width) nearest to each image in log(width / height): int64, `widths`' shape.

    An image of unknown size (0) counts as square. Only division and square root are used, which round equally on every
    machine; with logarithms an image halfway between two sizes could change its bucket.
    """
    ratios = np.array([width / height for height, width in sizes])
    by_ratio = np.argsort(ratios, kind="stable")
    ordered = ratios[by_ratio]
    known = (widths > 0) & (heights > 0)
    images = np.where(known, widths, 1) / np.where(known, heights, 1)
    return by_ratio[np.searchsorted(np.sqrt(ordered[:-1] * ordered[1:]), images)].astype(np.int64)


@dataclass(frozen=True)
class Buckets(Mode):
    """Batches of one output size each; each sample belongs to the size of the nearest aspect ratio.

    `sizes` are (height, width) pairs of different aspect ratios. A batch of all ranks together holds samples of one
    size. Batches come in random order, and the samples of a size in a new permutation in each epoch. The last batch of
    a size is filled up with the first samples of that permutation, so an epoch is slightly longer than the dataset;
    `filling` marks these positions. They stand at even distances in the batch, so that each rank's slice has its part.
    Takes 8 bytes per sample, and reads the sizes of all images when it is bound.
    """

    sizes: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", _checked_sizes(self.sizes))

    def _order(self, binding: Binding) -> Order:
        return _Buckets(tuple(self.sizes), *binding)


class _Buckets(Order):
    mode = "buckets"

    def __init__(self, sizes: Sizes, population: Population, seed: int, global_batch: int) -> None:
        assert population.sizes is not None  # a dataset has them
        bucket = nearest(sizes, *population.sizes())
        self._sizes, self._batch = sizes, global_batch
        self._samples = np.argsort(bucket, kind="stable")
        self._counts = np.bincount(bucket, minlength=len(sizes))
        self._bases = np.cumsum(self._counts) - self._counts
        batches = -(-self._counts // global_batch)
        self._ends = np.cumsum(batches)
        self._starts = self._ends - batches
        self._checksum = checksum(bucket)
        super().__init__(population.count, int(self._ends[-1]) * global_batch, seed)

    def filling(self, epoch: int, positions: Indices) -> NDArray[np.bool_]:
        positions = np.asarray(positions, np.int64)
        if (at := self._checked(epoch, positions)) is None:
            return super().filling(epoch, positions)
        buckets, places = self._places(at)
        filled: NDArray[np.bool_] = places >= self._counts[buckets]
        return filled.reshape(positions.shape)

    def _indices(self, at: EpochPositions) -> Indices:
        buckets, places = self._places(at)
        counts = self._counts[buckets]
        key = key_word(f"iofast order {self.seed} {at.epoch} buckets")
        elements = permuted_each(counts, streams(key, buckets), places % counts)
        indices: Indices = self._samples[self._bases[buckets] + elements]
        return indices

    def _places(self, at: EpochPositions) -> tuple[Indices, Indices]:
        """The bucket of each position, and the place in the bucket's permutation (beyond its end: filling)."""
        batches, rows = np.divmod(at.positions, self._batch)
        batches = permuted(int(self._ends[-1]), f"iofast order {self.seed} {at.epoch} batches", batches)
        buckets = np.searchsorted(self._ends, batches, side="right")
        first = (batches - self._starts[buckets]) * self._batch
        own = np.minimum(self._counts[buckets] - first, self._batch)  # samples of the batch without filling
        before = rows * own // self._batch  # of these in earlier rows
        filled = (rows + 1) * own // self._batch == before
        return buckets, first + np.where(filled, own + rows - before, before)

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        buckets, _ = self._places(at)
        elements = self._drawn(at, attempts, self._counts[buckets])
        indices: Indices = self._samples[self._bases[buckets] + elements]
        return indices

    def _options(self) -> dict[str, object]:
        return {
            "sizes": [list(size) for size in self._sizes],
            "batch": self._batch,
            "buckets": {"count": self.count, "crc32c": self._checksum},
        }


def _checked_sizes(sizes: Iterable[tuple[int, int]]) -> Sizes:
    try:
        pairs = [(height, width) for height, width in sizes]
    except (TypeError, ValueError):
        raise OptionError(f"sizes must be pairs (height, width), found {shown(sizes)}") from None
    if not pairs:
        raise OptionError("sizes must be at least one pair (height, width), found none")
    ratios: dict[tuple[int, int], tuple[int, int]] = {}
    for height, width in pairs:
        checked = check_integer("height", height, 1, MAX_SIDE), check_integer("width", width, 1, MAX_SIDE)
        ratio = checked[0] // math.gcd(*checked), checked[1] // math.gcd(*checked)
        if ratio in ratios:
            raise OptionError(f"sizes must differ in aspect ratio, found {ratios[ratio]} and {checked}")
        ratios[ratio] = checked
    return tuple(ratios.values())
