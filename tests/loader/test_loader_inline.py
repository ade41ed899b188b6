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
from loader_sets import digest, photographs, with_broken, workers, write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.errors import DecodeError, OptionError
from iofast.loader.batches import BatchJob

N = 40
IMAGES = photographs(N)
RESIZE: dict[str, Any] = {"transform": [T.Resize((16, 16))]}
COLOURS: dict[str, Any] = {
    "transform": [T.RandomResizedCrop(24), T.ColorJitter(0.4, 0.4), T.Normalize.imagenet(), T.RandomErasing(0.5)],
    "dtype": torch.float32,
    "shuffle": True,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inline")
    write_numbered(folder / "set.lmdb", IMAGES)
    with_broken(folder / "broken.lmdb", IMAGES, [5, 6, 30])
    return folder


def make(place: Path, num_workers: int = 0, name: str = "set.lmdb", **options: Any) -> FastLoader:
    return FastLoader(FastDataset(place / name), 7, num_workers=num_workers, **options)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Every batch is made in this thread, and no other thread of ours is there meanwhile."""
    made: list[tuple[int, int]] = []
    run = BatchJob.run

    def noted(job: BatchJob, number: int, part: Any) -> None:
        made.append((threading.get_ident(), workers()))
        run(job, number, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchJob, "run", noted)
        yield
    assert set(made) == {(threading.get_ident(), 0)}


@pytest.mark.parametrize("options", [COLOURS, RESIZE, RESIZE | {"cache": "device"}], ids=["colours", "plain", "cached"])
def test_the_same_batches(place: Path, options: dict[str, Any]) -> None:
    expected = digest(make(place, 2, **options))
    with alone():
        assert digest(make(place, **options)) == expected


def test_images_of_different_sizes(place: Path) -> None:
    expected = [images for images, _ in make(place, 2, ragged="list")]
    with alone():
        for images, wanted in zip(make(place, ragged="list"), expected, strict=True):
            assert all(map(torch.equal, images[0], wanted))


def test_the_same_batches_on_a_device(place: Path) -> None:
    expected = digest(make(place, 2, **COLOURS))
    loader = make(place, **COLOURS)
    lend(loader)
    with alone():
        assert digest(loader) == expected


def test_users_functions_are_called_in_it_too(place: Path) -> None:
    seen = set()

    def noted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        seen.add(threading.get_ident())
        return sample | {"label": int(rng.integers(1 << 30))}

    loaders = [make(place, count, map_sample=noted, **RESIZE) for count in (2, 0)]
    labels = [[batch.tolist() for _, batch in loader] for loader in loaders[:1]]
    seen.clear()
    labels += [[batch.tolist() for _, batch in loader] for loader in loaders[1:]]
    assert labels[0] == labels[1]
    assert seen == {threading.get_ident()}


def test_places_and_peeks(place: Path) -> None:
    whole = [labels.tolist() for _, labels in make(place, 2, **COLOURS)]
    loader = make(place, **COLOURS)
    batches = iter(loader)
    assert next(batches)[1].tolist() == whole[0]
    assert loader.peek()[1].tolist() == whole[1]
    again = make(place, 2, **COLOURS)
    again.load_state_dict(loader.state_dict())
    assert [labels.tolist() for _, labels in again] == whole[1:]
    assert [labels.tolist() for _, labels in batches] == whole[1:]


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


def test_what_it_says_of_itself(place: Path) -> None:
    loader = make(place, **RESIZE)
    assert len(list(loader)) == 6
    stats = loader.stats
    assert (loader.num_workers, stats.num_workers, stats.depth, stats.images) == (0, 0, 1, N)
    assert stats.stages["decode"].items == N
    assert 0 < stats.cpu_share <= 1


def test_options_that_need_threads(place: Path) -> None:
    with pytest.raises(
        OptionError, match=r"^prefetch=2 needs threads that work ahead: leave it out with num_workers=0"
    ):
        make(place, prefetch=2)
    with pytest.raises(OptionError, match=r"num_workers .* whole number from 0 to 256, found -1"):
        make(place, -1)
