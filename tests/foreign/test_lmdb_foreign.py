"""LMDBs of other programs: plain images, Caffe's Datums, lists of labels, pickles refused, files that change."""

from __future__ import annotations

import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from foreign_lmdbs import datum, picture, pixels, planes, settle, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import ABSENT
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, IofastError, OptionError, SourceError, UnfinishedError
from iofast.foreign.label_list import read_label_list
from iofast.foreign.lmdb import ForeignLmdbReader, LmdbFile
from iofast.foreign.options import ForeignOptions


def plain(count: int = 12) -> dict[bytes, bytes]:
    return {b"n%02d/image %d.JPEG" % (i % 3, i): picture(i, size=(24 + i, 16)) for i in range(count)}


def test_plain_images(tmp_path: Path) -> None:
    entries = plain() | {b"zz": picture(99, "png"), b"__len__": b"\x80\x04K\x0c.", b"meta": b"of no use"}
    with open_reader(write(tmp_path / "x.lmdb", entries)) as reader:
        assert isinstance(reader, ForeignLmdbReader)
        assert (len(reader), reader.left_out) == (13, ("entries that are no images: 2 left out",))
        keys = sorted(key for key in entries if key not in (b"__len__", b"meta"))
        located = reader.locate(np.arange(13))
        assert reader.keys(located) == [key.decode() for key in keys]
        assert reader.values(np.arange(13)) == [entries[key] for key in keys]
        assert located.width.tolist() == [24 + int(key[10:-5]) if key != b"zz" else 24 for key in keys]
        assert set(located.label.tolist()) == {-1}
        assert reader.manifest.fields == ("jpg",)
        assert reader.record(12).fields == {"png": entries[b"zz"]}
        assert reader.name(0) == f"{tmp_path}/x.lmdb: n00/image 0.JPEG"
        with pytest.raises(KeyError, match="no field 'cls', only jpg"):
            reader.locate(np.arange(1), "cls")
    image, label = FastDataset(tmp_path / "x.lmdb")[3]
    assert (image.size, label) == ((24 + int(keys[3][10:-5]), 16), -1)


def test_labels_from_a_list(tmp_path: Path) -> None:
    entries = plain()
    path = write(tmp_path / "x.lmdb", entries)
    lines = [key + b" %d" % (number % 3 + 1) for number, key in enumerate(entries)]
    (tmp_path / "x.lmdb.labels.txt").write_bytes(b"\n".join(lines) + b"\n\nnot there 3\n")
    settle(tmp_path / "x.lmdb.labels.txt")
    with open_reader(path) as reader:
        assert {record.key: record.fields["cls"] for record in reader} == {
            key.decode(): b"%d" % (number % 3 + 1) for number, key in enumerate(entries)
        }
    assert FastDataset(path, foreign={"label_base": 1}).targets == sorted([0, 1, 2] * 4)
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{key.decode()}\t{('tench', 'shark', 'ray')[i % 3]}\n" for i, key in enumerate(entries)))
    with pytest.raises(OptionError, match="has class names, not numbers, so none of them counts from 1"):
        FastDataset(path, foreign={"labels": str(names), "label_base": 1})
    dataset = FastDataset(path, foreign={"labels": str(names)})
    assert dataset.classes == ["ray", "shark", "tench"]
    assert dataset.targets == sorted([0, 1, 2] * 4, reverse=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines `key label`"),
        ("a 1\na 2\n", "line 2 gives b'a' another label than a line before it"),
        ("one\n", "line 1 is not `key label`"),
        ("elsewhere 1\n", "has a label for none of the 12 keys"),
        ("n00/image 0.JPEG 0\n", "has the label 0, expected 1"),
    ],
)
def test_invalid_lists_of_labels(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list").write_text(text)
    with pytest.raises(SourceError, match=message):
        open_reader(write(tmp_path / "x", plain()), {"labels": str(tmp_path / "list"), "label_base": 1})
    with pytest.raises(SourceError, match="nowhere does not exist"):
        open_reader(tmp_path / "x", {"labels": "nowhere"})


def test_caffe(tmp_path: Path) -> None:
    """A folder as convert_imageset makes it: encoded images, and planes of blue, green and red."""
    grey = pixels(3)[:, :, 1]
    entries = {
        b"00000000_a": datum(planes(pixels(0)), (3, 16, 24), 0),
        b"00000001_b": datum(picture(1), label=7, encoded=True),
        b"00000002_c": datum(grey.tobytes(), (1, 16, 24), 2),
        b"00000003_d": datum(bytes(4 * 6), (4, 2, 3), 3),
        b"00000004_e": datum(picture(4, "png"), (3, 16, 24), -1),  # `encoded` forgotten
    }
    with open_reader(write(tmp_path / "train_lmdb", entries, folder=True)) as reader:
        assert reader.manifest.fields == ("cls", "jpg", "json", "rgb")
        located = reader.locate(np.arange(5))
        assert located.label.tolist() == [0, 7, 2, 3, -1]
        assert located.kind.tolist() == [1, 0, 1, 0, 0]
        assert located.file.tolist() == [0, 0, 0, ABSENT, 0]
        rgb = [pixels(0).tobytes(), np.repeat(grey[:, :, None], 3, 2).tobytes()]
        assert reader.values(np.arange(5), "rgb") == [rgb[0], None, rgb[1], None, None]
        assert reader.values(np.arange(5)) == [rgb[0], picture(1), rgb[1], None, picture(4, "png")]
        assert bytes(reader.view(2, "rgb")) == rgb[1]
        assert reader.record(0).fields == {"cls": b"0", "json": b'{"width":24,"height":16}', "rgb": rgb[0]}
        assert reader.record(3).fields == {"cls": b"3"}
        assert set(reader.record(4).fields) == {"png"}
    dataset = FastDataset(tmp_path / "train_lmdb")
    assert (np.asarray(dataset[0][0]) == pixels(0)).all()
    assert (np.asarray(dataset[2][0]) == grey[:, :, None]).all()
    swapped = FastDataset(tmp_path / "train_lmdb", foreign={"channels": "rgb"})
    assert (np.asarray(swapped[0][0]) == pixels(0)[:, :, ::-1]).all()


def test_a_disk_that_fails_is_no_reason_to_leave_a_value_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "x", {b"%d" % i: datum(picture(i) + bytes(20_000), label=-7, encoded=True) for i in range(9)}
    )
    assert FastDataset(path).targets == [-1] * 9
    read = FileBytes.__getitem__

    def fail(data: FileBytes, part: slice) -> bytes:
        found = read(data, part)
        if len(found) == 2:  # `encoded`, behind the data
            raise ContainerError("the disk fails")
        return found

    monkeypatch.setattr(FileBytes, "__getitem__", fail)
    with pytest.raises(ContainerError, match="the disk fails"):
        LmdbFile(path, ForeignOptions()).scan(np.zeros((1, 2), np.int64))


def test_loader_and_conversion_of_caffes_planes(tmp_path: Path) -> None:
    entries = {b"%04d" % i: datum(planes(pixels(i)), (3, 16, 24), i) for i in range(10)}
    path = write(tmp_path / "x", entries)
    (batch,) = FastLoader(FastDataset(path), batch_size=10)
    images, labels = batch
    assert (images.numpy() == np.stack([pixels(i).transpose(2, 0, 1) for i in range(10)])).all()
    assert labels.tolist() == list(range(10))
    with open_reader(path) as reader, open_writer(tmp_path / "y.lmdb") as writer:
        for record in reader:
            writer.write(record.fields)
    assert (np.asarray(FastDataset(tmp_path / "y.lmdb")[9][0]) == pixels(9)).all()


def test_what_is_refused(tmp_path: Path) -> None:
    for number, (value, message) in enumerate(
        [
            (pickle.dumps((picture(1), 3)), "is pickled, and loading it would run code"),
            (b"\x08\x03\x32\x04\0\0\0\0", "looks like a Caffe Datum of floats"),
            (b"nothing at all", "is neither an image file nor a Caffe Datum: it begins with b'nothing at all'"),
            (b"", ".* begins with b''"),
        ]
    ):
        path = write(tmp_path / f"{number}", {b"__len__": b"1", b"k": value})
        with pytest.raises(ContainerError, match=rf"{path} has no images: the value of 'k' at offset \d+ {message}"):
            open_reader(path)
    empty = write(tmp_path / "empty", {})
    with pytest.raises(ContainerError, match="is an LMDB file without entries"):
        open_reader(empty)
    with lmdb.open(str(tmp_path / "named"), subdir=False, max_dbs=1) as database:
        database.open_db(b"train")
    with pytest.raises(ContainerError, match="unknown flags 0x2"):
        open_reader(tmp_path / "named")
    with pytest.raises(OptionError, match="names does not apply to an LMDB"):
        open_reader(tmp_path / "0", {"names": {"image": "x"}})


def test_own_and_unfinished_files_are_not_foreign(tmp_path: Path) -> None:
    with open_writer(tmp_path / "own.lmdb") as writer:
        writer.write({"jpg": picture(1)})
    assert isinstance(open_reader(tmp_path / "own.lmdb"), LmdbReader)
    with pytest.raises(OptionError, match="is for other programs' tar"):
        open_reader(tmp_path / "own.lmdb", {"label_base": 1})
    (tmp_path / "x.lmdb.partial").mkdir()
    with pytest.raises(UnfinishedError):
        open_reader(write(tmp_path / "x.lmdb.partial" / "0", plain()))
    with pytest.raises(OptionError, match=r"foreign must be ForeignOptions, or a mapping with names, label_base"):
        FastDataset(write(tmp_path / "p", plain()), foreign={"nonsense": 1})


def test_writes_to_an_open_file_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "x", plain())
    first = open_reader(path)
    first.locate(np.arange(1))
    write(path, {b"n00/image 0.JPEG": picture(50)})
    with pytest.raises(ContainerError, match="was written to since it was indexed: open it again"):
        first.locate(np.arange(1))
    assert open_reader(path).values(np.arange(1)) == [picture(50)]


def test_a_new_list_of_labels_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {b"a": picture(1)})
    assert FastDataset(path).targets == [-1]
    for label in (3, 4):
        (tmp_path / "x.labels.txt").write_text(f"a {label}\n")
        assert FastDataset(path).targets == [label]


def test_a_tree_whose_pages_multiply(tmp_path: Path) -> None:
    """Thirty pages with two children each, both the next page: a milliard steps, if pages were not counted."""
    whole = bytearray(write(tmp_path / "x", {b"k": picture(1)}).read_bytes())
    for page in range(2, 32):
        children = [struct.pack("<HHHH", page + 1, 0, 0, len(key)) + key for key in (b"", b"k" * 2)]
        starts = [4096 - 8, 4096 - 18]
        body = struct.pack("<QHHHH2H", page, 0, 1, 20, starts[1], *starts).ljust(4096, b"\0")
        whole[page * 4096 : (page + 1) * 4096] = body[: starts[1]] + children[1] + children[0]
    leaf = struct.pack("<QHHHHH", 32, 0, 2, 18, 4087, 4087).ljust(4087, b"\0") + struct.pack("<HHHH", 0, 0, 0, 1) + b"k"
    whole[32 * 4096 :] = leaf
    for meta in (0, 4096):
        struct.pack_into("<H", whole, meta + 88 + 4, 2)  # keys in another order, or equal ones would be noticed first
        struct.pack_into("<QQQ", whole, meta + 88 + 8 + 24, 1 << 40, 2, 32)  # entries, root, last page
    (tmp_path / "y").write_bytes(whole.ljust(40 * 4096, b"\0"))
    with pytest.raises(ContainerError, match="has more pages than the file"):
        open_reader(tmp_path / "y")


@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_any_list_of_labels(text: bytes, base: int) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        try:
            found = read_label_list(file.name, base)
        except (SourceError, OptionError):
            return
    assert min(found.labels.values()) >= 0
    assert found.classes is None or max(found.labels.values()) == len(found.classes) - 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_errors_or_what_was_stored(tmp_path: Path, data: Any) -> None:
    """Flipped bytes and cuts: an error of ours, or images of the file; never another exception, a hang or a crash."""
    path = tmp_path / "x"
    if not path.exists():
        write(path, plain(6) | {b"q%d" % i: datum(planes(pixels(i)), (3, 16, 24), i) for i in range(3)})
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        page = data.draw(st.integers(0, len(whole) // 4096 - 1))
        at = data.draw(st.one_of(st.integers(0, 200), st.integers(0, 4095)))
        damaged[page * 4096 + at] = data.draw(st.integers(0, 255))
    other = tmp_path / "damaged"
    other.write_bytes(damaged[: data.draw(st.sampled_from([len(whole), len(whole), len(whole) - 5000, 4096, 700]))])
    try:
        with open_reader(other) as reader:
            failed: dict[int, IofastError] = {}
            reader.values(np.arange(len(reader)), failed=failed)
    except IofastError:
        pass
