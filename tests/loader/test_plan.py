"""Plans of several batches, made together: those of each batch alone, in any order of asking."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_sets import photographs, write_folder, write_lmdb, write_numbered
from numpy.typing import NDArray

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.containers.base import Located
from iofast.errors import ContainerError
from iofast.loader import plan as plan_module
from iofast.loader.plan import LoaderParts, Plan, Plans, plan

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("plans") / "numbered.lmdb", photographs(40)))


def parts_of(dataset: FastDataset, together: int | None = None, **options: Any) -> LoaderParts:
    loader = FastLoader(dataset, **{"batch_size": 4, "shuffle": True, "transform": CROP, **options})
    if together is not None:
        loader._resources.together = together
    return loader._parts()


def same(one: Plan, other: Plan) -> bool:
    assert one.cut is not None
    assert other.cut is not None
    columns = zip((*one[2:4], *one.located, *one.cut), (*other[2:4], *other.located, *other.cut), strict=True)
    return one[:2] == other[:2] and all(np.array_equal(own, their) for own, their in columns)


@pytest.mark.parametrize("together", [1, 3, 4, 100])
@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 3}, {"batch_size": 7}], ids=["one", "rank", "short"])
def test_plans_are_those_of_each_batch_alone(dataset: FastDataset, together: int, options: dict[str, Any]) -> None:
    parts = parts_of(dataset, together, **options)
    batches = list(range(parts.epochs.schedule.count))
    for start in (0, 2):
        plans, order = Plans(parts, 5), batches[start:]
        if start:
            random.Random(together).shuffle(order)
        for batch in order:
            alone = plan(parts, 5, parts.epochs.schedule.positions(batch)[0])
            assert same(plans.take(batch), alone)
        assert not plans._made or start, "asked for in order, none is left over"


def test_how_many_calls(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    parts = parts_of(dataset, 4)
    locate = type(dataset).locate

    def counted(self: FastDataset, indices: NDArray[np.int64]) -> Located:
        asked.append(len(indices))
        return locate(self, indices)

    monkeypatch.setattr(FastDataset, "locate", counted)
    plans = Plans(parts, 0)
    for batch in range(10):
        plans.take(batch)
    assert asked == [16, 16, 8]


def test_an_error_belongs_to_its_batch(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, real = parts_of(dataset, 4), plan_module.plan
    wrong = int(parts.epochs.schedule.positions(2)[0][1])

    def broken(parts: LoaderParts, epoch: int, positions: NDArray[np.int64], attempt: int = 0) -> Plan:
        if wrong in positions:
            raise ContainerError("the index is damaged")
        return real(parts, epoch, positions, attempt)

    monkeypatch.setattr(plan_module, "plan", broken)
    plans = Plans(parts, 0)
    for batch in range(10):
        if batch == 2:
            with pytest.raises(ContainerError, match="the index is damaged"):
                plans.take(batch)
        else:
            assert same(plans.take(batch), real(parts, 0, parts.epochs.schedule.positions(batch)[0]))


def test_many_threads(dataset: FastDataset) -> None:
    parts = parts_of(dataset, 3, batch_size=1)
    plans, found, order = Plans(parts, 1), dict[int, Plan](), list(range(40))
    random.Random(2).shuffle(order)

    def take(number: int) -> None:
        for batch in order[number::4]:
            found[batch] = plans.take(batch)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all(same(found[batch], plan(parts, 1, parts.epochs.schedule.positions(batch)[0])) for batch in order)


def test_about_a_thousand_rows_unless_each_costs_a_read(dataset: FastDataset, tmp_path: Path) -> None:
    folder = FastDataset(write_folder(tmp_path / "files", photographs(8)))
    assert [parts_of(dataset, batch_size=size).resources.together for size in (4, 256, 1000, 4096)] == [256, 4, 1, 1]
    assert parts_of(folder).resources.together == 1
    assert parts_of(FastDataset(write_lmdb(tmp_path / "set.lmdb", photographs(8))) + folder).resources.together == 1


def test_rows_of_a_batch_may_change(dataset: FastDataset) -> None:
    """A replaced sample changes the columns of its batch alone."""
    parts = parts_of(dataset, 4)
    plans = Plans(parts, 0)
    first = plans.take(0)
    for column in (first.indices, *first.located):
        if column is not None:
            column[...] = 0
    assert same(plans.take(1), plan(parts, 0, parts.epochs.schedule.positions(1)[0]))
