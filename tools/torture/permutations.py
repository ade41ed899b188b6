"""Orders are permutations that no test tells from random ones, for 2 to a million samples; 10^10 cost what 10 cost.

Every epoch holds every sample once; small sets see all their permutations equally often, positions see all samples
equally often, and what stands at neighbouring positions, a cipher's row apart, or in the next epoch is independent
(chi-square, serial correlation). All seeds are fixed.
"""

import math
import time
import tracemalloc
from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from iofast.order import Blocks, Mode, Population, Shuffled
from iofast.order.permutation import key_word, permuted_each, permuted_groups, streams
from tools.torture import Failed

# Around the table's end and the cipher's rectangles (squares, products of neighbours), primes, powers of two and ten.
SIZES = (
    *(2, 3, 4, 5, 6, 7, 8, 10, 16, 31, 64, 65, 100, 101, 256, 1000, 1024, 2000, 4095, 4096),
    *(4097, 4160, 4161, 4225, 5000, 8191, 10_007, 16_384, 16_385, 40_000, 65_536, 99_991, 100_000, 262_145),
    *(500_000, 999_000, 999_983, 999_999, 1_000_000),
)
SEEDS = range(6)
KEYS = 20_000  # (seed, epoch) pairs in which one position is looked at
LIMIT = 5.5  # deviations: p = 2e-8, and there are some thousand tests
MODES: dict[str, Mode] = {"shuffled": Shuffled(), "blocks": Blocks(), "blocks of 7 by 5": Blocks(7, 5)}


def epoch_of(n: int, seed: int = 0, epoch: int = 0, mode: Mode | None = None) -> NDArray[np.int64]:
    """All samples of an epoch, in order."""
    return (mode or Shuffled()).bind(Population(n), seed).indices(epoch, np.arange(n))


def surprise(counts: NDArray[np.int64], expected: float | NDArray[np.float64], freedom: int) -> float:
    """Chi-square as standard deviations of a normal variable (Wilson and Hilferty): chance gives -4 to 4."""
    part = float(((counts - expected) ** 2 / expected).sum()) / freedom
    return (part ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def uniformity(samples: NDArray[np.int64], n: int) -> float:
    """Are all of 0 … n-1 equally frequent in `samples`?"""
    cells = min(n, 50)
    expected = len(samples) / n * np.bincount(np.arange(n) * cells // n)
    return surprise(np.bincount(samples * cells // n, minlength=cells), expected, cells - 1)


def neighbours(x: NDArray[np.int64], lag: int) -> float:
    """Do samples `lag` positions apart fall into 16 x 16 cells independently?"""
    cells = x * 16 // len(x)
    sizes = np.bincount(cells, minlength=16)
    pairs = np.bincount(cells * 16 + np.roll(cells, -lag), minlength=256)
    return surprise(pairs, np.outer(sizes, sizes).ravel() / len(x), 15 * 15)


def serial(x: NDArray[np.int64], lag: int) -> float:
    """Serial correlation at `lag`, round the end, in standard deviations."""
    n = len(x)
    correlation = np.corrcoef(x, np.roll(x, -lag))[0, 1]
    return float((correlation + 1 / (n - 1)) * math.sqrt(n))


def lags(n: int) -> list[int]:
    """Neighbours, the cipher's rows, where a weak one shows, and far away (at n/2 each pair would count twice)."""
    side = math.isqrt(n - 1) + 1
    return sorted({lag for lag in (1, 2, 3, side - 1, side, side + 1, n // 3) if 0 < lag < n})


def in_an_epoch(n: int, seed: int) -> Iterator[tuple[str, float]]:
    """Tests of two epochs of a shuffled order; raises `Failed` unless they are permutations."""
    first, second = epoch_of(n, seed, 0), epoch_of(n, seed, 1)
    for x in (first, second, *(epoch_of(n, seed, 2, mode) for mode in MODES.values())):
        if not (np.bincount(x, minlength=n) == 1).all():
            raise Failed(f"an epoch of {n} samples, seed {seed}, is no permutation")
    if n < 1000:  # too few pairs for the tests' approximations
        return
    for lag in lags(n):
        yield f"samples {lag} positions apart (chi-square)", neighbours(first, lag)
        yield f"serial correlation at lag {lag}", serial(first, lag)
    yield "the next epoch (chi-square of the difference)", uniformity((second - first) % n, n)
    yield "the next epoch (correlation)", float(np.corrcoef(first, second)[0, 1] * math.sqrt(n))


def over_keys(n: int) -> Iterator[tuple[str, float]]:
    """What one position sees in many seeds and epochs."""
    for name, mode in MODES.items():
        positions = np.array(sorted({0, 1, n // 2, n - 1}))
        orders = [mode.bind(Population(n), seed) for seed in range(KEYS // 100)]
        samples = np.array([order.indices(epoch, positions) for order in orders for epoch in range(10)])
        for position, column in zip(positions, samples.T, strict=True):
            yield f"position {position}, {name}", uniformity(column, n)
    words = streams(key_word(f"torture {n}"), np.arange(KEYS))
    start = permuted_each(n, words, np.zeros(KEYS, np.int64))
    for place in sorted({1, min(math.isqrt(n - 1) + 1, n - 1), n - 1}):
        other = permuted_each(n, words, np.full(KEYS, place))
        yield f"place {place} of a keyed permutation each", uniformity(other, n)
        if n > 2:
            yield f"places 0 and {place} of a keyed permutation each", uniformity((other - start) % n - 1, n - 1)


def whole_permutations(n: int) -> Iterator[tuple[str, float]]:
    """Does a small set see all its permutations equally often?"""
    number = {p: i for i, p in enumerate(permutations(range(n)))}
    expected, freedom = KEYS / len(number), len(number) - 1
    epochs = [epoch_of(n, seed, epoch) for seed in range(KEYS // 100) for epoch in range(100)]
    keys, places = np.repeat(np.arange(KEYS), n), np.tile(np.arange(n), KEYS)
    groups = permuted_groups(n, key_word("torture"), keys, places).reshape(KEYS, n)
    each = permuted_each(n, streams(key_word("each"), keys), places).reshape(KEYS, n)
    for name, rows in (("epochs", epochs), ("groups", groups), ("a key each", each)):
        seen = np.array([number[tuple(row.tolist())] for row in rows])
        yield f"all permutations, {name}", surprise(np.bincount(seen, minlength=len(number)), expected, freedom)


def costs() -> list[str]:
    """Start-up and memory of 10 and of 10^10 samples."""
    lines = []
    for name, mode in MODES.items():
        peaks, seconds = [], []
        for n in (10, 10**10):
            epoch_of(10, 1, 0, mode)  # imports and tables of constants
            tracemalloc.start()
            order = mode.bind(Population(n), seed=n)
            held = tracemalloc.get_traced_memory()[0]
            order.indices(0, np.arange(n - 10, n))
            peaks.append((held, tracemalloc.get_traced_memory()[1]))
            tracemalloc.stop()
            seconds.append(min(_seconds(mode, n, seed) for seed in range(50)))
        if abs(peaks[0][0] - peaks[1][0]) > 256 or peaks[1][1] > 512 << 10:
            raise Failed(f"{name}: bytes held and peak for 10 and 10^10 samples are {peaks}")
        lines.append(
            f"- {name}, 10 / 10^10 samples: order holds {peaks[0][0]} / {peaks[1][0]} bytes, peak with the first batch "
            f"{peaks[0][1] / 1024:.0f} / {peaks[1][1] / 1024:.0f} KiB; bound and first batch after "
            f"{seconds[0] * 1e3:.2f} / {seconds[1] * 1e3:.2f} ms"
        )
    return lines


def _seconds(mode: Mode, n: int, seed: int) -> float:
    start = time.perf_counter()
    mode.bind(Population(n), seed).indices(7, np.arange(min(n, 256)))
    return time.perf_counter() - start


def run() -> list[str]:
    found: list[tuple[float, str]] = []
    for n in tqdm(SIZES, unit=" sizes"):
        tests = [*over_keys(n)] + [test for seed in SEEDS for test in in_an_epoch(n, seed)]
        if n <= 5:
            tests += whole_permutations(n)
        found += [(value, f"{n} samples: {name}") for name, value in tests]
    values = np.array([value for value, _ in found])
    worst = max(found, key=lambda each: abs(each[0]))
    if abs(worst[0]) > LIMIT:
        raise Failed(f"{worst[1]}: {worst[0]:.1f} deviations from what chance gives")
    epochs = len(SIZES) * len(SEEDS) * (2 + len(MODES))
    return [
        f"- {epochs:,} epochs of {len(SIZES)} sizes from {SIZES[0]} to {SIZES[-1]:,}: each a full permutation",
        f"- {len(found):,} tests: mean {values.mean():+.2f}, standard deviation {values.std():.2f} (chance: 0, 1), "
        f"beyond 3 deviations {np.count_nonzero(np.abs(values) > 3)} (chance: {0.0027 * len(found):.0f})",
        f"- the farthest from chance: {worst[0]:+.1f} deviations, {worst[1]}",
        *costs(),
    ]
