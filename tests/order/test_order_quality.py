"""No test distinguishes an epoch from a random permutation, and ten billion samples cost as much as ten.

All seeds are fixed: a failure is a change of the code, not bad luck. `make torture PART=permutations` is the long run.
"""

import math
import tracemalloc

import numpy as np
import pytest

from iofast.order import Blocks, Grouped, Mixed, Mode, Population, Repeated, Sequential, Shuffled
from iofast.order.permutation import key_word, permuted_each, streams
from tools.torture import permutations as torture
from tools.torture.permutations import uniformity

KEYS = 2000


@pytest.mark.parametrize("n", [3, 5])
def test_small_sets_see_every_permutation_equally_often(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture, "KEYS", 4000)
    assert max(abs(value) for _, value in torture.whole_permutations(n)) < 4


@pytest.mark.parametrize("n", [5, 4096, 4097])
@pytest.mark.parametrize("mode", [Shuffled(), Blocks(), Blocks(7, 5), Grouped(1), Grouped(1, Blocks(7, 5))], ids=str)
def test_a_position_sees_every_sample_equally_often(n: int, mode: Mode) -> None:
    positions = np.array([0, 1, n // 2, n - 1])
    samples = np.array([mode.bind(Population(n), seed).indices(seed % 7, positions) for seed in range(700)])
    assert max(abs(uniformity(column, n)) for column in samples.T) < 4


@pytest.mark.parametrize("n", [2, 5, 64, 65, 5000])
def test_keyed_permutations_of_their_own_are_random(n: int) -> None:
    """As classes of a balanced order have them: one position of each of many permutations, and pairs of positions."""
    words = streams(key_word(f"quality {n}"), np.arange(10 * KEYS))
    start = permuted_each(n, words, np.zeros(10 * KEYS, np.int64))
    for place in {1, min(math.isqrt(n - 1) + 1, n - 1), n - 1}:
        other = permuted_each(n, words, np.full(10 * KEYS, place))
        assert abs(uniformity(other, n)) < 4
        assert (other != start).all()
        assert n == 2 or abs(uniformity((other - start) % n - 1, n - 1)) < 4


@pytest.mark.parametrize("n", [1000, 4096, 4097])
def test_neighbours_and_epochs_are_independent(n: int) -> None:
    values = dict(test for seed in range(2) for test in torture.in_an_epoch(n, seed))
    assert len(values) >= 12
    assert max(map(abs, values.values())) < 4.5


HUGE = [Sequential(), Shuffled(), Blocks(), Repeated(3), Mixed([0.5, 0.5]), Grouped(1), Grouped(1, Blocks())]


@pytest.mark.parametrize("mode", HUGE, ids=str)
def test_ten_billion_samples_take_no_more_memory_than_ten(mode: Mode) -> None:
    def start(n: int) -> tuple[int, int]:
        """Bytes that the order holds, and the peak with the first batches."""
        tracemalloc.start()
        order = mode.bind(Population(n, parts=(n // 2, n // 2) if isinstance(mode, Mixed) else ()), seed=1)
        held = tracemalloc.get_traced_memory()[0]
        last = np.arange(n - 256 if n > 256 else 0, n)
        order.indices(0, np.arange(10))
        order.indices(0, last)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held, peak

    start(10)  # what Python keeps of the first call
    (little, _), (much, peak) = start(10), start(10**10)
    assert abs(much - little) <= 64 << 10  # longer integers, other threads; a table would be gigabytes
    assert peak < 640 << 10
