"""An order for reading a set over a network: fixed ranges of samples per node."""

import numpy as np

from iofast.arguments import checked, integer
from iofast.errors import OptionError, shown
from iofast.order.base import Binding, EpochPositions, Indices, Mode, Order, Population
from iofast.order.blocks import Blocks, blocks_each
from iofast.order.cycles import SAME_PILE
from iofast.order.orders import Sequential, Shuffled
from iofast.order.permutation import MAX_SAMPLES, key_word, permuted_each, streams


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
        return blocks_each(mode, key, groups, counts, places)
    return permuted_each(counts, streams(key_word(key), groups), places) if isinstance(mode, Shuffled) else places
