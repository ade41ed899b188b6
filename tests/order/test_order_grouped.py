"""Another order in the first epoch, and fixed ranges of samples that ranks keep."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast.order import Blocks, Grouped, Mode, Order, Population, Schedule, Sequential

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
        bound = Grouped(groups, order).bind(Population(count), seed, batch)
        got, instead = whole(bound, epoch), bound.replacement(epoch, np.arange(count), 4)
        assert (np.bincount(got, minlength=count) == 1).all()
        ranges = range_of(got, count, groups)
        assert (range_of(instead, count, groups) == ranges).all()
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

    def test_after_four_attempts_every_sample_may_replace(self) -> None:
        """All samples of the range may be damaged."""
        bound = Grouped(2).bind(Population(11), 1, 2)
        drawn = [int(bound.replacement(0, np.array([0]), attempt)[0]) for attempt in range(1, 256)]
        assert set(drawn[:4]) <= set(range(6))
        assert set(drawn) == set(range(11))

    def test_is_in_sequence_in_each_range_or_has_an_order_of_its_own(self) -> None:
        bound = Grouped(2, Sequential()).bind(Population(11), 1, 4)
        assert whole(bound, 2).tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10]
        drawn = whole(Grouped(2).bind(Population(400), 1, 4), 2).reshape(-1, 2, 2).swapaxes(0, 1).reshape(2, 200) % 200
        assert np.count_nonzero(drawn[0] == drawn[1]) < 8  # two random permutations agree in one place on average
