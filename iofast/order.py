"""Which sample comes when: a keyed permutation computed on the fly, and which positions make up which batch.

The sample at position p of epoch e is a pure function of (seed, e, p): nothing is shuffled in memory, nothing depends
on what was asked before, so any rank, worker or resumed run computes any part of any epoch by itself. An order answers
`indices(epoch, positions)`; a schedule answers `positions(batch)`; neither knows of the other.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError

MAX_SAMPLES = 1 << 40  # positions per epoch; the counters of choices.py keep 40 bits for the position
MAX_SEED = (1 << 64) - 1

_TABLE = 4096  # up to here a sorted table (32 KiB, exactly uniform) is also faster than the cipher
_BLOCK = 1024  # positions enciphered together: NumPy takes 0.25 ms for 256 of them and 0.3 ms for these
# Measured: chi-square tests of neighbouring samples reject 4 rounds (p < 1e-100) and pass 5 (n = 4097 and 10^5);
# 8 leave a margin and cost 48 us per 256 positions, for 1.28 million samples and for 10^10 alike.
_ROUNDS = 8

_U32 = np.uint64(32)
_ODD_1 = np.uint64(0x9E3779B97F4A7C15)
_ODD_2 = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True)
class Order:
    """The samples of every epoch, in order: 0 … n-1, or with `shuffle` another permutation of them in each epoch.

    Memory and start-up are the same for 10 samples and for 10^10.
    """

    n: int
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _in_range("n (samples)", self.n, 1, MAX_SAMPLES)
        _in_range("seed", self.seed, 0, MAX_SEED)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The dense indices (int64, in `positions`' shape) of the samples at `positions`, each 0 … n-1, of `epoch`."""
        positions = np.asarray(positions, np.int64)
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < self.n:
            raise OptionError(f"positions must be 0 to {self.n - 1}, found {positions.min()} to {positions.max()}")
        if epoch < 0:
            raise OptionError(f"epoch must be 0 or more, found {epoch}")
        if not self.shuffle:
            return positions.copy()
        if self.n <= _TABLE:
            return _table(self.n, self.seed, epoch)[positions]
        if positions.size and int(positions.max()) // _BLOCK - int(positions.min()) // _BLOCK <= 1:
            return self._from_blocks(epoch, positions)
        return _encipher(positions, self.n, _round_keys(self.seed, epoch))

    def _from_blocks(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of one block or two neighbours, as a batch has them: four batches of 256 share a block's making."""
        first = int(positions.min()) // _BLOCK
        blocks = [_block(self.n, self.seed, epoch, first)]
        if int(positions.max()) // _BLOCK != first:
            blocks.append(_block(self.n, self.seed, epoch, first + 1))
        indices: NDArray[np.int64] = np.concatenate(blocks)[positions - first * _BLOCK]
        return indices


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which positions of an epoch rank `rank` of `world_size` returns in batch k, for `n` positions per epoch.

    `batch_size` is per rank. Global batch k is positions [k·B, (k+1)·B) with B = batch_size · world_size, rank r takes
    its r-th slice. All ranks return equally many batches of equal length. Without `drop_last`, the last global batch
    has m = n mod B real positions and is filled with positions 0, 1, … to the next multiple of `world_size`.
    """

    n: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        _in_range("n (samples)", self.n, 1, MAX_SAMPLES)
        _in_range("batch_size", self.batch_size, 1, 1 << 32)
        _in_range("world_size", self.world_size, 1, 1 << 32)
        _in_range("rank", self.rank, 0, self.world_size - 1)
        if self.drop_last and self.n < self.global_batch:
            raise OptionError(
                f"drop_last=True leaves no batch: {self.n} samples are fewer than batch_size {self.batch_size} "
                f"x world_size {self.world_size} = {self.global_batch}"
            )

    @property
    def global_batch(self) -> int:
        """B: positions in a full batch of all ranks together."""
        return self.batch_size * self.world_size

    @property
    def count(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.n // self.global_batch if self.drop_last else -(-self.n // self.global_batch)

    def positions(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions (int64) of this rank's part of batch `batch`, and whether each is valid (False: filled in)."""
        if not 0 <= batch < self.count:
            raise OptionError(f"batch must be 0 to {self.count - 1}, found {batch}")
        start = batch * self.global_batch
        rows = min(self.batch_size, -(-(self.n - start) // self.world_size))
        first = start + self.rank * rows
        positions = np.arange(first, first + rows, dtype=np.int64)
        # position n + j of the filling is position j; with fewer samples than ranks it begins again at 0
        return positions % self.n, positions < self.n


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} must be {low} to {high}, found {value}")


def _key_stream(seed: int, epoch: int, words: int) -> NDArray[np.uint64]:
    """`words` pseudo-random 64-bit words of (seed, epoch): the same on every machine and version."""
    digest = hashlib.shake_128(f"iofast order {seed} {epoch}".encode()).digest(8 * words)
    return np.frombuffer(digest, "<u8").astype(np.uint64)


@lru_cache(maxsize=8)  # the epochs in flight of a few loaders
def _table(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.argsort(_key_stream(seed, epoch, n), kind="stable").astype(np.int64)


@lru_cache(maxsize=64)  # 8 kB each
def _block(n: int, seed: int, epoch: int, number: int) -> NDArray[np.int64]:
    """The indices of positions [number * _BLOCK, (number + 1) * _BLOCK), or as many as there are."""
    start = number * _BLOCK
    return _encipher(np.arange(start, min(start + _BLOCK, n), dtype=np.int64), n, _round_keys(seed, epoch))


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    return _key_stream(seed, epoch, _ROUNDS)


def _encipher(positions: NDArray[np.int64], n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A permutation of 0 … n-1: a Feistel cipher on the least rectangle a x b >= n, walked until it is back below n.

    The rectangle exceeds n by less than sqrt(n), so even the smallest domain walks one position in 64 a second step.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    image = _rounds(positions.astype(np.uint64).ravel(), a, b, keys)
    while (outside := np.flatnonzero(image >= n)).size:
        image[outside] = _rounds(image[outside], a, b, keys)
    return image.astype(np.int64).reshape(positions.shape)


def _rounds(x: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    side_a, side_b = np.uint64(a), np.uint64(b)
    left, right = np.divmod(x, side_b)
    moved, other, side, other_side = left, right, side_a, side_b
    scratch = np.empty_like(x)
    for key in keys:
        _add_hash(moved, other, key, side, scratch)
        moved, other, side, other_side = other, moved, other_side, side
    left *= side_b
    left += right
    return left


def _add_hash(
    target: NDArray[np.uint64], source: NDArray[np.uint64], key: np.uint64, side: np.uint64, scratch: NDArray[np.uint64]
) -> None:
    """`target` = (target + hash(source, key)) mod side, in place; every value is below 2^32, so nothing overflows."""
    hashed = np.add(source, key, out=scratch)
    hashed *= _ODD_1
    hashed ^= hashed >> _U32
    hashed *= _ODD_2
    hashed >>= _U32
    hashed *= side  # the upper half of 32-bit hash x side is uniform below side, without a division
    hashed >>= _U32
    target += hashed
    np.subtract(target, side, out=scratch)
    np.minimum(target, scratch, out=target)  # below side, the difference wrapped round to something huge
