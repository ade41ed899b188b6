"""LMDBs of other programs: plain images, pickles refused, files that change."""

import pickle
import struct
from pathlib import Path

import lmdb
import numpy as np
import pytest
from foreign_lmdbs import picture, write
from tar_sets import foreign

from iofast import FastDataset, open_reader, open_writer
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, OptionError, UnfinishedError
from iofast.foreign.lmdb import ForeignLmdbReader


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


def test_texts_of_ocr_are_a_field(tmp_path: Path) -> None:
    entries = {b"image-%09d" % number: picture(number) for number in (1, 2, 3)}
    entries |= {b"num-samples": b"3", b"label-x": b"?"}
    entries |= {b"label-000000001": b"Hello", b"label-000000003": "wörld".encode()}
    dataset = FastDataset(write(tmp_path / "x.lmdb", entries), fields=["image", "label.txt"])
    assert [sample["label.txt"] for sample in dataset] == ["Hello", None, "wörld"]
    assert dataset.reader.left_out == (  # type: ignore[attr-defined]
        "entries that are no images: 2 left out",
        "no class numbers: the texts of the keys label-… are the field label.txt",
    )


def test_what_is_refused(tmp_path: Path) -> None:
    for number, (value, message) in enumerate(
        [
            (pickle.dumps((picture(1), 3)), "is pickled, and loading it would run code"),
            (b"nothing at all", "is no image file: it begins with b'nothing at all'"),
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
    with pytest.raises(OptionError, match="is for other programs' tar and TFRecord"):
        open_reader(write(tmp_path / "whole", plain()), {"names": {"image": "x"}})


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
        FastDataset(foreign(tmp_path / "p.tar", {"a.jpg": picture(1)}), foreign={"nonsense": 1})


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
