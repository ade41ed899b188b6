"""Wrong arguments of orders and schedules: one line that says what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
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
    Sequential,
    Shuffled,
    Weighted,
)

N = 30
SIZED = Population(4, sizes=lambda: (np.ones(4, np.int32), np.ones(4, np.int32)))


def bind_sampler(sampler: Any) -> Order:
    return Sampled(sampler).bind(Population(N))


class Lying:
    """A sampler of five samples that says it has another number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def labelled(labels: Sequence[int]) -> Population:
    return Population(len(labels), labels=lambda: np.asarray(labels))


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Population(0), "count"),
    (lambda: Population(5, parts=(2, 2)), "parts must add up"),
    (lambda: Shuffled().bind(Population(5), -1), "seed"),
    (lambda: Buckets([(1, 1)]).bind(SIZED, 0, 0), "global_batch"),
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
    (
        lambda: Grouped(4).bind(Population(5), 0, 6),
        r"batch \(batch_size x world_size\) .* multiple of groups, 4, found 6",
    ),
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
    (lambda: Balanced().bind(Population(3)), "needs labels"),
    (lambda: Balanced().bind(labelled([0, -1, 2])), "found -1 at 1"),
    (lambda: Balanced().bind(Population(3, labels=lambda: np.zeros(2, np.int64))), r"shape \(3,\), found \(2,\)"),
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
    (lambda: Buckets([(1, 1)]).bind(Population(3)), "needs the sizes"),
    (lambda: Buckets([(1, 1)]).bind(Population(3, sizes=lambda: (np.ones(3, int), np.ones(2, int)))), "shape"),
    (lambda: Sampled(5), "iterable of indices, found int 5"),  # type: ignore[arg-type]
    (lambda: Sampled("shuffled"), "iterable of indices, found str 'shuffled'"),
    (lambda: Sampled(BatchSampler([1, 2], 2, False)), r"single indices, found BatchSampler, .* use its \.sampler"),
    (lambda: Sampled(iter([1])), "once per epoch"),
    (lambda: bind_sampler([]), "gives no samples"),
    (lambda: bind_sampler(Lying(-1)), "the sampler Lying must have a length of 1 or more"),
    (lambda: bind_sampler(Lying(1 << 70)), "the sampler Lying must have a length of 1 or more"),
    (lambda: bind_sampler([0, N]).indices(0, np.array([0])), f"found {N} at position 1 of epoch 0"),
    (lambda: bind_sampler([0, 1.5]).indices(0, np.array([0])), "whole numbers"),
    (lambda: bind_sampler([[0], [1]]).indices(0, np.array([0])), "whole numbers"),
    (lambda: Population(MAX_SAMPLES + 1), "count"),
    (lambda: Sequential().bind(Population(5), MAX_SEED + 1), "seed"),
    (lambda: Schedule(0, 4), "n "),
    (lambda: Schedule(4, 0), "batch_size"),
    (lambda: Schedule(4, 1, 0, 0), "world_size"),
    (lambda: Schedule(4, 1, 2, 2), "rank"),
    (lambda: Schedule(4, 1, -1, 2), "rank"),
    (lambda: Schedule(4, 3, 0, 2, drop_last=True), "drop_last"),
    (lambda: Schedule(4, 3).positions(2), "batch"),
    (lambda: Schedule(4, 3).positions(-1), "batch"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)
