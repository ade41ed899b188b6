"""`num_workers=0`: the consumer's own thread makes each batch, and it is the same batch."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import lend
from loader_sets import check_equal, digest, labels_of, workers

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError
from iofast.loader.batches import BatchJob

N = 40
RESIZE: dict[str, Any] = {"transform": [T.Resize((16, 16))]}
COLOURS: dict[str, Any] = {
    "transform": [T.RandomResizedCrop(24), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet(), T.RandomErasing(0.5)],
    "dtype": torch.float32,
    "shuffle": True,
}


def make(place: Path, num_workers: int = 0, name: str = "numbered.lmdb", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name), 7, num_workers=num_workers, **options)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Every batch is made in this thread, while iofast has no other thread."""
    made: list[tuple[int, int]] = []
    run = BatchJob.run

    def noted(job: BatchJob, number: int, part: Any) -> None:
        made.append((threading.get_ident(), workers()))
        run(job, number, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchJob, "run", noted)
        yield
    assert set(made) == {(threading.get_ident(), 0)}


@pytest.mark.parametrize("device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize(
    "options",
    [COLOURS, RESIZE, RESIZE | {"cache": "device"}, {"ragged": "list"}],
    ids=["colours", "plain", "cached", "list"],
)
def test_the_same_batches(place: Path, options: dict[str, Any], device: bool) -> None:
    expected = list(make(place, 2, **options))
    loader = make(place, **options)
    if device:
        lend(loader)
    with alone():
        check_equal(loader, expected)


def test_users_functions_are_called_in_it_too(place: Path) -> None:
    seen: dict[int, set[int]] = {0: set(), 2: set()}
    labels = {}
    for count in seen:

        def noted(sample: dict[str, Any], rng: np.random.Generator, count: int = count) -> dict[str, Any]:
            seen[count].add(threading.get_ident())
            return sample | {"label": int(rng.integers(1 << 30))}

        labels[count] = labels_of(make(place, count, map_sample=noted, **RESIZE))
    assert labels[0] == labels[2]
    assert seen[0] == {threading.get_ident()}


def test_places_and_peeks(place: Path) -> None:
    whole = labels_of(make(place, 2, **COLOURS))
    loader = make(place, **COLOURS)
    batches = iter(loader)
    assert next(batches)[1].tolist() == whole[0]
    assert loader.peek()[1].tolist() == whole[1]
    again = make(place, 2, **COLOURS)
    again.load_state_dict(loader.state_dict())
    assert labels_of(again) == labels_of(batches) == whole[1:]


def test_errors_come_with_their_batch(place: Path) -> None:
    batches = iter(make(place, name="broken.lmdb", **RESIZE))
    with pytest.raises(DecodeError, match=r"broken\.lmdb: 0+5: .* \(and 1 more of this batch\)"):
        next(batches)
    assert next(batches, None) is None
    for how in ("replace", "drop"):
        options: dict[str, Any] = {"on_error": how, **RESIZE}
        other, own = make(place, 2, "broken.lmdb", **options), make(place, name="broken.lmdb", **options)
        assert digest(own) == digest(other)
        assert own.failures == other.failures != []


def test_a_ctrl_c_loses_no_batch(place: Path) -> None:
    """It comes while a batch is made, in the thread that makes it."""

    def interrupted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sample["label"] == 9 and not done:
            done.append(True)
            signal.raise_signal(signal.SIGINT)
        return sample

    done: list[bool] = []
    loader = make(place, map_sample=interrupted, **RESIZE)
    batches = iter(loader)
    assert next(batches)[1].tolist() == [*range(7)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    loader.set_epoch(0)
    assert [label for _, labels in loader for label in labels.tolist()] == [*range(7, N)]


def test_stats(place: Path) -> None:
    loader = make(place, **RESIZE)
    assert len(list(loader)) == 6
    stats = loader.stats
    assert (loader.num_workers, stats.num_workers, stats.depth, stats.images) == (0, 0, 1, N)
    assert stats.stages["decode"].items == N
    assert 0 < stats.cpu_share <= 1
