"""Shuffled orders are permutations; schedules deal every position to exactly one rank; wrong arguments are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from iofast.errors import OptionError
from iofast.order import (
    MAX_SAMPLES,
    MAX_SEED,
    Balanced,
    Blocks,
    Buckets,
    Grouped,
    Mixed,
    Order,
    Population,
    Repeated,
    Sampled,
    Schedule,
    Shuffled,
    Weighted,
)

SEEDS = st.integers(0, MAX_SEED)
EPOCHS = st.integers(0, 1 << 40)


def shuffled(n: int, seed: int = 0) -> Order:
    return Shuffled().bind(Population(n), seed)


def epoch_of(n: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return shuffled(n, seed).indices(epoch, np.arange(n))


class TestPermutation:
    @pytest.mark.parametrize("n", [4095, 4096, 4097, 4160, 4161, 65_536, 65_537, 999_983, 1_000_000])
    def test_edges_of_the_table_and_of_the_rectangle(self, n: int) -> None:
        assert (np.sort(epoch_of(n, 5, 1)) == np.arange(n)).all()

    @given(n=st.integers(1, MAX_SAMPLES), seed=SEEDS, epoch=EPOCHS, data=st.data())
    def test_a_sample_depends_on_its_position_alone(self, n: int, seed: int, epoch: int, data: st.DataObject) -> None:
        positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
        order = shuffled(n, seed)
        together = order.indices(epoch, positions)
        assert together.dtype == np.int64
        assert ((together >= 0) & (together < n)).all()
        assert together.tolist() == [int(order.indices(epoch, np.array([p]))[0]) for p in positions]
        assert (together[:, None] == together).tolist() == (positions[:, None] == positions).tolist()

    def test_the_order_never_changes_between_versions(self) -> None:
        # resuming with a newer iofast must continue the same epoch: these numbers are API
        assert epoch_of(10).tolist() == [2, 3, 9, 1, 0, 8, 5, 4, 6, 7]
        some = np.array([0, 1, 2, 640_000, 1_281_166])
        assert shuffled(1_281_167, 7).indices(3, some).tolist() == [947179, 206718, 933223, 412244, 900320]
        ends = np.array([0, 1, 10**10 - 1])
        assert shuffled(10**10, 7).indices(3, ends).tolist() == [8129994445, 3443026253, 5051778551]


class TestOrderSchedule:
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
            assert np.concatenate([positions[valid] for positions, valid in parts]).tolist() == real
            assert np.concatenate([positions[~valid] for positions, valid in parts]).tolist() == filling
            counts = [int(valid.sum()) for _, valid in parts]
            assert counts == sorted(counts, reverse=True)
            assert max(counts) - min(counts) <= 1  # no rank has only filling while there is a sample for each
            assert all(valid[: int(valid.sum())].all() for _, valid in parts)


N = 30
SIZED = Population(4, sizes=lambda: (np.ones(4, np.int32), np.ones(4, np.int32)))


def bind_sampler(sampler: Any) -> Order:
    return Sampled(sampler).bind(Population(N))


class Lying(list[int]):
    """A sampler that says it has a number of samples that none can have."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def labelled(labels: Sequence[int]) -> Population:
    return Population(len(labels), labels=lambda: np.asarray(labels))


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Population(0), "count"),
    (lambda: Blocks(0), "block"),
    (lambda: Blocks(2.5), "block"),  # type: ignore[arg-type]
    (lambda: Blocks(64, -1), "window"),
    (lambda: Blocks(1 << 30, 1 << 30), "block x window"),
    (lambda: Repeated(0), "times"),
    (lambda: Repeated(2, 3), "an order such as"),  # type: ignore[arg-type]
    (lambda: Grouped(0), "Grouped: groups"),
    (lambda: Grouped(2, Grouped(2)), r"Grouped: order must be .* or Blocks\(\), found Grouped"),
    (lambda: Grouped(2, Weighted([1, 1])), "Grouped: order must be .* found Weighted"),
    (lambda: Grouped(2, [0, 1]), r"Grouped: order must be .* found \[0, 1\]"),  # type: ignore[arg-type]
    (lambda: Grouped(6).bind(Population(5), 0, 6), "groups must be at most the number of samples, 5, found 6"),
    (lambda: Grouped(4).bind(Population(5), 0, 6), r"batch \(batch_size x world_size\) .* of groups, 4, found 6"),
    (lambda: Weighted([]), "shape"),
    (lambda: Weighted([[1.0]]), "shape"),  # type: ignore[list-item]
    (lambda: Weighted("abc"), "numbers"),  # type: ignore[arg-type]
    (lambda: Weighted([1, -0.5]), "found -0.5 at 1"),
    (lambda: Weighted([1, float("nan")]), "found nan at 1"),
    (lambda: Weighted([1, float("inf")]), "found inf at 1"),
    (lambda: Weighted([0, -0.0]), r"not all be 0, found \[0, -0\.0\]"),
    (lambda: Weighted([1, 1], 0), "length"),
    (lambda: Weighted([1, 1]).bind(Population(3)), "one per sample, 3, found 2"),
    (lambda: Balanced(0), "length"),
    (lambda: Balanced().bind(labelled([0, -1, 2])), "found -1 at 1"),
    (lambda: Mixed([1, 1]).bind(Population(3)), r"one per dataset, 1 \(indices= makes one .*\), found 2"),
    (lambda: Mixed([1]).bind(Population(3, parts=(2, 1))), "one per dataset, 2, found 1"),
    (lambda: Mixed([1, 1]).bind(Population(3, parts=(3, 0))), "weight 1.0 for dataset 1"),
    (lambda: Mixed([10_000, 1]), "1 in 1024, found 1.0 of 10001"),
    (lambda: Mixed([0, 0]), "not all be 0"),
    (lambda: Buckets([]), "at least one"),
    (lambda: Buckets([(224, 224), (112, 112)]), r"aspect ratio, found \(224, 224\) and \(112, 112\)"),
    (lambda: Buckets([(224, 224), (224, 224)]), "aspect ratio"),
    (lambda: Buckets([(224,)]), "pairs"),  # type: ignore[list-item]
    (lambda: Buckets([(224, 0)]), "width"),
    (lambda: Buckets([(1.5, 2)]), "height"),  # type: ignore[list-item]
    (lambda: Sampled(5), "iterable of indices, found int 5"),  # type: ignore[arg-type]
    (lambda: Sampled("shuffled"), "iterable of indices, found str 'shuffled'"),
    (lambda: Sampled(BatchSampler([1, 2], 2, False)), r"single indices, found BatchSampler, .* use its \.sampler"),
    (lambda: Sampled(iter([1])), "once per epoch"),
    (lambda: bind_sampler([]), "gives no samples"),
    (lambda: bind_sampler(Lying(-1)), "the sampler Lying must have a length of 1 or more"),
    (lambda: bind_sampler(Lying(1 << 70)), "the sampler Lying must have a length of 1 or more"),
    (lambda: bind_sampler(Lying(1 << 40)), f"must have at most {1 << 28} indices in an epoch, found {1 << 40}; "),
    (lambda: bind_sampler([0, N]).indices(0, np.array([0])), f"found {N} at position 1 of epoch 0"),
    (lambda: bind_sampler([0, 1.5]).indices(0, np.array([0])), "whole numbers"),
    (lambda: bind_sampler([[0], [1]]).indices(0, np.array([0])), "whole numbers"),
    (lambda: Population(MAX_SAMPLES + 1), "count"),
    (lambda: Schedule(4, 3, 0, 2, drop_last=True), "drop_last"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)
