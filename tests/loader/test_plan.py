"""Plans of several batches, made together: errors, samplers and stores."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from loader_sets import check_equal, labels_of, photographs, write_numbered
from numpy.typing import NDArray

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.containers.base import Located
from iofast.errors import ContainerError
from iofast.loader.plan import BatchPlans

CROP: list[Any] = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


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


def loader_of(numbered: FastDataset, batch_size: int = 4, **options: Any) -> FastLoader:
    return FastLoader(numbered, batch_size, transform=CROP, num_workers=2, **options)


def test_an_error_belongs_to_its_batch(numbered: FastDataset, asked: list[Any]) -> None:
    """Batches are planned together, in groups that grow: the consumer waits for the first."""
    loader, counts = loader_of(numbered, shuffle=True), list[int]()
    loader._resources.together = 4
    expected = [labels.tolist() for _, labels in loader]
    wrong = expected[5][1]

    def broken(indices: NDArray[np.int64]) -> None:
        counts.append(len(indices))
        if wrong in indices:
            raise ContainerError("the index is damaged")

    asked.append(broken)
    loader.set_epoch(0)
    batches = iter(loader)
    assert labels_of(batches, 5) == expected[:5]
    with pytest.raises(ContainerError, match="the index is damaged"):
        next(batches)
    assert sorted(counts)[-2:] == [8, 16]


def test_a_slow_store_is_asked_by_all_threads_at_once(numbered: FastDataset, asked: list[Any]) -> None:
    loader, both = loader_of(numbered), threading.Barrier(2, timeout=20)
    loader._resources.together = 1
    asked.append(lambda _: both.wait())
    assert len(list(loader)) == 10


class Sampler:
    """Fails behind this many indices, without any once; one beyond what is probed has no known end."""

    def __init__(self, count: int) -> None:
        self.count, self.runs = count, 0

    def __iter__(self) -> Iterator[int]:
        self.runs += 1
        yield from (number % 40 for number in range(self.count))
        if self.runs == 1 or self.count:
            raise RuntimeError("the connection was lost")


class Sized(Sampler):
    def __len__(self) -> int:
        return 40


def test_a_sampler_that_fails_does_not_run_again(numbered: FastDataset) -> None:
    plans = BatchPlans(loader_of(numbered, order=(sampler := Sized(0)))._parts(), 0, 10)
    with pytest.raises(RuntimeError, match="the connection was lost"):
        plans.take(0)
    assert sampler.runs == 1


def test_batches_before_the_failure_of_an_endless_sampler_come(numbered: FastDataset) -> None:
    plans = BatchPlans(loader_of(numbered, 40, order=Sampler(66_000))._parts(), 0, 2000)
    assert all(plans.take(batch).indices.tolist() == list(range(40)) for batch in range(1650))
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
