"""Plans of several batches, made together: those of each batch alone, in any order of asking."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from at_once import at_once
from loader_sets import check_equal, photographs, write_folder, write_lmdb, write_numbered
from numpy.typing import NDArray

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.containers.base import Located
from iofast.errors import ContainerError
from iofast.loader.plan import BatchPlans, LoaderParts, SamplePlan, plan_samples

CROP: list[Any] = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
TRANSFORMS: list[list[Any]] = [
    CROP,
    [T.RandomResizedCrop(24, interpolation="random"), T.RandomHorizontalFlip()],
    [T.Resize(30), T.RandomCrop(20, padding=4)],
    [T.ScaleJitter(32), T.RandomCrop(20, pad_if_needed=True)],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"rank": 1, "world_size": 3},
    {"batch_size": 7},
    {"batch_size": 7, "drop_last": True},
    {"order": list(range(0, 40, 3))},
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("plans") / "numbered.lmdb", photographs(40)))


def parts_of(dataset: FastDataset, together: int | None = None, **options: Any) -> LoaderParts:
    options = {"batch_size": 4, "transform": CROP, **({} if "order" in options else {"shuffle": True}), **options}
    loader = FastLoader(dataset, **options)
    if together is not None:
        loader._resources.together = together
    return loader._parts()


def plans_of(parts: LoaderParts, epoch: int = 0) -> BatchPlans:
    return BatchPlans(parts, epoch, parts.epochs.schedule.count)


def alone(parts: LoaderParts, epoch: int, batch: int) -> SamplePlan:
    return plan_samples(parts, epoch, parts.epochs.schedule.positions(batch)[0])


def same(one: SamplePlan, other: SamplePlan) -> bool:
    columns = zip(columns_of(one), columns_of(other), strict=True)
    return one.epoch == other.epoch and all(np.array_equal(own, their) for own, their in columns)


def columns_of(plan: SamplePlan) -> list[NDArray[Any]]:
    columns = plan.positions, plan.attempts, plan.indices, plan.boxes, plan.flips, *plan.located
    return [each for each in columns if each is not None]


@pytest.mark.parametrize("together", [1, 3, 16])
@pytest.mark.parametrize("options", OPTIONS, ids=["one", "rank", "short", "dropped", "sampler"])
def test_plans_are_those_of_each_batch_alone(dataset: FastDataset, together: int, options: dict[str, Any]) -> None:
    parts = parts_of(dataset, together, **options)
    for start in (0, 2):
        plans, order = plans_of(parts, 5), list(range(start, parts.epochs.schedule.count))
        if start:
            random.Random(together).shuffle(order)
        for batch in order:
            assert same(plans.take(batch), alone(parts, 5, batch))
        assert not plans._plans, "nothing is left over"


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: type(transform[0]).__name__)
def test_any_transform(tmp_path: Path, transform: list[Any]) -> None:
    place = write_lmdb(tmp_path / "set.lmdb", photographs(40))
    joined = FastDataset(place) + FastDataset(place)
    parts = parts_of(joined)._replace(spec=parts_of(joined, transform=CROP).spec)
    parts.spec.pipeline = T.compile(transform)
    plans = plans_of(parts, 3)
    made = [plans.take(batch) for batch in range(parts.epochs.schedule.count)]
    assert all(same(each, alone(parts, 3, batch)) for batch, each in enumerate(made))


def test_groups_grow(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for the first batch."""
    asked: list[int] = []
    parts, locate = parts_of(dataset, 4), FastDataset.locate

    def counted(self: FastDataset, indices: NDArray[np.int64]) -> Located:
        asked.append(len(indices))
        return locate(self, indices)

    monkeypatch.setattr(FastDataset, "locate", counted)
    plans = plans_of(parts)
    for batch in range(10):
        plans.take(batch)
    assert asked == [4, 4, 8, 16, 8]


def test_an_error_belongs_to_its_batch(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, locate = parts_of(dataset, 4), FastDataset.locate
    wrong = int(alone(parts, 0, 5).indices[1])

    def broken(self: FastDataset, indices: NDArray[np.int64]) -> Located:
        if wrong in indices:
            raise ContainerError("the index is damaged")
        return locate(self, indices)

    monkeypatch.setattr(FastDataset, "locate", broken)
    plans = plans_of(parts)
    for batch in range(10):
        if batch == 5:
            with pytest.raises(ContainerError, match="the index is damaged"):
                plans.take(batch)
        else:
            assert same(plans.take(batch), alone(parts, 0, batch))


class FailsOnce:
    """A sampler whose first run fails."""

    runs = 0

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Any:
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("the connection was lost")
        return iter(range(40))


def test_a_sampler_that_fails_does_not_run_again(dataset: FastDataset) -> None:
    sampler = FailsOnce()
    plans = plans_of(parts_of(dataset, 16, order=sampler))
    with pytest.raises(RuntimeError, match="the connection was lost"):
        plans.take(0)
    assert sampler.runs == 1


class FailsLate:
    """A sampler without end that fails behind the indices that are probed for one."""

    def __iter__(self) -> Any:
        yield from (number % 40 for number in range(66_000))
        raise RuntimeError("no more")


def test_batches_before_the_failure_of_an_endless_sampler_come(dataset: FastDataset) -> None:
    parts = parts_of(dataset, 16, batch_size=40, order=FailsLate())
    assert parts.epochs.order.endless
    plans = BatchPlans(parts, 0, 2000)
    for batch in range(1650):
        assert plans.take(batch).indices.tolist() == list(range(40))
    with pytest.raises(RuntimeError, match="no more"):
        plans.take(1650)


def test_many_threads(dataset: FastDataset) -> None:
    parts = parts_of(dataset, 3, batch_size=1)
    plans, found, order = plans_of(parts, 1), dict[int, SamplePlan](), list(range(40))
    random.Random(2).shuffle(order)

    def take(number: int) -> None:
        for batch in order[number::4]:
            found[batch] = plans.take(batch)

    at_once(*(partial(take, number) for number in range(4)))
    assert len(found) == 40
    assert all(same(found[batch], alone(parts, 1, batch)) for batch in order)


def test_a_slow_store_is_asked_by_all_threads_at_once(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, locate = parts_of(dataset, 1), FastDataset.locate
    both = threading.Barrier(2, timeout=20)

    def slow(self: FastDataset, indices: NDArray[np.int64]) -> Located:
        both.wait()
        return locate(self, indices)

    monkeypatch.setattr(FastDataset, "locate", slow)
    plans = plans_of(parts)
    at_once(*(partial(plans.take, batch) for batch in (0, 1)))
    assert not both.broken


def test_how_many(dataset: FastDataset, tmp_path: Path) -> None:
    folder = FastDataset(write_folder(tmp_path / "files", photographs(8)))
    sizes = (4, 64, 256, 1000, 4096)
    assert [parts_of(dataset, batch_size=size).resources.together for size in sizes] == [16, 16, 4, 1, 1]
    assert parts_of(folder).resources.together == 16


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("check", ["crc", None])
def test_a_file_that_another_program_writes_to(tmp_path: Path, workers: int, check: Any) -> None:
    """Payloads are looked up in its tree from then on; places of before do not hold."""
    path = write_numbered(tmp_path / "set.lmdb", photographs(120))
    options: dict[str, Any] = {"transform": [T.Resize((24, 24))], "num_workers": workers, "check": check}
    expected, found = list(FastLoader(FastDataset(path), 4, **options)), []
    for batch in FastLoader(FastDataset(path), 4, **options):
        found.append(batch)
        if len(found) == 3:
            put_again(path)
    check_equal(found, expected)


def put_again(path: Path) -> None:
    """Write each value once more, in several transactions, so that pages are used again."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False) as environment:
        for _ in range(6):
            with environment.begin(write=True) as transaction:
                for key, value in list(transaction.cursor()):
                    transaction.put(key, bytes(value))


def test_rows_of_a_batch_may_change(dataset: FastDataset) -> None:
    """A replaced sample changes the columns of its batch alone."""
    parts = parts_of(dataset, 4)
    plans = plans_of(parts)
    made = [plans.take(batch) for batch in range(3)]
    for column in columns_of(made[2])[1:]:
        column[...] = 0
    assert same(plans.take(3), alone(parts, 0, 3))
