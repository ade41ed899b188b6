"""Properties of every mode of order, and block-local, weighted and repeated orders."""

import json
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.order import (
    Balanced,
    Blocks,
    Buckets,
    Grouped,
    Mixed,
    Mode,
    Order,
    Population,
    Repeated,
    Sampled,
    Sequential,
    Shuffled,
    Weighted,
)
from tools.torture.permutations import surprise

N, B = 6000, 48
SIZES = [(64, 64), (48, 96), (96, 48)]


class Backwards:
    """A sampler without a length; another order in each epoch."""

    epoch = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter((np.arange(self.n)[::-1] + self.epoch) % self.n)


def labels() -> NDArray[np.int64]:
    return np.arange(N) % 5 * 3 + (np.arange(N) > 4000)


def sizes() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.arange(N, dtype=np.int32) % 301, np.arange(N, dtype=np.int32) % 257


POPULATION = Population(N, labels, sizes, parts=(5000, 1000))
MODES: list[Mode] = [
    *(Sequential(), Shuffled(), Blocks(), Blocks(block=7, window=5)),
    *(Weighted(np.arange(N) % 11), Weighted(np.ones(N), length=700), Balanced(), Balanced(length=5000)),
    *(Repeated(3), Repeated(2, Blocks(block=7, window=5)), Repeated(2, Buckets(SIZES))),
    *(Mixed([1, 3]), Mixed([1, 0], length=7000), Buckets(SIZES)),
    *(Grouped(16), Grouped(12, Blocks(block=7, window=5)), Grouped(6, Blocks())),
    *(Sampled(range(N)), Sampled(Backwards(N))),
]
GOLDEN = [
    *((820, 2148, 4385, 2420), (3396, 3392, 3663, 2269), (5697, 1461, 3164, 2613), (5698, 1461, 2445, 534)),
    *((4648, 330, 5211, 5561), (168, 4768, 5176, 3121), (5445, 5445, 5812, 960), (3396, 3396, 3580, 1201)),
    *((3045, 3045, 2481, 1813), (5144, 5839, 4464, 3902), (1969, 1571, 4774, 3902), (3045, 2756, 1758, 4532)),
    *((65, 181, 5717, 667), (93, 333, 5988, 890), (280, 175, 5255, 780)),
]
BLOCKS = Blocks(), Blocks(7, 5), Blocks(1, 1), Blocks(10_000, 1), Blocks(1, 10_000)
FULL = [Sequential(), Shuffled(), *BLOCKS, Grouped(1), *(Grouped(1, each) for each in BLOCKS)]


@pytest.fixture(params=MODES, ids=lambda mode: type(mode).__name__.lower())
def order(request: pytest.FixtureRequest) -> Order:
    return request.param.bind(POPULATION, 5, B)


class TestEveryMode:
    @pytest.mark.parametrize("epoch", [0, 3])
    def test_any_split_of_the_positions_and_any_copy_give_the_same_samples(self, order: Order, epoch: int) -> None:
        again = pickle.loads(pickle.dumps(order))
        whole = order.indices(epoch, np.arange(order.length))
        assert whole.dtype == np.int64
        assert whole.min() >= 0
        assert whole.max() < order.count == N
        rng = np.random.default_rng(epoch)
        for step in (1, 31, 256, 2048):
            starts = rng.permutation(np.arange(0, order.length, step))[:40]
            for start in starts.tolist():
                positions = np.arange(start, min(start + step, order.length))
                assert (order.indices(epoch, positions) == whole[positions]).all()
        scattered = rng.integers(0, order.length, (20, 3))
        assert (order.indices(epoch, scattered) == whole[scattered]).all()
        assert order.indices(epoch, np.zeros((0, 2), np.int64)).shape == (0, 2)
        assert (again.indices(epoch, np.arange(50)) == whole[:50]).all()

    def test_describes_itself_for_json(self, order: Order) -> None:
        described = order.describe()
        assert json.loads(json.dumps(described)) == described == pickle.loads(pickle.dumps(order)).describe()
        assert len(json.dumps(described)) < 400
        assert (described["count"], described["length"]) == (N, order.length)
        assert str(described["mode"]) in repr(order)

    def test_replacements_are_keyed_and_in_range(self, order: Order) -> None:
        positions = np.arange(600)
        drawn = [order.replacement(2, positions, attempt) for attempt in (1, 2)]
        together = order.replacement(2, np.tile(positions, 2).reshape(2, -1), np.repeat([[1], [2]], 600, axis=1))
        assert together.tolist() == [each.tolist() for each in drawn]
        one = [int(order.replacement(2, np.array([p]), 2)[0]) for p in (0, 300, 599)]
        assert one == drawn[1][[0, 300, 599]].tolist()
        assert set(together.ravel()) <= set(order.indices(2, np.arange(order.length)).tolist()) | set(range(N))
        assert (drawn[0] == drawn[1]).mean() < 0.2
        assert (drawn[0] == order.replacement(3, positions, 1)).mean() < 0.2
        assert (drawn[0] == order.indices(2, positions)).mean() < 0.2
        assert order.replacement(0, np.zeros(0, np.int64), 1).shape == (0,)

    @pytest.mark.parametrize("attempts", [0, 256, -1])
    def test_wrong_attempts_positions_and_epochs_are_refused(self, order: Order, attempts: int) -> None:
        with pytest.raises(OptionError, match="attempts must be 1 to 255"):
            order.replacement(0, np.array([0]), attempts)
        for positions in ([-1], [0, order.length]):
            with pytest.raises(OptionError, match=f"positions must be 0 to {order.length - 1}, found"):
                order.indices(0, np.array(positions))
        with pytest.raises(OptionError, match="epoch"):
            order.indices(-1, np.array([0]))


def test_modes_and_options_have_different_descriptions() -> None:
    assert len({json.dumps(mode.bind(POPULATION, 0, B).describe()) for mode in MODES}) == len(MODES)
    other = Population(N, lambda: labels()[::-1], lambda: sizes()[::-1], parts=(4000, 2000))
    for mode in (Balanced(), Buckets(SIZES), Mixed([1, 3])):
        assert mode.bind(other, 0, B).describe() != mode.bind(POPULATION, 0, B).describe()
    for mode in (Buckets(SIZES), Grouped(16)):
        assert mode.bind(POPULATION, 0, 32).describe() != mode.bind(POPULATION, 0, B).describe()


def test_the_orders_never_change_between_versions() -> None:
    """Resuming with a newer iofast must continue the same epoch: these numbers are API."""
    for mode, golden in zip(MODES[2:17], GOLDEN, strict=True):
        order = mode.bind(POPULATION, 7, B)
        some = order.indices(3, np.array([0, 1, order.length - 1]))
        assert (*some.tolist(), *order.replacement(3, np.array([5]), 1).tolist()) == golden


@pytest.mark.parametrize("mode", FULL, ids=str)
@given(n=st.integers(1, 12_000), seed=st.integers(0, 9), epoch=st.integers(0, 1 << 40))
def test_permuting_modes_hold_every_sample_once(mode: Mode, n: int, seed: int, epoch: int) -> None:
    order = mode.bind(Population(n), seed)
    assert order.length == n
    assert (np.bincount(order.indices(epoch, np.arange(n)), minlength=n) == 1).all()


class TestBlocks:
    @given(n=st.integers(1, 3000), block=st.integers(1, 40), window=st.integers(1, 9), epoch=st.integers(0, 5))
    def test_a_window_is_a_few_runs_of_neighbours(self, n: int, block: int, window: int, epoch: int) -> None:
        for mode in (Blocks(block, window), Grouped(1, Blocks(block, window))):
            whole = mode.bind(Population(n), 1).indices(epoch, np.arange(n))
            for start in range(0, n, block * window):
                samples = np.sort(whole[start : start + block * window])
                assert np.count_nonzero(np.diff(samples) > 1) <= window + 1  # one more where the ring is closed

    def test_samples_of_one_block_meet_as_often_as_the_docstring_says(self) -> None:
        n, batch = 64 * 64 * 20, 256
        whole = Blocks().bind(Population(n), 3).indices(0, np.arange(n)).reshape(-1, batch)
        near = np.abs(whole[:, :, None] - whole[:, None, :]) < 64
        share = (near.sum() - whole.size) / (whole.size * (batch - 1))
        # less than 64 apart: all 63 pairs of one block, and some of adjacent blocks in one window
        assert 63 / 4095 < share < 2 * 63 / 4095


class TestWeighted:
    @pytest.mark.parametrize("length", [None, 100_000])
    def test_frequencies_are_the_weights(self, length: int | None) -> None:
        weights = np.array([0, 1, 5, 0, 0.5, 3, 0.5, 0])
        order = Weighted(weights, length).bind(Population(8), 4)
        assert order.length == (length or 8)
        epochs = 100_000 // order.length
        seen = sum(np.bincount(order.indices(e, np.arange(order.length)), minlength=8) for e in range(epochs))
        assert not seen[weights == 0].any()
        some = weights > 0
        assert abs(surprise(seen[some], weights[some] / weights.sum() * epochs * order.length, 4)) < 4

    @pytest.mark.parametrize("unit", [5e-324, 1e-310, 2.3e-308, 1e-16, 1, 3e307])
    def test_weights_of_any_size(self, unit: float) -> None:
        """Sums of tiny weights have few bits, those of huge ones are infinite."""
        for weights, possible in (([1, 0], [0]), ([0, 1, -0.0], [1]), ([5, 5, 0, 5, 0], [0, 1, 3]), ([1], [0])):
            order = Weighted(np.multiply(weights, unit), 1000).bind(Population(len(weights)), 4)
            seen = np.bincount(order.indices(0, np.arange(1000)), minlength=len(weights))
            assert np.flatnonzero(seen).tolist() == possible
            assert seen.max() < 2 * seen[possible].min()

    def test_a_weight_below_the_precision_of_the_sum_is_not_drawn(self) -> None:
        order = Weighted([1, 1e-300, 1e308, 1], 1000).bind(Population(4), 4)
        assert set(order.indices(0, np.arange(1000)).tolist()) == {2}


class TestRepeated:
    def test_each_sample_comes_in_a_row(self) -> None:
        order, inner = (mode.bind(Population(100), 2) for mode in (Repeated(3), Shuffled()))
        assert order.length == 100
        x = order.indices(4, np.arange(100))
        assert x.tolist() == np.repeat(inner.indices(4, np.arange(34)), 3)[:100].tolist()
        assert len(set(x.tolist())) == 34
        assert len(set(order.replacement(0, np.arange(3), 1).tolist())) == 1  # all views of a sample

    def test_has_the_checksum_of_the_inner_order(self) -> None:
        sampled = Repeated(2, Sampled(range(9))).bind(Population(9))
        assert sampled.checksum(0) == Sampled(range(9)).bind(Population(9)).checksum(0)
        assert Repeated(3).bind(Population(9)).checksum(0) is None
        assert sampled.sharded is None
