"""Orders are permutations that look random and cost nothing; schedules deal every position to exactly one rank."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast import order
from iofast.errors import OptionError
from iofast.order import MAX_SAMPLES, MAX_SEED, Order, Schedule

SEEDS = st.integers(0, MAX_SEED)
EPOCHS = st.integers(0, 1 << 40)


def epoch_of(n: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return Order(n, shuffle=True, seed=seed).indices(epoch, np.arange(n))


def surprise(counts: NDArray[np.int64], expected: float | NDArray[np.float64], freedom: int) -> float:
    """How many standard deviations chi-square lies above its mean: chance gives about -3 to 4."""
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return float((chi_square - freedom) / np.sqrt(2 * freedom))


def neighbour_surprise(x: NDArray[np.int64], lag: int) -> float:
    """Do samples `lag` positions apart fall into 16 x 16 cells independently?"""
    cells = x * 16 // len(x)
    sizes = np.bincount(cells, minlength=16)
    pairs = np.bincount(cells * 16 + np.roll(cells, -lag), minlength=256)
    return surprise(pairs, np.outer(sizes, sizes).ravel() / len(x), 15 * 15)


class TestPermutation:
    @given(n=st.integers(1, 20_000), seed=SEEDS, epoch=EPOCHS)
    def test_every_epoch_holds_every_sample_once(self, n: int, seed: int, epoch: int) -> None:
        assert (np.sort(epoch_of(n, seed, epoch)) == np.arange(n)).all()

    @pytest.mark.parametrize("n", [4095, 4096, 4097, 4160, 4161, 65_536, 65_537, 999_983, 1_000_000])
    def test_edges_of_the_table_and_of_the_rectangle(self, n: int) -> None:
        assert (np.sort(epoch_of(n, 5, 1)) == np.arange(n)).all()

    @given(n=st.integers(1, MAX_SAMPLES), seed=SEEDS, epoch=EPOCHS, data=st.data())
    def test_a_sample_depends_on_its_position_alone(self, n: int, seed: int, epoch: int, data: st.DataObject) -> None:
        positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
        shuffled = Order(n, shuffle=True, seed=seed)
        together = shuffled.indices(epoch, positions)
        assert together.dtype == np.int64
        assert ((together >= 0) & (together < n)).all()
        assert together.tolist() == [int(shuffled.indices(epoch, np.array([p]))[0]) for p in positions]
        assert (together[:, None] == together).tolist() == (positions[:, None] == positions).tolist()

    def test_the_order_never_changes_between_versions(self) -> None:
        # resuming with a newer iofast must continue the same epoch: these numbers are API
        assert epoch_of(10).tolist() == [2, 3, 9, 1, 0, 8, 5, 4, 6, 7]
        some = np.array([0, 1, 2, 640_000, 1_281_166])
        assert Order(1_281_167, shuffle=True, seed=7).indices(3, some).tolist() == [
            947_179, 206_718, 933_223, 412_244, 900_320,
        ]  # fmt: skip
        ends = np.array([0, 1, 10**10 - 1])
        assert Order(10**10, shuffle=True, seed=7).indices(3, ends).tolist() == [8129994445, 3443026253, 5051778551]

    @pytest.mark.parametrize("n", [100, 100_000])
    def test_seeds_and_epochs_give_other_orders(self, n: int) -> None:
        orders = [epoch_of(n, seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
        equal = [(a == b).mean() for i, a in enumerate(orders) for b in orders[:i]]
        assert max(equal) < 10 / n  # two random permutations agree in one position

    def test_unshuffled_is_the_identity(self) -> None:
        positions = np.array([3, 1, 1, 0])
        answer = Order(5).indices(9, positions)
        assert answer.tolist() == [3, 1, 1, 0]
        answer[:] = 0
        assert positions.tolist() == [3, 1, 1, 0]

    @pytest.mark.parametrize("n", [7, 5000])
    def test_shapes_are_kept(self, n: int) -> None:
        shuffled = Order(n, shuffle=True)
        assert shuffled.indices(0, np.zeros(0, np.int64)).shape == (0,)
        flat = shuffled.indices(0, np.arange(6))
        assert shuffled.indices(0, np.arange(6).reshape(2, 3)).tolist() == flat.reshape(2, 3).tolist()

    def test_ten_billion_samples_take_no_more_memory_than_ten(self) -> None:
        tracemalloc.start()
        huge = Order(10**10, shuffle=True, seed=1)
        huge.indices(0, np.arange(10**10 - 256, 10**10))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 10

    def test_pickles_and_compares(self) -> None:
        assert pickle.loads(pickle.dumps(Order(10, shuffle=True, seed=3))) == Order(10, shuffle=True, seed=3)


class TestQuality:
    """All seeds are fixed: a failure is a change of the code, not bad luck."""

    @pytest.mark.parametrize("n", [2, 3, 4])
    def test_small_sets_see_every_permutation_equally_often(self, n: int) -> None:
        number = {p: i for i, p in enumerate(permutations(range(n)))}
        seen = [number[tuple(epoch_of(n, seed, epoch).tolist())] for seed in range(60) for epoch in range(100)]
        assert surprise(np.bincount(seen, minlength=len(number)), 6000 / len(number), len(number) - 1) < 4

    @pytest.mark.parametrize("n", [5, 64, 1000, 4096, 4097, 10_007, 1_000_000])
    def test_a_position_sees_every_sample_equally_often(self, n: int) -> None:
        positions = np.array([0, 1, n // 2, n - 1])
        samples = np.array([Order(n, shuffle=True, seed=s).indices(s % 7, positions) for s in range(2000)])
        cells = min(n, 50)
        expected = 2000 / n * np.bincount(np.arange(n) * cells // n)
        for column in (samples * cells // n).T:
            assert surprise(np.bincount(column, minlength=cells), expected, cells - 1) < 4

    @pytest.mark.parametrize("n", [4096, 4097, 10_007, 1_000_000])
    def test_neighbours_are_independent(self, n: int) -> None:
        side = int(np.ceil(np.sqrt(n)))  # the cipher's rows: where a weak one shows
        for seed in range(3):
            x = epoch_of(n, seed)
            for lag in (1, 2, side - 1, side, side + 1):
                assert neighbour_surprise(x, lag) < 4.5
                assert abs(np.corrcoef(x, np.roll(x, -lag))[0, 1]) < 4.5 / np.sqrt(n)

    def test_epochs_are_independent(self) -> None:
        n = 100_003
        first, second = epoch_of(n, 1, 0), epoch_of(n, 1, 1)
        assert surprise(np.bincount((second - first) % n * 64 // n, minlength=64), n / 64, 63) < 4
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(n)

    def test_these_tests_find_a_weak_cipher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "_ROUNDS", 3)
        order._round_keys.cache_clear()
        weak = [epoch_of(10_007, seed, 9) for seed in range(20)]
        order._round_keys.cache_clear()
        assert max(neighbour_surprise(x, lag) for x in weak for lag in (99, 100, 101, 102)) > 10


class TestSchedule:
    @given(n=st.integers(1, 300), batch_size=st.integers(1, 20), world_size=st.integers(1, 9), drop_last=st.booleans())
    def test_against_the_definition(self, n: int, batch_size: int, world_size: int, drop_last: bool) -> None:
        whole = batch_size * world_size
        if drop_last and n < whole:
            with pytest.raises(OptionError, match="drop_last"):
                Schedule(n, batch_size, 0, world_size, drop_last)
            return
        ranks = [Schedule(n, batch_size, r, world_size, drop_last) for r in range(world_size)]
        assert {schedule.count for schedule in ranks} == {n // whole if drop_last else -(-n // whole)}
        for k in range(ranks[0].count):
            real = list(range(k * whole, min((k + 1) * whole, n)))
            filling = [i % n for i in range(-len(real) % world_size)]
            parts = [schedule.positions(k) for schedule in ranks]
            assert len({len(positions) for positions, _ in parts}) == 1
            assert np.concatenate([positions for positions, _ in parts]).tolist() == real + filling
            assert np.concatenate([valid for _, valid in parts]).tolist() == [True] * len(real) + [False] * len(filling)

    @given(n=st.integers(1, 300), local=st.integers(1, 4))
    def test_global_batches_are_the_same_for_any_number_of_ranks(self, n: int, local: int) -> None:
        def batches(world_size: int) -> list[list[int]]:
            ranks = [Schedule(n, local * 12 // world_size, r, world_size) for r in range(world_size)]
            parts = ([schedule.positions(k) for schedule in ranks] for k in range(ranks[0].count))
            return [[int(p) for positions, valid in part for p in positions[valid]] for part in parts]

        assert batches(1) == batches(2) == batches(3) == batches(12)

    def test_one_rank_has_a_short_last_batch_that_is_never_filled(self) -> None:
        positions, valid = Schedule(10, 4).positions(2)
        assert positions.tolist() == [8, 9]
        assert valid.all()

    def test_fewer_samples_than_ranks(self) -> None:
        got = [Schedule(2, 4, rank, 5).positions(0) for rank in range(5)]
        assert [(p.tolist(), v.tolist()) for p, v in got] == [
            ([0], [True]), ([1], [True]), ([0], [False]), ([1], [False]), ([0], [False]),
        ]  # fmt: skip

    def test_huge(self) -> None:
        schedule = Schedule(MAX_SAMPLES, 256, 7, 8)
        positions, valid = schedule.positions(schedule.count - 1)
        assert positions[-1] == MAX_SAMPLES - 1
        assert valid.all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Order(0), "n "),
        (lambda: Order(MAX_SAMPLES + 1), "n "),
        (lambda: Order(5, seed=-1), "seed"),
        (lambda: Order(5, seed=MAX_SEED + 1), "seed"),
        (lambda: Order(5).indices(0, np.array([5])), "0 to 4"),
        (lambda: Order(5).indices(0, np.array([-1])), "0 to 4"),
        (lambda: Order(5, shuffle=True).indices(-1, np.array([0])), "epoch"),
        (lambda: Schedule(0, 4), "n "),
        (lambda: Schedule(4, 0), "batch_size"),
        (lambda: Schedule(4, 1, 0, 0), "world_size"),
        (lambda: Schedule(4, 1, 2, 2), "rank"),
        (lambda: Schedule(4, 1, -1, 2), "rank"),
        (lambda: Schedule(4, 3, 0, 2, drop_last=True), "drop_last"),
        (lambda: Schedule(4, 3).positions(2), "batch"),
        (lambda: Schedule(4, 3).positions(-1), "batch"),
    ],
)
def test_impossible_options_are_refused(make: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]
