"""Another order in the first epoch, and fixed ranges of samples that ranks keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast.order import Blocks, Grouped, Mode, Order, Population, Schedule, Sequential, Shuffled
from tools.torture.permutations import surprise

INNER: list[Mode | None] = [None, Sequential(), Blocks(3, 2), Blocks(1024, 4)]
WORLDS = [1, 2, 4, 8]
inner, epochs = st.sampled_from(INNER), st.integers(0, 3)


def whole(order: Order, epoch: int) -> NDArray[np.int64]:
    return order.indices(epoch, np.arange(order.length))


def range_of(samples: NDArray[np.int64], count: int, groups: int) -> NDArray[np.int64]:
    """The number of each sample's range: the first `count % groups` ranges have one sample more."""
    sizes = [count // groups + (group < count % groups) for group in range(groups)]
    return np.repeat(np.arange(groups), sizes)[samples]


def samples(order: Order, epoch: int, batch: int, batch_size: int, rank: int, world: int) -> NDArray[np.int64]:
    """The samples of one rank in a global batch, without filling."""
    positions, valid = Schedule(order.length, batch_size, rank, world).positions(batch)
    return order.indices(epoch, positions[valid])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Groups, samples and global batch."""
    groups = draw(st.integers(1, 12))
    return groups, draw(st.integers(groups, 700)), groups * draw(st.integers(1, 9))


class TestGrouped:
    @given(shape=shapes(), order=inner, seed=st.integers(0, 9), epoch=epochs)
    def test_an_epoch_is_a_permutation_with_equal_parts_of_each_range(
        self, shape: tuple[int, int, int], order: Mode | None, seed: int, epoch: int
    ) -> None:
        groups, count, batch = shape
        got = whole(Grouped(groups, order).bind(Population(count), seed, batch), epoch)
        assert (np.bincount(got, minlength=count) == 1).all()
        ranges = range_of(got, count, groups)
        full, share = count // batch, batch // groups
        assert (ranges[: full * batch].reshape(full, batch) == np.repeat(np.arange(groups), share)).all()
        rest = ranges[full * batch :]
        assert len(rest) < batch
        assert (np.diff(rest) >= 0).all()

    @given(per_rank=st.integers(1, 4), groups=st.sampled_from([8, 16, 24]), order=inner, more=st.integers(0, 300))
    def test_ranks_keep_their_ranges_and_their_number_does_not_matter(
        self, per_rank: int, groups: int, order: Mode | None, more: int
    ) -> None:
        batch = groups * per_rank
        count = 2 * batch + more
        bound = Grouped(groups, order).bind(Population(count), 3, batch)
        for epoch, number in ((0, 0), (2, -(-count // batch) - 1)):
            global_batches = []
            for world in WORLDS:
                parts = [samples(bound, epoch, number, batch // world, rank, world) for rank in range(world)]
                global_batches.append(np.concatenate(parts).tolist())
                owned = [range_of(part, count, groups) // (groups // world) for part in parts]
                assert number == count // batch or all((own == rank).all() for rank, own in enumerate(owned))
            assert global_batches == global_batches[:1] * len(WORLDS)

    @given(shape=shapes(), order=inner, epoch=epochs, attempt=st.integers(1, 4))
    def test_replacements_are_of_the_same_range(
        self, shape: tuple[int, int, int], order: Mode | None, epoch: int, attempt: int
    ) -> None:
        groups, count, batch = shape
        bound = Grouped(groups, order).bind(Population(count), 1, batch)
        instead = bound.replacement(epoch, np.arange(count), attempt)
        assert (range_of(instead, count, groups) == range_of(whole(bound, epoch), count, groups)).all()

    def test_after_four_attempts_every_sample_may_replace(self) -> None:
        """All samples of the range may be damaged."""
        bound = Grouped(2).bind(Population(11), 1, 2)
        drawn = [int(bound.replacement(0, np.array([0]), attempt)[0]) for attempt in range(1, 256)]
        assert set(drawn[:4]) <= set(range(6))
        assert set(drawn) == set(range(11))

    @pytest.mark.parametrize("order", [Shuffled(), Blocks(1, 64), Blocks(4, 8)], ids=str)
    @pytest.mark.parametrize("size", [50, 200])
    def test_ranges_and_epochs_have_orders_of_their_own(self, order: Mode, size: int) -> None:
        """Two random permutations agree in one place on average, and every sample is equally often at a place."""
        groups = 400
        bound = Grouped(groups, order).bind(Population(groups * size), 5, groups)
        places = [(whole(bound, epoch).reshape(size, groups) % size).T for epoch in (1, 2)]
        for one, other in ((places[0][0::2], places[0][1::2]), places):
            assert len(one) / 2 < np.count_nonzero(one == other) < 2 * len(one)
        for column in (places[0][:, 0], places[1][:, size // 2]):
            assert abs(surprise(np.bincount(column * 5 // size, minlength=5), groups / 5, 4)) < 4

    @given(size=st.integers(1, 400), block=st.integers(1, 20), window=st.integers(1, 6), epoch=epochs)
    def test_blocks_are_runs_of_neighbours_in_each_range(self, size: int, block: int, window: int, epoch: int) -> None:
        bound = Grouped(3, Blocks(block, window)).bind(Population(3 * size), 1, 3)
        for number, order in enumerate(whole(bound, epoch).reshape(size, 3).T):
            for start in range(0, size, block * window):
                some = np.sort(order[start : start + block * window] - number * size)
                assert np.count_nonzero(np.diff(some) > 1) <= window + 1  # runs; one more where the ring is closed

    def test_is_in_sequence_in_each_range(self) -> None:
        bound = Grouped(2, Sequential()).bind(Population(11), 1, 4)
        assert whole(bound, 2).tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10]

    def test_the_description_has_all_options(self) -> None:
        described = Grouped(4, Blocks(4, 2)).bind(Population(90), 0, 8).describe()
        assert (described["groups"], described["batch"]) == (4, 8)
        assert described["order"] == Blocks(4, 2).bind(Population(90)).describe()
