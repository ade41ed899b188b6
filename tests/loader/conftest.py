"""Data sets of forty small photographs for the loader's tests, and the check that no thread is left."""

from pathlib import Path

import pytest
from loader_sets import photographs, with_broken, write_folder, write_lmdb, write_numbered

from iofast import FastDataset


@pytest.fixture(autouse=True)
def threads_end(no_thread_is_left: None) -> None:
    """After each test no thread of a loader runs."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photographs in class folders, packed by class, numbered, and numbered with three broken."""
    folder, images = tmp_path_factory.mktemp("photographs"), photographs(40)
    write_folder(folder / "folder", images)
    write_lmdb(folder / "set.lmdb", images)
    write_numbered(folder / "numbered.lmdb", images)
    with_broken(folder / "broken.lmdb", images, [5, 6, 30])
    return folder


@pytest.fixture(scope="session")
def numbered(place: Path) -> FastDataset:
    """Forty photographs whose labels are their numbers."""
    return FastDataset(place / "numbered.lmdb")


@pytest.fixture(scope="session")
def twenty(place: Path) -> FastDataset:
    """The first twenty of them."""
    return FastDataset(write_numbered(place / "twenty.lmdb", photographs(20)))
