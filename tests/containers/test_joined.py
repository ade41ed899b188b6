"""Several containers and folders as one Reader, and payloads of one field for many records."""

import os
import pickle
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from folder_images import decode
from loader_sets import CLASSES, photographs, upright, write_folder, write_lmdb

from iofast import open_reader, open_writer
from iofast.containers import base as reading
from iofast.containers.base import Failures
from iofast.containers.columns import ABSENT
from iofast.containers.joined import JoinedReader
from iofast.errors import ContainerError, OptionError, SourceError
from iofast.kernel import Status

IMAGES = photographs(18)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One LMDB and one folder of six images each, and an LMDB of raw pixels, PNG, text and a missing field."""
    root = tmp_path_factory.mktemp("joined")
    write_lmdb(root / "a.lmdb", IMAGES[:6])
    write_folder(root / "b", IMAGES[6:12])
    with open_writer(root / "c.lmdb", classes=CLASSES) as writer:
        for i, data in enumerate(IMAGES[12:]):
            pixels = np.asarray(upright(data))
            height, width = pixels.shape[:2]
            fields: dict[str, object] = {"cls": i % 3, "json": {"width": width, "height": height}}
            fields |= {"rgb": pixels.tobytes()} if i % 2 else {"jpg": data}
            writer.write(fields if i == 4 else fields | {"txt": f"picture {i}"})  # type: ignore[arg-type]
    return root


def join(root: Path, *names: str) -> JoinedReader:
    return JoinedReader([open_reader(root / name) for name in names], names)


@pytest.fixture
def joined(place: Path) -> JoinedReader:
    return join(place, "a.lmdb", "b", "c.lmdb")


MIXED = np.array([0, 17, 7, 6, 3, 15, 11, 12, 0])


def test_columns_are_those_of_the_parts(joined: JoinedReader) -> None:
    located = joined.locate(MIXED)
    assert located.indices.tolist() == MIXED.tolist()
    for row, index in enumerate(MIXED.tolist()):
        part = joined.parts[index // 6]
        own = part.locate(np.array([index % 6]))
        for name, column in zip(located._fields[1:], located[1:], strict=True):
            expected = getattr(own, name)
            assert column is not None
            missing = -1 if name == "crc" else 0
            assert np.all(column[row] == (missing if expected is None else expected[0])), name
        assert joined.name(index) == part.name(index % 6)
    assert located.crc is not None
    assert located.crc.dtype == np.int64
    only = joined.locate(np.array([1, 2, 14])).crc
    assert only is not None
    assert only.dtype == np.uint32  # containers have all checksums
    assert joined.locate(np.array([6, 7])).crc is None


def test_a_batch_of_all_parts(joined: JoinedReader) -> None:
    out, status = decode(joined, MIXED.tolist())
    assert not any(status)
    for row, index in enumerate(MIXED.tolist()):
        alone, _ = decode(joined.parts[index // 6], [index % 6])
        assert (out[row] == alone[0]).all()


def test_checksums_hold_for_the_rows_that_have_one(place: Path, tmp_path: Path) -> None:
    write_lmdb(tmp_path / "a.lmdb", IMAGES[:6])
    reader = open_reader(tmp_path / "a.lmdb")
    located = reader.locate(np.array([3]))
    with (tmp_path / "a.lmdb").open("r+b") as file:
        file.seek(int(located.offset[0]) + int(located.length[0]) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    both = JoinedReader([reader, open_reader(place / "b")], ["a", "b"])
    _, status = decode(both, [3, 7, 3, 3, 8, 2, 9, 9])
    assert status == [Status.CHECKSUM, 0, Status.CHECKSUM, Status.CHECKSUM, 0, 0, 0, 0]


def test_manifest(place: Path, joined: JoinedReader) -> None:
    manifest = joined.manifest
    assert (len(joined), manifest.count) == (18, 18)
    assert manifest.classes == CLASSES
    assert manifest.fields == ("cls", "jpg", "json", "rgb", "txt")
    assert manifest.splits == {"all": ((0, 6), (6, 12), (12, 18))}
    assert [shard.count for shard in manifest.shards] == [6, 6, 6]
    assert manifest.fingerprint != join(place, "b", "a.lmdb", "c.lmdb").manifest.fingerprint
    assert manifest.fingerprint == join(place, "a.lmdb", "b", "c.lmdb").manifest.fingerprint


def test_splits_of_one_name_are_one(tmp_path: Path) -> None:
    for name, splits in (("a", ("train", "train", "val")), ("b", ("val", "test"))):
        with open_writer(tmp_path / f"{name}.lmdb") as writer:
            for split in splits:
                writer.write({"jpg": IMAGES[0]}, split)
    both = join(tmp_path, "a.lmdb", "b.lmdb")
    assert both.manifest.splits == {"train": ((0, 2),), "val": ((2, 3), (3, 4)), "test": ((4, 5),)}


def write_empty(path: Path, classes: tuple[str, ...] | None, split: str = "all") -> Path:
    with open_writer(path, classes=classes) as writer:
        writer.write({"txt": "nothing"}, split)
    return path


@pytest.mark.parametrize(
    ("classes", "split", "message"),
    [
        (("ant", "bee"), "all", "3 classes, the second 2 classes"),
        (("ant", "wasp", "cat"), "all", "class 1 is 'bee' and 'wasp'"),
        (None, "all", "3 classes, the second no classes"),
        ((), "all", "3 classes, the second no classes"),
        (CLASSES, "train", "first has no splits, the second the splits train"),
    ],
)
def test_what_does_not_fit(
    place: Path, tmp_path: Path, classes: tuple[str, ...] | None, split: str, message: str
) -> None:
    write_empty(tmp_path / "d.lmdb", classes, split)
    with pytest.raises(OptionError, match=rf"a and d cannot be joined: .*{message}"):
        JoinedReader([open_reader(place / "a.lmdb"), open_reader(tmp_path / "d.lmdb")], ["a", "d"])
    with pytest.raises(OptionError, match="nothing to join"):
        JoinedReader([], [])


def test_without_classes(tmp_path: Path) -> None:
    """None and an empty list of classes are the same: what one flat folder and one container of it say."""
    readers = [open_reader(write_empty(tmp_path / f"{name}.lmdb", own)) for name, own in (("a", None), ("b", ()))]
    assert JoinedReader(readers, ["a", "b"]).manifest.classes is None


def test_values(place: Path, joined: JoinedReader) -> None:
    for field in joined.manifest.fields:
        records = [joined.record(index).fields.get(field) for index in MIXED.tolist()]
        assert joined.values(MIXED, field) == records
        for index, value in zip(MIXED.tolist(), records, strict=True):
            if value is None:
                with pytest.raises(KeyError, match=f"has no field '{field}'"):
                    joined.view(index, field)
            else:
                assert joined.view(index, field) == value
    assert joined.values(MIXED) == [joined.view(index) for index in MIXED.tolist()]
    assert joined.values(np.array([], np.int64), "txt") == []
    for reader in (joined, *joined.parts):
        with pytest.raises(KeyError, match=r"no .*field"):
            reader.values(MIXED[:1], "seg.png")
        with pytest.raises(IndexError):
            reader.values(np.array([18]), "cls")


def test_payloads_are_read_in_the_order_of_the_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Mock(side_effect=reading.read_at)
    monkeypatch.setattr(reading, "read_at", reads)
    assert open_reader(place / "a.lmdb").values(np.array([5, 0, 3]), "cls") == [b"2", b"0", b"1"]
    places = [call.args[1] for call in reads.mock_calls]
    assert places == sorted(places)


def test_a_field_that_one_part_lacks(joined: JoinedReader) -> None:
    located = joined.locate(MIXED, "txt")
    assert (located.file == ABSENT).tolist() == [i < 12 or i == 16 for i in MIXED.tolist()]
    assert located.label.tolist() == joined.locate(MIXED).label.tolist()
    with joined.payloads(located, 0, len(MIXED)) as payloads:
        assert payloads.lengths[1] == len(b"picture 5")
        assert os.pread(payloads.fds[1], 100, payloads.offsets[1]).startswith(b"picture 5")
    with pytest.raises(KeyError, match="seg"):
        joined.locate(MIXED, "seg.png")


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lmdb(tmp_path / "a.lmdb", IMAGES[:6])
    reader = open_reader(tmp_path / "a.lmdb")
    offset = int(reader.locate(np.array([2]), "cls").offset[0])
    with (tmp_path / "a.lmdb").open("r+b") as file:
        file.seek(offset)
        file.write(b"9")
    with pytest.raises(ContainerError, match=rf"a\.lmdb: 00000002: cls at offset {offset} is damaged: its CRC32C"):
        reader.values(np.arange(6), "cls")
    assert reader.values(np.arange(6), "cls", check=False)[2] == b"9"
    failed: Failures = {}
    both = JoinedReader([reader, reader], ["a", "a"])
    assert both.values(np.array([8, 1, 0, 2]), "cls", failed=failed) == [None, b"0", b"0", None]
    assert {row: "00000002: cls at" in str(error) for row, error in failed.items()} == {0: True, 3: True}
    monkeypatch.setattr(reading, "read_at", lambda *_: b"")
    with pytest.raises(ContainerError, match=r"00000000: jpg at offset \d+ ends after 0 of \d+ bytes"):
        reader.values(np.array([0]), "jpg")
    monkeypatch.setattr(reading, "read_at", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(ContainerError, match=r"00000000: image at offset \d+ cannot be read: Input/output error"):
        reader.values(np.array([0]))


def test_a_file_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "b", IMAGES[:6])
    reader = open_reader(folder)
    (folder / "bee" / "00002.jpg").unlink()
    with pytest.raises(SourceError, match=r"cannot read .*00002\.jpg"):
        reader.values(np.arange(6))
    failed: Failures = {}
    assert reader.values(np.arange(6), failed=failed)[1:3] == [IMAGES[1], None]
    assert list(failed) == [2]


def test_records_without_any_image(place: Path, tmp_path: Path) -> None:
    text = write_empty(tmp_path / "d.lmdb", CLASSES)
    both = JoinedReader([open_reader(text), open_reader(place / "a.lmdb")], ["d", "a"])
    assert both.columns(np.array([0, 6])).label.tolist() == [-1, 2]
    with pytest.raises(KeyError, match="no image field"):
        both.locate(np.array([0]))


def test_pickle_close_and_joining_again(place: Path, joined: JoinedReader) -> None:
    again = pickle.loads(pickle.dumps(joined))
    joined.close()
    assert again.values(MIXED) == joined.values(MIXED)
    both = JoinedReader([joined, open_reader(place / "a.lmdb")], ["joined", "a"])
    assert both.values(MIXED) == joined.values(MIXED)
    assert both.keys(both.columns(np.array([17, 18]))) == ["0/2/00000005", "1/00000000"]
    with pytest.raises(IndexError, match="joined: indices 24 to 24 of 24 records"):
        both.view(24)
