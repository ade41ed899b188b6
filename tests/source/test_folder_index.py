"""The index of a plain folder: built once, reused, shared by processes, validated."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from folder_images import image, settle

from iofast.errors import SourceError
from iofast.source import folder_index as index_module
from iofast.source.folder import FolderReader

PROGRAM = """
import sys
from iofast.source.folder import FolderReader
reader = FolderReader(sys.argv[1])
print(len(reader), reader.locate(range(len(reader))).width.sum(), reader.manifest.fingerprint)
"""


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever an index is built instead of found."""
    calls: list[object] = []
    real = index_module.scan

    def counted(*arguments: object) -> object:
        calls.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(index_module, "scan", counted)
    return calls


def test_the_second_opening_finds_the_index(root: Path, builds: list[object], cache: Path) -> None:
    first = FolderReader(root)
    second = FolderReader(root)
    assert len(builds) == 1
    assert second.manifest == first.manifest
    for one, other in zip(first.locate(np.arange(5)), second.locate(np.arange(5)), strict=True):
        assert np.array_equal(one, other)  # type: ignore[arg-type]
    assert len(list(cache.glob("*.index"))) == 1
    assert not list(cache.glob("*.tmp"))


def test_files_added_and_removed_are_noticed(root: Path) -> None:
    before = FolderReader(root)
    (root / "dog" / "0.jpg").write_bytes(image(9, 9))
    after = FolderReader(root)
    assert (len(before), len(after)) == (5, 6)
    (root / "dog" / "0.jpg").unlink()
    (root / "cat" / "1.jpg").unlink()
    assert len(FolderReader(root)) == 4
    (root / "cow").mkdir()
    assert FolderReader(root).manifest.classes == ("cat", "cow", "dog")


def test_an_index_from_just_after_a_change_is_not_trusted(root: Path, builds: list[object]) -> None:
    os.utime(root / "cat")
    FolderReader(root)
    FolderReader(root)
    assert len(builds) == 2
    settle(root)
    for _ in range(3):
        FolderReader(root)
    assert len(builds) == 3


def test_an_unusable_cache_is_no_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = root.parent / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    reader = FolderReader(root)
    assert "the index is not kept, so the next start builds it again: no folder" in caplog.text
    assert reader.locate(np.arange(5)).width.tolist() == [40, 20, 17, 12, 0]
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert copy.locate(np.arange(5)).width.tolist() == reader.locate(np.arange(5)).width.tolist()


def test_a_disk_that_fills_up_leaves_nothing_behind(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert len(FolderReader(root)) == 5
    assert "cannot be written: the disk is full" in caplog.text
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_many_processes_open_at_once_and_one_reads_the_headers(root: Path, cache: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {process.communicate(timeout=60)[0] for process in running}
    assert len(said) == 1
    assert said.pop().startswith("5 89 sha256:")
    assert len(list(cache.glob("*.index"))) == 1


def test_threads_that_wait_for_the_lock_use_the_new_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = index_module.build_index

    def slow(*arguments: object) -> object:
        built.append(threading.current_thread().name)
        time.sleep(0.2)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(index_module, "build_index", slow)
    readers: list[FolderReader] = []
    threads = [threading.Thread(target=lambda: readers.append(FolderReader(root))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readers) == 4
    assert len(built) == 1


def test_a_pickled_reader_sees_the_same_images(root: Path, builds: list[object]) -> None:
    reader = FolderReader(root)
    data = pickle.dumps(reader)
    assert len(data) < 2000
    copy = pickle.loads(data)
    assert copy.locate(np.arange(5)).width.tolist() == [40, 20, 17, 12, 0]
    (root / "cat" / "9.jpg").write_bytes(image(3, 3))
    late = pickle.loads(data)
    assert len(late) == len(late.locate(np.arange(5)).width) == 5  # the index is still that of the first opening
    assert len(builds) == 1
    FolderReader(root)  # now it is replaced
    with pytest.raises(SourceError, match=r"images were added to .* or removed"):
        pickle.loads(data).view(0)


def test_a_closed_reader_opens_again(root: Path, builds: list[object]) -> None:
    reader = FolderReader(root)
    reader.close()
    assert bytes(reader.view(0)) == (root / "cat/1.jpg").read_bytes()
    assert len(builds) == 1


def test_a_header_far_into_the_file_is_found(tmp_path: Path) -> None:
    plain = image(30, 20)
    (tmp_path / "far").mkdir()
    for name, padding in (("a.jpg", 1), ("b.jpg", 4)):  # application segments before the frame header
        segment = b"\xff\xef\xff\xff" + bytes(65_533)
        (tmp_path / "far" / name).write_bytes(plain[:2] + segment * padding + plain[2:])
    assert FolderReader(tmp_path / "far").locate(np.arange(2)).width.tolist() == [30, 30]
