"""Few descriptors: readers keep fewer files open, and give back what they keep where none is left."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from iofast.containers import file_bytes
from iofast.containers.file_bytes import advice, bounded, keep, none_left, opened
from iofast.containers.open_files import OpenFiles
from iofast.errors import SourceError
from iofast.source.folder_index import open_index
from iofast.source.image_files import content, read_header


@pytest.fixture
def limit() -> Iterator[Any]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def exhausted() -> Iterator[int]:
    """Take every descriptor that is left; yields their number."""
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield len(taken)
    finally:
        for each in taken:
            os.close(each)


def files(folder: Path, count: int) -> list[str]:
    for number in range(count):
        (folder / str(number)).write_bytes(b"payload")
    return [str(folder / str(number)) for number in range(count)]


def test_the_part_of_one_reader(limit: Any) -> None:
    assert [bounded(128), bounded(0)] == [128, 0]
    limit(256)
    assert [bounded(128), bounded(20), bounded(0)] == [32, 20, 0]


def test_files_kept_for_later_are_closed_for_others(tmp_path: Path, limit: Any) -> None:
    paths = files(tmp_path, 30)
    limit(len(os.listdir("/proc/self/fd")) + 200)
    first, second = (OpenFiles(paths, lambda number, status: None) for _ in range(2))
    used = [first.get(number) for number in range(10)]
    for number in range(20):
        first.get(number)
    with exhausted():
        assert second.read(25, 0, 7) == b"payload"
        assert all(file is not None and file[:] == b"payload" for file in used), "files in use stay open"
        with exhausted() as more:
            assert more >= 5, "files that only the first reader kept were closed"
            del used[0]
            gc.collect()
            os.close(opened(paths[0], os.O_RDONLY))


def test_without_descriptors_the_limit_is_named(tmp_path: Path, limit: Any) -> None:
    (path,) = files(tmp_path, 1)
    limit(len(os.listdir("/proc/self/fd")) + 20)
    with exhausted():
        with pytest.raises(OSError, match="Too many open files") as caught:
            opened(path, os.O_RDONLY)
        assert none_left(caught.value)
        assert "ulimit -n" in advice(caught.value)
        with pytest.raises(ValueError, match=rf"{path} cannot be opened: too many open files \(this process may have"):
            OpenFiles([path], lambda number, status: None).read(0, 0, 7)
    assert not advice(FileNotFoundError(errno.ENOENT, "no such file"))
    with pytest.raises(FileNotFoundError):
        opened(f"{path} not", os.O_RDONLY)


def test_without_descriptors_no_image_is_listed_as_broken(
    tmp_path: Path, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the cached listing would keep the error for ever."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "images"
    (root / "cat").mkdir(parents=True)
    Image.new("RGB", (5, 7)).save(root / "cat" / "a.png")
    whole = open_index(tmp_path / "images")
    shutil.rmtree(tmp_path / "cache")
    limit(len(os.listdir("/proc/self/fd")) + 20)
    with exhausted():
        with pytest.raises(SourceError, match=r"a\.png: too many open files \(this process may have"):
            read_header(os.fsencode(root / "cat" / "a.png"))
        with pytest.raises(SourceError, match=r"a\.png: Too many open files \(this process may have"):
            content(os.fsencode(root / "cat" / "a.png"))
        with pytest.raises(SourceError):
            open_index(root)
    again = open_index(root)
    assert (again.width[0], again.height[0]) == (whole.width[0], whole.height[0]) == (5, 7)


def test_a_deleted_reader_is_forgotten() -> None:
    class Once:
        def let_go(self) -> None:
            raise AssertionError("called without need")

    before, once = len(file_bytes._keepers), Once()
    keep(once)
    assert len(file_bytes._keepers) == before + 1
    del once
    assert len(file_bytes._keepers) == before
