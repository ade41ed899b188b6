"""Keyed permutations computed on the fly, and the words that key them.

`permuted` computes places of one permutation, such as a shuffled epoch; `permuted_each` one place each of many
permutations, such as those of a batch of balanced classes. Caches of tables and blocks only save time.
"""

import hashlib
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from iofast.splitmix import Words, mixed, to_unit

MAX_SAMPLES = 1 << 40  # positions per epoch: the counters of choices.py have 40 bits for the position

Span = tuple[int, int]  # the least and the greatest of some positions

_TABLE = 4096  # up to this size a sorted table (32 KiB, exactly uniform) is faster than the cipher
_BLOCK = 1024  # positions enciphered together: 256 take 0.25 ms, 1024 take 0.3 ms
# Measured: chi-square tests of neighbouring samples reject 4 rounds (p < 1e-100) and pass 5 (n = 4097 and 10^5);
# 8 leave a margin and cost 48 us per 256 positions, for 1.28 million samples as for 10^10.
_ROUNDS = 8
# Up to this size samples are ranked, which is exactly uniform. The cipher is too weak there: after 300,000 permutations
# the chi-square of pairs is 600, 140 and 30 deviations too high for 5, 12 and 20 samples, and normal from 35 on.
_RANKED = 64
_AT_ONCE = 4096  # positions: at most 2 MiB of words

_U32 = np.uint64(32)
_ODD_1 = np.uint64(0x9E3779B97F4A7C15)
_ODD_2 = np.uint64(0xD6E8FEB86659FD93)


def permuted(n: int, key: str, positions: NDArray[np.int64], span: Span | None = None) -> NDArray[np.int64]:
    """The images of `positions` (int64, any shape, each 0 … n-1) under the permutation of 0 … n-1 keyed by `key`.

    `span` is their least and greatest, if known. Neighbouring positions are the fastest.
    """
    if n <= _TABLE:
        return _table(n, key)[positions]
    if positions.size:
        least, most = span or (int(positions.min()), int(positions.max()))
        first = least // _BLOCK
        if most // _BLOCK == first:
            return _block(n, key, first)[positions - first * _BLOCK]
        if most // _BLOCK == first + 1:  # a batch: four batches of 256 share a block
            indices: NDArray[np.int64] = np.concatenate([_block(n, key, first), _block(n, key, first + 1)])
            return indices[positions - first * _BLOCK]
    return _encipher(positions, n, _round_keys(key))


def permuted_each(sizes: NDArray[np.int64] | int, words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `permuted`, with a size and a permutation for each position (all of shape (N,)), keyed by `words[i]`."""
    sizes = np.broadcast_to(np.asarray(sizes, np.int64), positions.shape)
    image = np.empty_like(positions)
    small = sizes <= _RANKED
    for permute, rows in ((_ranked_each, np.flatnonzero(small)), (_encipher_each, np.flatnonzero(~small))):
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            image[part] = permute(sizes[part], words[part], positions[part])
    return image


def _ranked_each(sizes: NDArray[np.int64], words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of a position's random number among those of all positions: one place of a sorted table."""
    columns = np.arange(int(sizes.max()))
    numbers = streams(words[:, None], columns)
    own = numbers[np.arange(len(positions)), positions]
    before = (numbers < own[:, None]) & (columns < sizes[:, None])
    ranks: NDArray[np.int64] = np.count_nonzero(before, axis=1)
    return ranks


def _encipher_each(sizes: NDArray[np.int64], words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """As `_encipher`, with a rectangle and keys for each position: 0.15 ms for 256."""
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
    """As `permuted`, with a permutation of 0 … n-1 for each group; `groups` and `positions` are of shape (N,).

    Up to 4096 a group's permutation is sorted, which is exactly uniform and faster for the few groups of a batch.
    """
    if n > _TABLE:
        return permuted_each(n, streams(key, groups), positions)
    image, (unique, row) = np.empty_like(positions), np.unique(groups, return_inverse=True)
    few = max(_AT_ONCE * _RANKED // n, 1)
    for start in range(0, len(unique), few):
        there = (row >= start) & (row < start + few)
        tables = _sorted(n, key, unique[start : start + few])
        image[there] = tables[row[there] - start, positions[there]]
    return image


def key_word(text: str) -> np.uint64:
    """The 64-bit word of `text`: the same on every machine and version."""
    return np.uint64(_key_stream(text, 1)[0])


def streams(key: np.uint64 | Words, numbers: NDArray[np.int64]) -> Words:
    """The word of each number under `key`, different for each number."""
    return mixed(key, numbers.astype(np.uint64) + np.uint64(1))


def uniform(key: np.uint64, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A float64 in [0, 1) for each number, a multiple of 2^-53, as those of `choices.Draw`."""
    return to_unit(streams(key, numbers))


def _key_stream(key: str, words: int) -> Words:
    """`words` pseudo-random 64-bit words: the same on every machine and version."""
    return np.frombuffer(hashlib.shake_128(key.encode()).digest(8 * words), "<u8").astype(np.uint64)


@lru_cache(maxsize=16)  # the epochs in flight of a few loaders
def _table(n: int, key: str) -> NDArray[np.int64]:
    return np.argsort(_key_stream(key, n), kind="stable").astype(np.int64)


def _sorted(n: int, key: np.uint64, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The permutation of each group, int64 of shape (groups, n). The words of a row differ, so any sort is stable."""
    return np.argsort(streams(streams(key, groups)[:, None], np.arange(n)), axis=1)


@lru_cache(maxsize=64)  # 8 kB each
def _block(n: int, key: str, number: int) -> NDArray[np.int64]:
    """The images of positions [number * _BLOCK, (number + 1) * _BLOCK), as far as they exist."""
    start = number * _BLOCK
    return _encipher(np.arange(start, min(start + _BLOCK, n), dtype=np.int64), n, _round_keys(key))


@lru_cache(maxsize=16)
def _round_keys(key: str) -> Words:
    return _key_stream(key, _ROUNDS)


def _encipher(positions: NDArray[np.int64], n: int, keys: Words) -> NDArray[np.int64]:
    """A permutation of 0 … n-1: a Feistel cipher on the least rectangle a x b >= n, repeated until it is below n.

    The rectangle exceeds n by less than sqrt(n), so even in the smallest domain only one position in 64 is repeated.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    sides = np.uint64(a), np.uint64(b)
    image = _rounds(positions.astype(np.uint64).ravel(), *sides, keys)
    while (outside := np.flatnonzero(image >= n)).size:
        image[outside] = _rounds(image[outside], *sides, keys)
    return image.astype(np.int64).reshape(positions.shape)


def _rounds(x: Words, a: np.uint64 | Words, b: np.uint64 | Words, keys: Words) -> Words:
    """The rounds of the cipher on the rectangle a x b; sides and keys are for all positions, or one for each."""
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
    np.minimum(target, scratch, out=target)  # below side, the difference wraps around to a huge number
