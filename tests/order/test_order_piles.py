"""Orders that deal from piles: balanced classes, mixed datasets, size buckets."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.order import Balanced, Buckets, Mixed, Order, Population, nearest
from tools.torture.permutations import surprise, uniformity


def labelled(labels: list[int] | NDArray[np.int64]) -> Population:
    return Population(len(labels), labels=lambda: np.asarray(labels, np.int64))


def through(order: Order, epochs: int) -> NDArray[np.int64]:
    """The samples of the first epochs, one after the other."""
    return np.concatenate([order.indices(epoch, np.arange(order.length)) for epoch in range(epochs)])


class TestBalanced:
    @given(
        labels=st.lists(st.integers(0, 6), min_size=1, max_size=60),
        length=st.none() | st.integers(1, 90),
        seed=st.integers(0, 99),
    )
    def test_against_the_definition(self, labels: list[int], length: int | None, seed: int) -> None:
        order = Balanced(length).bind(labelled(labels), seed)
        assert order.length == (length or len(labels))
        x = through(order, 8)
        seen = np.array(labels)[x]
        classes = sorted(set(labels))
        rounds = len(x) // len(classes)
        for number in range(rounds):
            assert sorted(seen[number * len(classes) : (number + 1) * len(classes)].tolist()) == classes
        for each in classes:
            mine = np.flatnonzero(np.array(labels) == each)
            taken = x[seen == each]
            for start in range(0, len(taken) - len(mine) + 1, len(mine)):
                assert sorted(taken[start : start + len(mine)].tolist()) == mine.tolist()

    @pytest.mark.parametrize("classes", [3, 1000, 5000])
    def test_orders_of_classes_and_samples_are_random(self, classes: int) -> None:
        labels = np.arange(classes * 7) % classes
        order = Balanced(classes * 20).bind(labelled(labels), 1)
        x = through(order, -(-20_000 // order.length) * 4).reshape(-1, classes)
        assert abs(uniformity(x[:, 0] % classes, classes)) < 4  # the class that comes first in a round
        assert abs(uniformity(x[::7, -1] // classes, 7)) < 4  # which of its samples
        assert (np.sort(x % classes, axis=1) == np.arange(classes)).all()

    def test_replacements_are_of_the_same_class(self) -> None:
        labels = np.arange(1000) ** 2 % 13
        order = Balanced().bind(labelled(labels), 1)
        positions = np.arange(1000)
        replaced = order.replacement(3, positions, 2)
        assert (labels[replaced] == labels[order.indices(3, positions)]).all()
        assert len(set(replaced.tolist())) > 500

    def test_a_class_with_one_damaged_sample_is_replaced_by_others(self) -> None:
        order = Balanced().bind(labelled([0, 1, 1, 1]), 1)
        position = np.flatnonzero(order.indices(0, np.arange(4)) == 0)[:1]
        drawn = [int(order.replacement(0, position, attempt)[0]) for attempt in range(1, 40)]
        assert drawn[:4] == [0, 0, 0, 0]
        assert set(drawn) == {0, *order.indices(0, np.arange(4)).tolist()}

    def test_epochs_are_limited_where_counters_end(self) -> None:
        order = Balanced(1 << 40).bind(labelled([0, 1]), 1)
        order.indices((1 << 22) - 1, np.array([(1 << 40) - 1]))
        with pytest.raises(OptionError, match="epoch must be below 4194304"):
            order.indices(1 << 22, np.array([0]))


class TestMixed:
    @given(
        parts=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 9)), min_size=1, max_size=5),
        seed=st.integers(0, 99),
    )
    def test_against_the_definition(self, parts: list[tuple[int, int]], seed: int) -> None:
        assume(any(weight for _, weight in parts))
        sizes, weights = tuple(size for size, _ in parts), [weight for _, weight in parts]
        mode = Mixed(weights, length=1500)
        order = mode.bind(Population(sum(sizes), parts=sizes), seed)
        quotas = mode.quotas()
        assert quotas.sum() == 1024
        assert np.abs(quotas - 1024 * np.array(weights) / sum(weights)).max() < 1
        x = through(order, 4)
        ends = np.cumsum(sizes)
        part = np.searchsorted(ends, x, side="right")
        replaced = np.searchsorted(ends, order.replacement(0, np.arange(1500), 1), side="right")
        assert (replaced == part[:1500]).all()  # by samples of the same set
        for start in range(0, len(x) - 1023, 1024):
            assert np.bincount(part[start : start + 1024], minlength=len(sizes)).tolist() == quotas.tolist()
        for number, size in enumerate(sizes):
            taken = x[part == number]
            cycles = taken[: len(taken) // size * size].reshape(-1, size)
            assert (np.sort(cycles, axis=1) == np.arange(ends[number] - size, ends[number])).all()

    @pytest.mark.parametrize("unit", [5e-324, 1.7e308])
    def test_weights_of_any_size(self, unit: float) -> None:
        assert Mixed([unit, 0, unit]).quotas().tolist() == [512, 0, 512]

    def test_as_many_sets_as_slots(self) -> None:
        weights = np.ones(1024)
        weights[0], weights[1] = 0, 2
        order = Mixed(weights.tolist()).bind(Population(2048, parts=(2,) * 1024), 3)
        taken = np.bincount(order.indices(0, np.arange(1024)) // 2, minlength=1024)
        assert taken.tolist() == weights.tolist()


class TestBuckets:
    SIZES = ((100, 100), (100, 200), (200, 100), (100, 400))

    @given(
        sizes=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=80),
        batch=st.integers(1, 9),
        seed=st.integers(0, 99),
    )
    def test_against_the_definition(self, sizes: list[tuple[int, int]], batch: int, seed: int) -> None:
        widths, heights = np.array(sizes, np.int32).T
        population = Population(len(sizes), sizes=lambda: (widths, heights))
        order = Buckets(self.SIZES).bind(population, seed, batch)
        bucket = nearest(self.SIZES, widths, heights)
        counts = np.bincount(bucket, minlength=4)
        assert order.length == sum(-(-count // batch) * batch for count in counts.tolist())
        for epoch in range(3):
            x = order.indices(epoch, np.arange(order.length)).reshape(-1, batch)
            assert (bucket[x] == bucket[x[:, :1]]).all()
            for number, count in enumerate(counts.tolist()):
                seen = np.bincount(x[bucket[x] == number], minlength=len(sizes))[bucket == number]
                assert seen.sum() == -(-count // batch) * batch
                assert count == 0 or seen.min() == seen.sum() // count  # none is left out, none comes too often
                assert count == 0 or seen.max() <= seen.min() + 1
            real = ~order.filling(epoch, np.arange(order.length))
            assert sorted(x.ravel()[real].tolist()) == list(range(len(sizes)))
            for ranks in range(1, batch + 1):  # each has its part of the samples of a batch, as far as they go
                if batch % ranks == 0:
                    shares = real.reshape(-1, ranks, batch // ranks).sum(axis=2)
                    assert (shares >= shares.sum(axis=1, keepdims=True) // ranks).all()
            replaced = order.replacement(epoch, np.arange(order.length), 1).reshape(-1, batch)
            assert (bucket[replaced] == bucket[x]).all()

    def test_batches_and_samples_are_shuffled(self) -> None:
        widths = np.where(np.arange(20_000) < 5000, 100, 200).astype(np.int32)
        population = Population(20_000, sizes=lambda: (widths, np.full(20_000, 100, np.int32)))
        order = Buckets(self.SIZES).bind(population, 2, 10)
        x = order.indices(0, np.arange(20_000))
        first = x[::10] < 5000
        pairs = np.bincount(first[:-1] * 2 + first[1:], minlength=4)
        assert abs(surprise(pairs, np.array([9, 3, 3, 1]) / 16 * 1999, 2)) < 4
        assert not np.array_equal(x, order.indices(1, np.arange(20_000)))

    def test_nearest_at_the_edges(self) -> None:
        widths, heights = np.array([0, 141, 142, 9, 1]), np.array([0, 100, 100, 0, 10**6])
        assert nearest(self.SIZES, widths, heights).tolist() == [0, 0, 1, 0, 2]
        assert nearest([(3, 7)], widths, heights).tolist() == [0] * 5
        assert nearest(self.SIZES, widths.reshape(5, 1), heights.reshape(5, 1)).shape == (5, 1)
