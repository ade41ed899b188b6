"""`open_reader` and `open_writer`: what they open, and records that a user writes."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernel_images import exif, save
from PIL import Image

from iofast import FastDataset, open_reader, open_writer, pack
from iofast.containers.lmdb import LmdbReader
from iofast.errors import (
    ContainerError,
    DecodeError,
    IofastError,
    SourceError,
    UnfinishedError,
)


def image(kind: str = "JPEG", size: tuple[int, int] = (30, 20), orientation: int = 1) -> bytes:
    return save(Image.new("RGB", size, (200, 100, 50)), kind, exif=exif(orientation))


def write_one(path: Path, fields: dict[str, object], **options: object) -> None:
    with open_writer(path, **options) as writer:  # type: ignore[arg-type]
        writer.write(fields)  # type: ignore[arg-type]


# Writing.


def test_records_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "out.lmdb"
    jpeg, png = image(size=(30, 20), orientation=6), image("PNG", (7, 9))
    with open_writer(path, classes=["cat", "dog"], recipe={"by": "hand"}, split="train") as writer:
        assert writer.write({"jpg": jpeg, "cls": 1, "boxes.json": [[1, 2], [3, 4]], "txt": "ein Häuschen"}) == 0
        assert writer.write({"png": bytearray(png), "cls": np.int64(0), "score": 0.25}) == 1
        assert writer.write({"json": {"a": None}, "n": True, "raw": memoryview(b"abc")}, split="val") == 2
    assert os.listdir(tmp_path) == ["out.lmdb"]

    with open_reader(path) as reader:
        assert [record.key for record in reader] == ["00000000", "00000001", "00000002"]
        first, second, third = (record.fields for record in reader)
        located = reader.locate(np.arange(3))
    assert first == {"jpg": jpeg, "cls": b"1", "boxes.json": b"[[1,2],[3,4]]", "txt": "ein Häuschen".encode()}
    assert second == {"png": png, "cls": b"0", "score": b"0.25"}
    assert third == {"json": b'{"a":null}', "n": b"1", "raw": b"abc"}
    assert located.label.tolist() == [1, 0, -1]
    assert located.width.tolist() == [20, 7, 0]  # upright
    assert located.height.tolist() == [30, 9, 0]
    assert located.orientation.tolist() == [6, 1, 1]
    assert writer.manifest == reader.manifest
    assert reader.manifest.classes == ("cat", "dog")
    assert reader.manifest.recipe == {"by": "hand"}
    assert reader.manifest.splits == {"train": ((0, 2),), "val": ((2, 3),)}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, ContainerError, "no field"),
        ({"a b": b""}, ContainerError, "field name 'a b'"),
        ({"../x": b""}, ContainerError, "field name"),
        ({"__iofast__": b""}, ContainerError, "field name"),
        ({"pkl": b""}, ContainerError, "pickled"),
        ({"mask.pth": b""}, ContainerError, "pickled"),
        ({"x": None}, ContainerError, "field x must be .* found NoneType"),
        ({"x": float("nan")}, ContainerError, "field x: "),
        ({"x": {"y": object()}}, ContainerError, "field x: "),
        ({"cls": "cat"}, ContainerError, "class index in decimal, found b'cat'"),
        ({"cls": "01"}, ContainerError, "class index"),
        ({"cls": 10**12}, ContainerError, "class index"),
        ({"cls": 2}, ContainerError, "cls is 2, but there are 2 classes"),
        ({"jpg": b"no image"}, DecodeError, "image"),
        ({"jpg": image("PNG")}, ContainerError, "field jpg has a png image"),
        ({"rgb": bytes(45)}, ContainerError, "needs integers width and height"),
        ({"rgb": bytes(45), "json": {"width": 5, "height": 4}}, ContainerError, "has 45 bytes, 5×4 needs 60"),
        ({"rgb": b"", "json": {"width": -5, "height": 0}}, ContainerError, "needs"),
        ({"rgb": bytes(45), "json": {"width": "5", "height": 3}}, ContainerError, "needs integers"),
    ],
)
def test_a_refused_record_leaves_the_rest(
    tmp_path: Path, fields: dict[str, object], error: type[IofastError], message: str
) -> None:
    with open_writer(tmp_path / "out.lmdb", classes=["a", "b"]) as writer:
        writer.write({"cls": 0})
        with pytest.raises(error, match=message):
            writer.write(fields)  # type: ignore[arg-type]
        assert writer.write({"cls": 1}) == 1
    assert [record.fields["cls"] for record in open_reader(tmp_path / "out.lmdb")] == [b"0", b"1"]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_writer(tmp_path / "out.lmdb") as writer:  # noqa: PT012
        writer.write({"txt": "x"})
        assert os.listdir(tmp_path) == ["out.lmdb.partial"]
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    write_one(tmp_path / "out.lmdb", {"txt": "old"})
    write_one(tmp_path / "out.lmdb", {"txt": "new"}, overwrite=True)
    assert open_reader(tmp_path / "out.lmdb").record(0).fields["txt"] == b"new"


def test_a_finish_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="JSON"):
        write_one(tmp_path / "o.lmdb", {"txt": "x"}, recipe={"x": object()})
    assert os.listdir(tmp_path) == []


def test_without_a_with_block(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "out.lmdb")
    writer.write({"txt": "x"})
    manifest = writer.finish()
    assert manifest == open_reader(tmp_path / "out.lmdb").manifest
    with pytest.raises(ContainerError, match="closed"):
        writer.write({"txt": "y"})
    writer = open_writer(tmp_path / "other.lmdb")
    writer.abort()
    assert os.listdir(tmp_path) == ["out.lmdb"]


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    killed = open_writer(tmp_path / "out.lmdb")
    killed.write({"txt": "half"})
    killed._target.release()  # as the end of its process does
    write_one(tmp_path / "out.lmdb", {"txt": "whole"})
    assert os.listdir(tmp_path) == ["out.lmdb"]
    killed._writer.abort()


# Opening.


def test_what_is_opened_by_its_bytes_and_not_its_name(tmp_path: Path) -> None:
    write_one(tmp_path / "out.lmdb", {"txt": "x"})
    (tmp_path / "out.lmdb").rename(tmp_path / "renamed.tar")
    assert isinstance(open_reader(str(tmp_path / "renamed.tar")), LmdbReader)


def partial(path: Path) -> None:
    path.with_name(path.name + ".partial").mkdir()


def text(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("hello " * 100)


@pytest.mark.parametrize(
    ("make", "name", "error", "message"),
    [
        (os.mkfifo, "x.lmdb", SourceError, "is neither a file nor a folder"),
        (os.mkfifo, "x.tar", SourceError, "is neither a file nor a folder"),
        (partial, "x.lmdb", UnfinishedError, "was not finished: run the same command again"),
        (Path.touch, "x.lmdb", ContainerError, "is not a container"),
        (text, "x.lmdb", ContainerError, "is not a container"),
        (partial, "x.tar", UnfinishedError, "was not finished: run the same command again"),
        (text, "x.tar", ContainerError, "is no tar file"),
        (partial, "x.tfrecord", UnfinishedError, "was not finished: run the same command again"),
        (text, "x.tfrecord", ContainerError, "is damaged at offset 0|ends within a record at offset 0"),
        (text, "x/data.mdb", ContainerError, "data.mdb is not a container"),
    ],
)
def test_what_cannot_be_opened(
    tmp_path: Path, make: Callable[[Path], None], name: str, error: type[IofastError], message: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(error, match=message) as caught:
        open_reader(tmp_path / name.removesuffix("/data.mdb"))
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("a.csv", "a.parquet", "a.arrow", "a.lmdb", "a.tar", "a.tfrecord", "mdb/data.mdb", "saved/state.json"),
        *("own.tar.manifest", "own-000000.tar", "flat/1.jpg"),
    ],
)
def test_a_git_lfs_pointer_is_called_one(tmp_path: Path, name: str) -> None:
    write_one(tmp_path / "own.tar", {"jpg": image()})
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    opened = "own.tar" if name.startswith("own") else name.partition("/")[0]
    for use in (lambda path: FastDataset(path)[0], lambda path: pack(path, tmp_path / "out.lmdb", workers=1)):
        with pytest.raises(IofastError, match="is a Git LFS pointer, not the file itself; git lfs pull fetches it"):
            use(tmp_path / opened)


@pytest.mark.parametrize("name", ["gone", "gone.csv", "gone.lmdb", "gone.tar", "gone-*.tar", "gone-{0..1}.tar"])
@pytest.mark.parametrize("use", [open_reader, FastDataset, lambda path: pack(path, path.parent / "out.lmdb")])
def test_what_does_not_exist(tmp_path: Path, use: Callable[[Path], object], name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist|not found|no file matches") as caught:
        use(tmp_path / name)
    assert isinstance(caught.value, SourceError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_name_that_is_nearly_right_gets_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images.lmdb").touch()
    with pytest.raises(SourceError, match=re.escape(f"images.lmd does not exist; found '{tmp_path}/images.lmdb'")):
        open_reader(tmp_path / "images.lmd")
