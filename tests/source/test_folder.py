"""Plain folders as readers: columns, fields, payloads, changing files; an index built once, shared and validated."""

import json
import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from folder_images import decode, image, settle
from PIL import Image

from iofast import FastDataset, kernel
from iofast.errors import DecodeError, SourceError
from iofast.record import image_field
from iofast.source import folder as folder_module
from iofast.source import folder_index as index_module
from iofast.source.folder import MAX_DESCRIPTORS, FolderReader


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_locate_gives_upright_sizes_and_labels(root: Path) -> None:
    reader = FolderReader(root)
    located = reader.locate(np.arange(5))
    assert located.width.tolist() == [40, 20, 17, 12, 0]
    assert located.height.tolist() == [30, 50, 9, 34, 0]
    assert located.orientation.tolist() == [1, 6, 1, 1, 1]
    assert located.label.tolist() == [0, 0, 0, 1, 1]
    assert located.length.tolist() == [(root / reader.source.path(i).decode()).stat().st_size for i in range(5)]
    assert located.crc is None
    assert [column.dtype for column in located[:-1]] == ["i8", "i4", "i4", "i4", "u1", "u4", "u8", "u8", "u1"]  # type: ignore[union-attr]
    assert reader.locate(np.array([3, 1, 3])).label.tolist() == reader.labels(np.array([3, 1, 3])).tolist() == [1, 0, 1]


def test_out_of_range_and_unknown_fields_are_refused(root: Path) -> None:
    reader = FolderReader(root)
    for indices in ([5], [-1], [0, 99]):
        with pytest.raises(IndexError, match="of 5 images"):
            reader.locate(np.array(indices))
    with pytest.raises(KeyError, match="no field 'txt'"):
        reader.locate(np.array([0]), "txt")
    with pytest.raises(KeyError, match="field 'cls' lies in no file"):
        reader.locate(np.array([0]), "cls")
    with pytest.raises(KeyError, match="has no field 'txt'"):
        reader.view(0, "txt")
    with pytest.raises(IndexError):
        reader.view(5)
    assert len(reader.locate(np.array([], np.int64)).label) == 0


def test_views_and_records_hold_the_files_bytes(root: Path) -> None:
    reader = FolderReader(root)
    names = ["jpg", "jpg", "png", "webp", "jpg"]
    for index, name in enumerate(names):
        data = (root / reader.source.path(index).decode()).read_bytes()
        record = reader.record(index)
        assert bytes(reader.view(index)) == bytes(reader.view(index, "jpg")) == data == record.fields[name]
        assert image_field(record.fields) == name
        assert record.key == f"{index:08d}"
        assert record.fields["cls"] == bytes(reader.view(index, "cls")) == (b"0" if index < 3 else b"1")
        assert json.loads(record.fields["json"]) == {"path": reader.source.path(index).decode()}
        assert reader.name(index) == f"{root}/{reader.source.path(index).decode()}"
    assert [record.key for record in reader] == [f"{index:08d}" for index in range(5)]


def test_the_kernel_reads_what_payloads_gives(root: Path) -> None:
    reader = FolderReader(root)
    pixels, status = decode(reader, [3, 0, 1])
    assert status == [0, 0, 0]
    for row, index in enumerate([3, 0, 1]):
        whole = kernel.decode(reader.view(index), int(reader.locate(np.array([index])).orientation[0]))
        expected = np.asarray(Image.fromarray(whole).resize((8, 8), Image.Resampling.BILINEAR))
        assert np.abs(pixels[row].astype(int) - expected).max() <= 2


def test_a_manifest_file_is_read_with_its_columns(root: Path) -> None:
    table = root / "m.csv"
    table.write_text("path,label,caption,split\ncat/1.jpg,cat,one,val\ndog/4.webp,dog,,train\ncat/2.jpg,cat,two,val\n")
    os.utime(table, (1_000_000_000, 1_000_000_000))
    for _ in range(2):  # built, then from the cache
        reader = FolderReader(table)
        assert reader.manifest.fields == ("caption.txt", "cls", "jpg", "json")
        assert reader.manifest.splits == {"train": ((0, 1),), "val": ((1, 3),)}
        assert reader.locate(np.arange(3)).width.tolist() == [12, 40, 20]
        assert bytes(reader.view(1, "caption.txt")) == b"one"
        assert "caption.txt" not in reader.record(0).fields
        assert decode(reader, [0, 1, 2])[1] == [0, 0, 0]
    table.write_text("path\ncat/1.jpg\n")
    assert len(FolderReader(table)) == 1


@pytest.mark.parametrize("descriptors", [0, 2, 64])
def test_a_missing_or_grown_file_fails_or_works_alone(
    root: Path, descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MAX_DESCRIPTORS", descriptors)
    reader = FolderReader(root)
    (root / "cat" / "1.jpg").unlink()
    (root / "cat" / "2.jpg").write_bytes((root / "cat" / "2.jpg").read_bytes() + bytes(1000))
    os.mkfifo(root / "cat" / "1.jpg")
    (root / "dog" / "4.webp").unlink()
    _, status = decode(reader, [0, 1, 2, 3, 4])
    assert status[:4] == [kernel.Status.READ, kernel.Status.OK, kernel.Status.OK, kernel.Status.READ]
    assert status[4] not in (kernel.Status.OK, -1)
    with pytest.raises(SourceError, match=r"cannot read .*4\.webp: No such file"):
        reader.view(3)


def test_no_more_than_64_descriptors_and_none_afterwards(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03d}.jpg").write_bytes(image(16, 16, seed=number))
    many = FolderReader(tmp_path)
    located = many.locate(np.arange(100))
    before = open_descriptors()
    with many.payloads(located, 0, 100) as one:
        held = open_descriptors() - before
        assert held == MAX_DESCRIPTORS == 64
        with many.payloads(located, 40, 60) as other:
            assert open_descriptors() - before == held
            assert (other.fds == -1).all()
        assert np.count_nonzero(one.fds == -1) == 36
        assert one.lengths.tolist() == located.length.tolist()
    assert open_descriptors() == before
    with pytest.raises(ZeroDivisionError), many.payloads(located, 0, 10):
        _ = 1 // 0
    assert open_descriptors() == before
    with many.payloads(located, 0, 64) as again:
        assert (again.fds >= 0).all(), "all may be opened once more"


@pytest.mark.parametrize("descriptors", [0, 64])
def test_an_empty_file_is_called_empty(tmp_path: Path, descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_DESCRIPTORS", descriptors)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").write_bytes(b"")
    (tmp_path / "images" / "1.jpg").write_bytes(image(9, 7))
    reader = FolderReader(tmp_path / "images")
    assert decode(reader, [1, 0])[1] == [kernel.Status.OK, kernel.Status.EMPTY]
    assert bytes(reader.view(0)) == b""
    with pytest.raises(DecodeError, match=r"0\.jpg: the file or field is empty"):
        FastDataset(tmp_path / "images")[0]


def test_a_path_that_is_not_utf8_reads(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with open(os.path.join(os.fsencode(tmp_path / "raw"), b"caf\xe9.jpg"), "wb") as file:
        file.write(image(11, 7))
    for _ in range(2):
        reader = FolderReader(tmp_path / "raw")
        assert decode(reader, [0])[1] == [0]
        assert reader.name(0).endswith("caf\\xe9.jpg")
        assert json.loads(bytes(reader.view(0, "json"))) == {"path": "caf\\xe9.jpg"}


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


def test_files_added_and_removed_are_noticed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = FolderReader(root)
    (root / "dog" / "0.jpg").write_bytes(image(9, 9))
    after = FolderReader(root)
    assert (len(before), len(after)) == (5, 6)
    (root / "dog" / "0.jpg").unlink()
    (root / "cat" / "1.jpg").unlink()
    assert len(FolderReader(root)) == 4
    (root / "cow").mkdir()
    assert FolderReader(root).manifest.classes == ("cat", "cow", "dog")
    settle(root)
    FolderReader(root)
    (root / "cow").rmdir()
    settle(root)
    assert FolderReader(root).manifest.classes == ("cat", "dog")
    assert [text for text in caplog.messages if "without images: cow" in text] == caplog.messages[:1]  # once


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


def test_a_header_far_into_the_file_is_found(tmp_path: Path) -> None:
    plain = image(30, 20)
    (tmp_path / "far").mkdir()
    for name, padding in (("a.jpg", 1), ("b.jpg", 4)):  # application segments before the frame header
        segment = b"\xff\xef\xff\xff" + bytes(65_533)
        (tmp_path / "far" / name).write_bytes(plain[:2] + segment * padding + plain[2:])
    assert FolderReader(tmp_path / "far").locate(np.arange(2)).width.tolist() == [30, 30]
