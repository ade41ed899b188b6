"""Open files: bytes like `bytes`, an error if a file shrinks, and few descriptors, given back where none is left."""

import contextlib
import errno
import gc
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iofast.containers import file_bytes
from iofast.containers.file_bytes import FileBytes, advice, bounded, none_left, opened
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError, SourceError
from iofast.source.folder_index import open_index
from iofast.source.image_files import content, read_header

DATA = np.random.default_rng(0).bytes(3 * 4096 + 100)


@pytest.fixture
def own(tmp_path: Path) -> FileBytes:
    (tmp_path / "own").write_bytes(DATA)
    return FileBytes(str(tmp_path / "own"))


def test_slices_are_those_of_bytes(own: FileBytes) -> None:
    assert len(own) == len(DATA)
    for part in (slice(0, 5), slice(4090, 8200), slice(None, 7), slice(12_000, None), slice(5, 5), slice(9, 2)):
        assert own[part] == DATA[part]
    assert own[len(DATA) - 3 : len(DATA) + 50] == DATA[-3:]


@pytest.mark.parametrize("size", [1, 58, 4097])
def test_gather_gives_the_bytes_at_each_offset(own: FileBytes, size: int) -> None:
    end = len(DATA) - size
    random = np.random.default_rng(size).integers(0, end + 1, 2000)
    runs = np.array([0, size, 2 * size, 0, 0, end, end - size, end]).clip(0, end)
    for offsets in (random, np.sort(random), runs, random[:1], random[:0], random[::3]):
        rows = own.gather(offsets, size)
        assert (rows.shape, rows.dtype) == ((len(offsets), size), np.uint8)
        assert [row.tobytes() for row in rows] == [DATA[at : at + size] for at in offsets.tolist()]


@pytest.mark.parametrize("left", [0, 50, 4096, 8000])
def test_a_file_that_shrinks_is_an_error(own: FileBytes, left: int) -> None:
    """Within a page too, where a map would show zeros."""
    os.truncate(own.path, left)
    message = re.escape(f"{own.path} was truncated while it was open: {left} bytes, expected {len(DATA)}")
    with pytest.raises(ContainerError, match=message):
        own.check_size()
    with pytest.raises(ContainerError, match=message):
        own[left - left % 100 : left + 8]
    for offsets in ([left], [0, 12_000], [left - 10, left], [12_000 - 60, 12_000 - 30, 12_000]):
        with pytest.raises(ContainerError, match=message):
            own.gather(np.array(offsets).clip(0), 30)
    if left:
        assert own[: left - 1] == DATA[: left - 1]
        assert own.gather(np.array([left - 30]), 30).tobytes() == DATA[left - 30 : left]


def test_rows_that_a_file_cannot_have(own: FileBytes) -> None:
    for offset in (len(DATA) - 29, len(DATA), (1 << 63) - 1, (1 << 63) - 31):
        with pytest.raises(ContainerError):
            own.gather(np.array([0, offset]), 30)
    with pytest.raises(ValueError, match="one byte or more"):
        own.gather(np.array([0]), 0)


def test_a_file_that_cannot_be_read(own: FileBytes, tmp_path: Path) -> None:
    real, folder = own.fd, os.open(tmp_path, os.O_RDONLY)
    own.fd = folder  # reading a directory fails as a broken disk does: an errno, no bytes
    try:
        for read in (lambda: own[0:5], lambda: own.gather(np.array([0, 10]), 5)):
            with pytest.raises(ContainerError, match=f"{own.path} cannot be read.*: Is a directory"):
                read()
    finally:
        own.fd = real
        os.close(folder)


def test_a_read_may_give_less_than_asked_for(own: FileBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 1000), offset))
    assert own[5:9000] == DATA[5:9000]


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
    before = len(file_bytes._keepers)
    OpenFiles(["a"], lambda number, status: None)
    assert len(file_bytes._keepers) == before
