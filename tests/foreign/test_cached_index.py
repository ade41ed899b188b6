"""The cached index of foreign files, for all formats: built once, rebuilt after a change, never trusted."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arrow_tables import table, write_arrow
from container_sets import picture
from foreign_lmdbs import settle
from foreign_lmdbs import write as write_lmdb
from tar_sets import foreign
from tfrecord_messages import write as write_tfrecord

from iofast import open_reader
from iofast.errors import ContainerError, SourceError
from iofast.foreign import cached_index
from iofast.foreign.cached_index import ForeignIndex, Format

COUNT = 5
OLD, NEW = [picture(number) for number in range(COUNT)], [picture(number + 7) for number in range(COUNT)]


def tar(folder: Path, images: list[bytes]) -> Path:
    for number, image in enumerate(images):
        foreign(folder / f"x-{number}.tar", {f"{number}.jpg": image})
    return folder / "x-*.tar"


def tfrecord(folder: Path, images: list[bytes]) -> Path:
    return write_tfrecord(folder / "x.tfrecord", [{"image": image} for image in images])


def lmdb(folder: Path, images: list[bytes]) -> Path:
    return write_lmdb(folder / "x.lmdb", {b"%d" % number: image for number, image in enumerate(images)})


def arrow(folder: Path, images: list[bytes]) -> Path:
    return write_arrow(folder / "x.arrow", table({"image": [{"bytes": image, "path": None} for image in images]}))


every_format = pytest.mark.parametrize("make", [tar, tfrecord, lmdb, arrow])


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def settled(make: Callable[[Path, list[bytes]], Path], folder: Path, images: list[bytes]) -> Path:
    """A set written a minute ago: an index of files that change right now is not reused."""
    path = make(folder, images)
    for file in files(folder):
        settle(file)
    return path


def images(path: Path) -> list[bytes | None]:
    with open_reader(path) as reader:
        return reader.values(np.arange(len(reader)))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Format]:
    """The formats that were scanned."""
    calls: list[Format] = []
    real = cached_index._build

    def build(data: Format, *rest: object) -> ForeignIndex:
        calls.append(data)
        return real(data, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cached_index, "_build", build)
    return calls


@every_format
def test_indexed_once(make: Callable[..., Path], tmp_path: Path, cache: Path, scans: list[Format]) -> None:
    path = settled(make, tmp_path, OLD)
    first = open_reader(path)
    again = open_reader(path)
    assert again.manifest == first.manifest
    copy = pickle.loads(pickle.dumps(again))
    assert copy.values(np.arange(COUNT)) == first.values(np.arange(COUNT)) == OLD
    again.close()
    assert again.record(3) == first.record(3)
    assert (len(scans), len(list(cache.glob("*.index")))) == (1, 1)


@every_format
def test_a_changed_file_is_indexed_again(make: Callable[..., Path], tmp_path: Path) -> None:
    path = settled(make, tmp_path, OLD)
    before = open_reader(path)
    assert before.values(np.arange(COUNT)) == OLD
    make(tmp_path, NEW)
    if make is not lmdb:
        for file in files(tmp_path):
            os.utime(file, ns=(1, 1))
    before.close()
    pickled = pickle.dumps(before)
    with pytest.raises(ContainerError, match=r"changed since|was written to since"):
        before.values(np.arange(COUNT))
    assert images(path) == NEW
    with pytest.raises(ContainerError, match=r"have changed since it was opened|was cut off"):
        pickle.loads(pickled).values(np.arange(COUNT))


@every_format
def test_damaged_and_missing_caches_are_replaced(
    make: Callable[..., Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(make, tmp_path, OLD)
    assert images(path) == OLD
    (index,) = cache.glob("*.index")
    index.write_bytes(index.read_bytes()[:-3])
    assert images(path) == OLD
    monkeypatch.setenv("XDG_CACHE_HOME", str(files(tmp_path)[0]))  # no folder can be created there
    reader = open_reader(path)
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert copy.values(np.arange(COUNT)) == reader.values(np.arange(COUNT)) == OLD


def test_a_file_that_changes_twice_within_one_tick_of_the_clock(tmp_path: Path) -> None:
    text = {"image": OLD[0], "label": 0, "class_name": b"tench"}
    path = write_tfrecord(tmp_path / "x.tfrecord", [text])
    stamp, size = path.stat().st_mtime_ns, path.stat().st_size
    assert open_reader(path).manifest.classes == ("tench",)
    write_tfrecord(path, [{**text, "class_name": b"shark"}])
    os.utime(path, ns=(stamp, stamp))
    assert path.stat().st_size == size
    assert open_reader(path).manifest.classes == ("shark",)


def test_a_file_written_to_during_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tfrecord(tmp_path, OLD)
    real = cached_index.stamps
    calls: list[object] = []

    def stamps(paths: list[str]) -> object:
        calls.append(paths)
        return real(paths) + len(calls)

    monkeypatch.setattr(cached_index, "stamps", stamps)
    with pytest.raises(SourceError, match=r"x\.tfrecord was written to while it was indexed"):
        open_reader(path)
