"""Block-local order: random enough to train from, sequential enough for a disk that seeks or a far shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iofast.errors import OptionError
from iofast.order.base import Binding, Indices, Mode, Order, Part, check_whole
from iofast.order.permutation import MAX_SAMPLES, key_word, permuted, permuted_groups


@dataclass(frozen=True)
class Blocks(Mode):
    """Blocks of `block` neighbouring samples in random order, then shuffled inside each window of `window` blocks.

    Every epoch is a full permutation, and needs no more memory for 10^10 samples than for ten. While a window's samples
    come, only its blocks are read: 64 runs of 64 neighbours by default. 64 packed photographs of 28 kB are one read of
    1.8 MB, and even on a disk that reads 100 MB/s a seek of 8 ms is less than a third of that time; the 64 runs
    together, 113 MB, fit into any page cache.

    How well it mixes: where blocks begin, which of them share a window, and the order inside a window are drawn anew
    for each epoch, and a sample is exactly as likely at one position as at any other. But neighbours come in the same
    window: of the pairs of samples in a batch, (block-1) / (block·window-1) are from one block, 1.5 % by default, where
    a full shuffle has next to none. That matters where neighbours are alike. A set stored class by class gives batches
    of 256 with samples of at most 64 blocks, so of some 64 classes, about four of each. Pack such a set with
    `--shuffle SEED` (then neighbours are random, and any batch is a random sample), or take smaller blocks and larger
    windows.
    """

    block: int = 64
    window: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", check_whole("block (samples)", self.block, 1, MAX_SAMPLES))
        object.__setattr__(self, "window", check_whole("window (blocks)", self.window, 1, MAX_SAMPLES))
        if self.block * self.window > MAX_SAMPLES:
            raise OptionError(f"block x window must be at most {MAX_SAMPLES}, found {self.block} x {self.window}")

    def _order(self, given: Binding) -> Order:
        return _Blocks(self, given.population.count, given.seed)


class _Blocks(Order):
    """Full blocks are permuted over the first places of an epoch, and what is left stands at its end.

    So that this is not always the same samples, block 0 begins at a random sample, and the row of all samples is closed
    to a ring. This makes every sample exactly equally likely at every position, whatever follows.
    """

    mode = "blocks"

    def __init__(self, options: Blocks, count: int, seed: int) -> None:
        super().__init__(count, count, seed)
        self._block, self._window = options.block, options.window
        self._span = options.block * options.window
        self._full = count // options.block  # blocks; a shorter one may follow

    def _indices(self, part: Part) -> Indices:
        key = f"iofast order {self.seed} {part.epoch} blocks"
        places, offsets = np.divmod(self._in_windows(part, key), self._block)
        if self._full:
            last = places == self._full
            places = np.where(last, places, permuted(self._full, key, np.where(last, 0, places)))
        first = int(key_word(f"{key} begin")) % self.count
        return (places * self._block + offsets + first) % self.count

    def _in_windows(self, part: Part, key: str) -> Indices:
        """The positions, permuted inside each window."""
        word = key_word(f"{key} windows")
        windows, places = np.divmod(part.positions, self._span)
        whole = self.length // self._span  # windows; a shorter one may follow
        for size, inside in ((self._span, windows < whole), (self.length % self._span, windows == whole)):
            if inside.any():
                places[inside] = permuted_groups(size, word, windows[inside], places[inside])
        return windows * self._span + places

    def _options(self) -> dict[str, object]:
        return {"block": self._block, "window": self._window}
