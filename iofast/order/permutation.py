"""Keyed permutations computed on the fly, and the words they are keyed with.

`permuted` answers for one permutation, as an epoch of a shuffled order is; `permuted_each` for as many as there are
positions, as a batch of balanced classes needs them. Nothing is shuffled in memory and nothing depends on what was
asked before. The tables and blocks that are kept save time only.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_SAMPLES = 1 << 40  # positions per epoch; the counters of choices.py keep 40 bits for the position
MAX_SEED = (1 << 64) - 1

Words = NDArray[np.uint64]
Span = tuple[int, int]  # the least and the greatest of some positions

_TABLE = 4096  # up to here a sorted table (32 KiB, exactly uniform) is also faster than the cipher
_BLOCK = 1024  # positions enciphered together: NumPy takes 0.25 ms for 256 of them and 0.3 ms for these
# Measured: chi-square tests of neighbouring samples reject 4 rounds (p < 1e-100) and pass 5 (n = 4097 and 10^5);
# 8 leave a margin and cost 48 us per 256 positions, for 1.28 million samples and for 10^10 alike.
_ROUNDS = 8
# Of a few samples the cipher is no good: pairs of 5, 12 or 20 give chi-square 600, 140 and 30 deviations too high after
# 300,000 permutations, of 35 and more what chance gives. So small ones are ranked, which is exactly uniform.
_RANKED = 64
_AT_ONCE = 4096  # positions, and thus at most 2 MiB of words

_U32 = np.uint64(32)
_ODD_1 = np.uint64(0x9E3779B97F4A7C15)
_ODD_2 = np.uint64(0xD6E8FEB86659FD93)
_GOLDEN = _ODD_1
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _TO_53_BITS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def permuted(n: int, key: str, positions: NDArray[np.int64], span: Span | None = None) -> NDArray[np.int64]:
    """Where the permutation of 0 … n-1 that `key` names takes `positions` (int64, any shape, each 0 … n-1).

    `span` is their least and greatest, where the caller knows them. Neighbouring positions are the quickest.
    """
    if n <= _TABLE:
        return _table(n, key)[positions]
    if positions.size:
        least, most = span or (int(positions.min()), int(positions.max()))
        first = least // _BLOCK
        if most // _BLOCK == first:
            return _block(n, key, first)[positions - first * _BLOCK]
        if most // _BLOCK == first + 1:  # as a batch has them: four batches of 256 share a block's making
            indices: NDArray[np.int64] = np.concatenate([_block(n, key, first), _block(n, key, first + 1)])
            return indices[positions - first * _BLOCK]
    return _encipher(positions, n, _round_keys(key))


def permuted_each(sizes: NDArray[np.int64] | int, words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `permuted`, with a size and a permutation for each position (all of shape (N,)): the one `words[i]` names."""
    sizes = np.broadcast_to(np.asarray(sizes, np.int64), positions.shape)
    image = np.empty_like(positions)
    small = sizes <= _RANKED
    for permute, rows in ((_ranked_each, np.flatnonzero(small)), (_encipher_each, np.flatnonzero(~small))):
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            image[part] = permute(sizes[part], words[part], positions[part])
    return image


def _ranked_each(sizes: NDArray[np.int64], words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of a position's number among those of all positions: a sorted table of which one place is wanted."""
    columns = np.arange(int(sizes.max()))
    numbers = streams(words[:, None], columns)
    own = numbers[np.arange(len(positions)), positions]
    before = (numbers < own[:, None]) & (columns < sizes[:, None])
    ranks: NDArray[np.int64] = np.count_nonzero(before, axis=1)
    return ranks


def _encipher_each(sizes: NDArray[np.int64], words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `_encipher`, with rectangle and keys of each position's own: 0.15 ms for 256 of them."""
    keys = streams(words, np.arange(_ROUNDS)[:, None])
    n = sizes.astype(np.uint64)
    a = np.sqrt((sizes - 1).astype(np.float64)).astype(np.uint64) + np.uint64(1)  # exact: sizes are below 2^52
    b = (n + a - np.uint64(1)) // a
    image = _rounds(positions.astype(np.uint64), a, b, keys)
    while (outside := np.flatnonzero(image >= n)).size:
        image[outside] = _rounds(image[outside], a[outside], b[outside], keys[:, outside])
    return image.astype(np.int64)


def permuted_groups(
    n: int, key: np.uint64, groups: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """As `permuted`, of n for each of the `groups` (any numbers) that `positions` belong to (both of shape (N,)).

    Up to 4096 a group's permutation is sorted, which is exactly uniform and, for the few groups of a batch, quicker.
    """
    if n > _TABLE:
        return permuted_each(n, streams(key, groups), positions)
    image = np.empty_like(positions)
    first, last = int(groups.min()), int(groups.max())
    if last - first <= 1:  # as batches have them, one after the other
        tables = np.stack([_group(n, key, group) for group in range(first, last + 1)])
        image[:] = tables[groups - first, positions]
        return image
    unique, row = np.unique(groups, return_inverse=True)
    rows = max(_AT_ONCE * _RANKED // n, 1)
    order = np.argsort(row, kind="stable")
    edges = np.searchsorted(row[order], np.arange(0, len(unique) + rows, rows))
    for start, begin, end in zip(range(0, len(unique), rows), edges, edges[1:], strict=False):
        table, part = _sorted(n, key, unique[start : start + rows]), order[begin:end]
        image[part] = table[row[part] - start, positions[part]]
    return image


def key_word(text: str) -> np.uint64:
    """The 64-bit word that `text` names: the same on every machine and version."""
    return np.uint64(_key_stream(text, 1)[0])


def streams(key: np.uint64 | Words, numbers: NDArray[np.int64]) -> Words:
    """The word of each number under `key` (SplitMix64 at random access): no two numbers have the same."""
    return _mixed(key + _GOLDEN * (numbers.astype(np.uint64) + np.uint64(1)))


def uniform(key: np.uint64, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A float64 in [0, 1) for each number, a multiple of 2^-53, as `choices.Draw` makes them."""
    drawn: NDArray[np.float64] = np.multiply(streams(key, numbers) >> _TO_53_BITS, 2.0**-53, dtype=np.float64)
    return drawn


def _mixed(bits: Words) -> Words:
    bits ^= bits >> _SHIFT_1
    bits *= _MIX_1
    bits ^= bits >> _SHIFT_2
    bits *= _MIX_2
    bits ^= bits >> _SHIFT_3
    return bits


def _key_stream(key: str, words: int) -> Words:
    """`words` pseudo-random 64-bit words: the same on every machine and version."""
    return np.frombuffer(hashlib.shake_128(key.encode()).digest(8 * words), "<u8").astype(np.uint64)


@lru_cache(maxsize=16)  # the epochs in flight of a few loaders
def _table(n: int, key: str) -> NDArray[np.int64]:
    return np.argsort(_key_stream(key, n), kind="stable").astype(np.int64)


@lru_cache(maxsize=16)
def _group(n: int, key: np.uint64, group: int) -> NDArray[np.int64]:
    table: NDArray[np.int64] = _sorted(n, key, np.array([group]))[0]
    return table


def _sorted(n: int, key: np.uint64, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The permutation of each group, int64 of shape (groups, n). No two words of a row are equal, so every way of
    sorting gives the same."""
    return np.argsort(streams(streams(key, groups)[:, None], np.arange(n)), axis=1)


@lru_cache(maxsize=64)  # 8 kB each
def _block(n: int, key: str, number: int) -> NDArray[np.int64]:
    """Where positions [number * _BLOCK, (number + 1) * _BLOCK), or as many as there are, go."""
    start = number * _BLOCK
    return _encipher(np.arange(start, min(start + _BLOCK, n), dtype=np.int64), n, _round_keys(key))


@lru_cache(maxsize=16)
def _round_keys(key: str) -> Words:
    return _key_stream(key, _ROUNDS)


def _encipher(positions: NDArray[np.int64], n: int, keys: Words) -> NDArray[np.int64]:
    """A permutation of 0 … n-1: a Feistel cipher on the least rectangle a x b >= n, walked until it is back below n.

    The rectangle exceeds n by less than sqrt(n), so even the smallest domain walks one position in 64 a second step.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    sides = np.uint64(a), np.uint64(b)
    image = _rounds(positions.astype(np.uint64).ravel(), *sides, keys)
    while (outside := np.flatnonzero(image >= n)).size:
        image[outside] = _rounds(image[outside], *sides, keys)
    return image.astype(np.int64).reshape(positions.shape)


def _rounds(x: Words, a: np.uint64 | Words, b: np.uint64 | Words, keys: Words) -> Words:
    """The rounds of the cipher on the rectangle a x b; sides and keys are one for all positions, or one for each."""
    left, right = np.divmod(x, b)
    moved, other, side, other_side = left, right, a, b
    scratch = np.empty_like(x)
    for key in keys:
        _add_hash(moved, other, key, side, scratch)
        moved, other, side, other_side = other, moved, other_side, side
    left *= b
    left += right
    return left


def _add_hash(target: Words, source: Words, key: np.uint64 | Words, side: np.uint64 | Words, scratch: Words) -> None:
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
