"""Plans of several batches, made together: those of each batch alone, in any order of asking."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from at_once import at_once
from loader_sets import check_equal, photographs, write_numbered
from numpy.typing import NDArray

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.containers.base import Located
from iofast.errors import ContainerError
from iofast.loader.plan import BatchPlans, LoaderParts, SamplePlan, plan_samples

CROP: list[Any] = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"rank": 1, "world_size": 3},
    {"batch_size": 7},
    {"batch_size": 7, "drop_last": True},
    {"order": list(range(0, 40, 3))},
]


def parts_of(numbered: FastDataset, together: int | None = None, **options: Any) -> LoaderParts:
    options = {"batch_size": 4, "transform": CROP, **({} if "order" in options else {"shuffle": True}), **options}
    loader = FastLoader(numbered, **options)
    if together is not None:
        loader._resources.together = together
    return loader._parts()


def plans_of(parts: LoaderParts, epoch: int = 0) -> BatchPlans:
    return BatchPlans(parts, epoch, parts.epochs.schedule.count)


def alone(parts: LoaderParts, epoch: int, batch: int) -> SamplePlan:
    return plan_samples(parts, epoch, parts.epochs.schedule.positions(batch)[0])


def same(one: SamplePlan, other: SamplePlan) -> bool:
    own, their = ((p.positions, p.attempts, p.indices, p.boxes, p.flips, *p.located) for p in (one, other))
    return one.epoch == other.epoch and all(map(np.array_equal, own, their))


@pytest.mark.parametrize("together", [1, 3, 16])
@pytest.mark.parametrize("options", OPTIONS, ids=["one", "rank", "short", "dropped", "sampler"])
def test_plans_are_those_of_each_batch_alone(numbered: FastDataset, together: int, options: dict[str, Any]) -> None:
    parts = parts_of(numbered, together, **options)
    for start in (0, 2):
        plans, order = plans_of(parts, 5), list(range(start, parts.epochs.schedule.count))
        if start:
            random.Random(together).shuffle(order)
        for batch in order:
            assert same(plans.take(batch), alone(parts, 5, batch))
        assert not plans._plans, "nothing is left over"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[NDArray[np.int64]], object]]:
    """What to call with the indices that a dataset is asked to locate, before it does."""
    before, locate = list[Callable[[NDArray[np.int64]], object]](), FastDataset.locate

    def asking(self: FastDataset, indices: NDArray[np.int64]) -> Located:
        for function in before:
            function(indices)
        return locate(self, indices)

    monkeypatch.setattr(FastDataset, "locate", asking)
    return before


def test_an_error_belongs_to_its_batch(numbered: FastDataset, asked: list[Any]) -> None:
    parts = parts_of(numbered, 4)
    expected = [alone(parts, 0, batch) for batch in range(10)]
    plans, wrong = plans_of(parts), int(expected[5].indices[1])

    def broken(indices: NDArray[np.int64]) -> None:
        if wrong in indices:
            raise ContainerError("the index is damaged")

    asked.append(broken)
    for batch in range(10):
        if batch == 5:
            with pytest.raises(ContainerError, match="the index is damaged"):
                plans.take(batch)
        else:
            assert same(plans.take(batch), expected[batch])


def test_a_slow_store_is_asked_by_all_threads_at_once(numbered: FastDataset, asked: list[Any]) -> None:
    plans, both = plans_of(parts_of(numbered, 1)), threading.Barrier(2, timeout=20)
    asked.append(lambda _: both.wait())
    at_once(*(partial(plans.take, batch) for batch in (0, 1)))
    assert not both.broken


class Failing:
    """A sampler whose first run fails behind this many indices; one beyond what is probed has no known end."""

    def __init__(self, after: int) -> None:
        self.after, self.runs = after, 0

    def __iter__(self) -> Any:
        self.runs += 1
        yield from (number % 40 for number in range(self.after))
        if self.runs == 1 or self.after:
            raise RuntimeError("the connection was lost")
        yield from range(40)


class Sized(Failing):
    def __len__(self) -> int:
        return 40


def test_a_sampler_that_fails(numbered: FastDataset) -> None:
    """It does not run again, and the batches before come."""
    sampler = Sized(0)
    with pytest.raises(RuntimeError, match="the connection was lost"):
        plans_of(parts_of(numbered, 16, order=sampler)).take(0)
    assert sampler.runs == 1
    plans = BatchPlans(parts_of(numbered, 16, batch_size=40, order=Failing(66_000)), 0, 2000)
    for batch in range(1650):
        assert plans.take(batch).indices.tolist() == list(range(40))
    with pytest.raises(RuntimeError, match="the connection was lost"):
        plans.take(1650)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_another_program_writes_to(tmp_path: Path, workers: int) -> None:
    """Payloads are looked up in its tree from then on; places of before do not hold."""
    path = write_numbered(tmp_path / "set.lmdb", photographs(120))
    options: dict[str, Any] = {"transform": [T.Resize((24, 24))], "num_workers": workers}
    expected, found = list(FastLoader(FastDataset(path), 4, **options)), []
    for batch in FastLoader(FastDataset(path), 4, **options):
        found.append(batch)
        if len(found) == 3:  # each value once more, in several transactions, so that pages are used again
            with lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False) as environment:
                for _ in range(6):
                    with environment.begin(write=True) as transaction:
                        for key, value in list(transaction.cursor()):
                            transaction.put(key, bytes(value))
    check_equal(found, expected)
