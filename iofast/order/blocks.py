"""Orders for slow disks and networks: runs of neighbouring samples, and fixed ranges of samples for each node."""

import numpy as np

from iofast.arguments import checked, integer
from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, Population
from iofast.order.cycles import SAME_PILE
from iofast.order.orders import Sequential, Shuffled
from iofast.order.permutation import MAX_SAMPLES, key_word, permuted, permuted_each, permuted_groups, streams


@checked(block=integer(1, MAX_SAMPLES), window=integer(1, MAX_SAMPLES))
class Blocks(Mode):
    """Blocks of `block` neighbouring samples in random order, then shuffled inside each window of `window` blocks.

    Every epoch is a full permutation, and 10^10 samples need no more memory than ten. The samples of a window are read
    from its blocks only: 64 runs of 64 neighbours by default. 64 packed photographs of 28 kB are one read of 1.8 MB. On
    a disk that reads 100 MB/s a seek of 8 ms takes less than a third of that time. The 64 runs together, 113 MB, fit
    into the page cache.

    Mixing: each epoch draws anew where blocks begin, which blocks share a window, and the order inside a window. A
    sample is equally likely at every position. But neighbours come in the same window: (block-1) / (block·window-1) of
    the pairs of samples in a batch are from one block, 1.5 % by default, against almost none in a full shuffle. That
    matters if neighbours are alike. In a set stored class by class, a batch of 256 has samples of at most 64 blocks,
    and thus about four of each of 64 classes. Pack such a set with `--shuffle SEED`, or use smaller blocks and larger
    windows.
    """

    block: int = 64
    window: int = 64

    def __post_init__(self) -> None:
        if self.block * self.window > MAX_SAMPLES:
            raise OptionError(f"block x window must be at most {MAX_SAMPLES}, found {self.block} x {self.window}")

    def _order(self, binding: Binding) -> Order:
        return _Blocks(self, binding.population.count, binding.seed)


class _Blocks(Order):
    """Full blocks are permuted over the first places of an epoch; a shorter last block stays at its end.

    Block 0 begins at a random sample of the ring of all samples. This makes every sample exactly equally likely at
    every position.
    """

    mode = "blocks"

    def __init__(self, options: Blocks, count: int, seed: int) -> None:
        super().__init__(count, count, seed)
        self._block, self._window = options.block, options.window
        self._span = options.block * options.window
        self._full = count // options.block  # blocks; a shorter one may follow

    def _indices(self, at: EpochPositions) -> Indices:
        key = f"iofast order {self.seed} {at.epoch} blocks"
        places, offsets = np.divmod(self._in_windows(at, key), self._block)
        if self._full:
            last = places == self._full
            places = np.where(last, places, permuted(self._full, key, np.where(last, 0, places)))
        first = int(key_word(f"{key} begin")) % self.count
        return (places * self._block + offsets + first) % self.count

    def _in_windows(self, at: EpochPositions, key: str) -> Indices:
        """The positions, permuted inside each window."""
        word = key_word(f"{key} windows")
        windows, places = np.divmod(at.positions, self._span)
        full = self.length // self._span  # windows; a shorter one may follow
        for size, inside in ((self._span, windows < full), (self.length % self._span, windows == full)):
            if inside.any():
                places[inside] = permuted_groups(size, word, windows[inside], places[inside])
        return windows * self._span + places

    def _options(self) -> dict[str, object]:
        return {"block": self._block, "window": self._window}


@checked(groups=integer(1, MAX_SAMPLES))
class Grouped(Mode):
    """Equal parts of each batch from each of `groups` fixed ranges of neighbouring samples.

    The ranges are the same in every epoch; the first `count % groups` of them have one sample more than the others.
    Each has an order of its own (`order`, default `Shuffled()`). A full global batch of B positions has B / groups
    samples of each range, range after range. The last positions of an epoch, fewer than B, have the rest of each range.

    If the number of ranks divides `groups`, each rank reads only its own ranges in full batches. Nodes with consecutive
    ranks then read a stored set about once between them, and each keeps the same part in its cache. Batches depend on B
    alone, so a run resumes exactly on fewer nodes, which take over the other ranges.

    A rank gets no samples of other ranges: pack a set that is stored class by class with `--shuffle SEED`. B must be a
    multiple of `groups`. `order` must be `Sequential`, `Shuffled` or `Blocks`.
    """

    groups: int = 64
    order: Mode | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.order, Sequential | Shuffled | Blocks | None):  # as `_permuted` knows
            expected = "Sequential(), Shuffled() or Blocks()"
            raise OptionError(f"Grouped: order must be {expected}, found {shown(self.order)}")

    def _order(self, binding: Binding) -> Order:
        return _Grouped(self.groups, self.order or Shuffled(), binding)


class _Grouped(Order):
    mode = "grouped"

    def __init__(self, groups: int, order: Mode, binding: Binding) -> None:
        count, batch = binding.population.count, binding.global_batch
        if groups > count:
            raise OptionError(f"Grouped: groups must be at most the number of samples, {count}, found {groups}")
        if batch % groups:
            expected = f"a multiple of groups, {groups}"
            raise OptionError(f"Grouped: the global batch (batch_size x world_size) must be {expected}, found {batch}")
        super().__init__(count, count, binding.seed)
        self._groups, self._order, self._batch = groups, order, batch
        self._size, self._longer = divmod(count, groups)  # of a range; the first `longer` ones have one more

    def _starts(self, groups: Indices, size: int) -> Indices:
        """Where groups begin in a row of them, if they have `size` elements and the first ones have one more."""
        return groups * size + np.minimum(groups, self._longer)

    def _indices(self, at: EpochPositions) -> Indices:
        groups, places = self._places(at)
        key = f"iofast order {self.seed} {at.epoch} groups"
        return self._starts(groups, self._size) + _permuted(self._order, key, groups, self._counts(groups), places)

    def _places(self, at: EpochPositions) -> tuple[Indices, Indices]:
        """The group of each position, and the place in the order of its group."""
        share = self._batch // self._groups
        batches, rows = np.divmod(at.positions, self._batch)
        groups, places = np.divmod(rows, share)
        places += batches * share
        full = self.length // self._batch  # batches
        if at.most >= full * self._batch:
            late = batches == full
            starts = self._starts(np.arange(self._groups), self._size - full * share)
            groups[late] = np.searchsorted(starts, rows[late], side="right") - 1
            places[late] = full * share + rows[late] - starts[groups[late]]
        return groups, places

    def _counts(self, groups: Indices) -> Indices:
        return self._size + (groups < self._longer)

    def _replacement(self, at: EpochPositions, attempts: Indices) -> Indices:
        groups, _ = self._places(at)
        own = self._starts(groups, self._size) + self._drawn(at, attempts, self._counts(groups))
        return np.where(attempts > SAME_PILE, super()._replacement(at, attempts), own)

    def _options(self) -> dict[str, object]:
        order = self._order.bind(Population(self.count), self.seed)
        return {"groups": self._groups, "batch": self._batch, "order": order.describe()}


def _permuted(mode: Mode, key: str, groups: Indices, counts: Indices, places: Indices) -> Indices:
    """The samples at places of the groups' own orders, counted from the start of each group; all of shape (N,).

    For all groups at once: binding `mode` to each group takes 2 to 18 ms for 256 positions of 64 groups, since their
    tables and blocks do not fit into the caches of `permutation`.
    """
    if isinstance(mode, Blocks):
        return _blocks_each(mode, key, groups, counts, places)
    return permuted_each(counts, streams(key_word(key), groups), places) if isinstance(mode, Shuffled) else places


def _blocks_each(options: Blocks, key: str, groups: Indices, counts: Indices, positions: Indices) -> Indices:
    """As `_Blocks`, with a permutation of 0 … counts[i]-1 for each group: all of shape (N,), 0.4 to 0.9 ms for 256."""
    begins, inside, among = (streams(key_word(f"{key} {name}"), groups) for name in ("begin", "windows", "blocks"))
    span = options.block * options.window
    windows, places = np.divmod(positions, span)
    starts = windows * span
    places = starts + permuted_each(np.minimum(counts - starts, span), streams(inside, windows), places)
    places, offsets = np.divmod(places, options.block)
    full = counts // options.block
    rows = np.flatnonzero(places < full)
    places[rows] = permuted_each(full[rows], among[rows], places[rows])
    first = (begins % counts.astype(np.uint64)).astype(np.int64)
    samples: Indices = (places * options.block + offsets + first) % counts
    return samples
