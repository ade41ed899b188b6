"""A short form of the torture runs `parsers`, `fuzz` and `steps`, and regressions that they found, in small files."""

import os
import re
import struct
import tracemalloc
from pathlib import Path

import foreign_lmdbs
import pytest
import tar_sets
from container_sets import build, picture

from iofast import open_reader
from iofast.checking import verify
from iofast.containers import columns
from iofast.containers.file_bytes import read_at
from iofast.containers.lmdb_pages import Tree, read_meta
from iofast.containers.manifest import seal, unseal
from iofast.errors import LONGEST, ContainerError, DecodeError, SourceError, TargetError
from iofast.foreign.tar import key_and_name
from iofast.kernel import Header, TranscodeRecipe, crc32c, exif
from iofast.places import Geometry, move
from iofast.source.options import SourceOptions
from iofast.source.scan import scan
from tools.torture.drivers import DRIVERS
from tools.torture.drivers.run import Run

STEPS = {"index": 8, "pages": 8, "lmdb": 6, "annotations": 100, "table": 6, "regions": 10, "steps": 1, "arrow": 4}


@pytest.mark.parametrize("name", DRIVERS)
def test_damage_is_an_error_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(name, 6, tmp_path / name)
    for number in range(STEPS.get(name, 20)):
        run.step(number)


PAGE = 4096


def test_an_error_is_one_short_line_whatever_names_are_in_it() -> None:
    error = ContainerError("a\nb\x1b[2J\ud800 " + "x" * (1 << 20))
    assert str(error).startswith("a\\nb\\x1b[2J\\ud800 x")
    assert len(str(error)) <= LONGEST
    assert str(TargetError("no\nspace")) == "no\\nspace"


def test_names_of_a_million_slashes_are_split() -> None:
    """In one pass: with a step for each pair of slashes it would take hours."""
    slashes = "/" * (1 << 20)
    assert [key_and_name(name) for name in (slashes, "a/" * (1 << 19), "." * (1 << 20))] == [None] * 3
    assert key_and_name(slashes + ".jpg") == (slashes, "jpg")


@pytest.mark.parametrize(
    "path",
    ["a.jpg", "a/b.c.jpg", "a.b/c.jpg", ".a", "a/.b", "a//.b", "a.x/.b", "/.b", "//.b", "a", "a/b", "a./b.c", "", "."],
)  # fmt: skip
def test_keys_are_webdatasets(path: str) -> None:
    found = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", path, re.DOTALL)
    assert key_and_name(path) == (None if found is None else (found[1], found[2].lower()))


@pytest.mark.parametrize("place", [144, 145, 147])
def test_lmdb_whose_older_meta_page_looks_newer_is_not_another_programs(tmp_path: Path, place: int) -> None:
    """The older tree has no index: read as a foreign LMDB, nothing would have a checksum."""
    path = build(tmp_path / "x.lmdb", 6, splits=False)
    data = bytearray(path.read_bytes())
    older = 0 if read_meta(bytes(data), "x").txnid & 1 else PAGE
    data[older + place] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(ContainerError, match=r"x\.lmdb"):
        open_reader(path)


def test_lmdb_whose_tree_lost_entries_is_damaged(tmp_path: Path) -> None:
    """Its root is one of its leaves, which is sound. Then its transactions are beyond all numbers."""
    path = foreign_lmdbs.write(tmp_path / "x.mdb", {b"%05d" % n: bytes(200) for n in range(100)})
    data = bytearray(path.read_bytes())
    meta = read_meta(bytes(data), "x")
    leaf = next(n for n in range(2, meta.last_page + 1) if struct.unpack_from("<H", data, n * PAGE + 10)[0] & 2)
    struct.pack_into("<Q", data, (PAGE if meta.txnid & 1 else 0) + 128, leaf)
    with pytest.raises(ContainerError, match="of 100 entries can be reached"):
        list(Tree(bytes(data), read_meta(bytes(data), "x"), "x").walk())
    for page in (0, PAGE):
        struct.pack_into("<Q", data, page + 144, 1 << 63)
    with pytest.raises(ContainerError, match=r"x\.mdb: impossible .* transaction"):
        read_meta(bytes(data), "x.mdb")


@pytest.mark.parametrize(
    "wrong", [{"fields": []}, {"shards": [{"count": 12, "name": "\ud800.tar", "size": 1}]}, {"key_width": 1}]
)
def test_manifest_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    path = build(tmp_path / "x.tar", 12, splits=False)
    manifest = tmp_path / "x.tar.manifest"
    members = unseal(manifest.read_bytes())
    del members["crc32c"]
    manifest.write_bytes(seal({**members, **wrong}))
    with pytest.raises(ContainerError, match=r"x\.tar"):
        list(open_reader(path))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.jsonl", b'{"path": "a.jpg", "\\ud800": 1, "\\ud801": "x"}', "field"),
        ("x.jsonl", b"\n".join(b'{"path": "a.jpg", "%d": 1}' % n for n in range(2000)), "different columns"),
        ("x.csv", b"path,label\na.jpg," + b"a" * 5000, "is it the label"),
    ],
)
def test_lists_of_odd_columns(tmp_path: Path, name: str, text: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(SourceError, match=f"{name}.*{words}"):
        open_reader(tmp_path / name)


def test_tar_shards_of_which_some_are_empty(tmp_path: Path) -> None:
    """Two in a row, first and last: the keys of the others are found."""
    for number in range(5):
        members = {f"{number}.txt": b"x"} if number in (2, 3) else {}
        tar_sets.foreign(tmp_path / f"x-{number}.tar", members)
    with open_reader(str(tmp_path / "x-{0..4}.tar")) as reader:
        assert [record.key for record in reader] == ["2", "3"]


def test_parquet_with_text_that_is_none(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    bad = pyarrow.array([b"\xff\xfe"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 1, bad.buffers())
    parquet.write_table(pyarrow.table({"path": ["a.jpg"], "note": text}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"x\.parquet has a value that cannot be read from row 1 on"):
        scan(tmp_path / "x.parquet", SourceOptions())


@pytest.mark.parametrize(
    "text",
    [
        b'{"points": ["a"]}', b'{"points": [1, null]}', b'{"keypoints": [null]}', b'[[1, 2, NaN]]', b"[[1, 1e999]]",
        b"[[1, 2, 3, 1" + b"0" * 400 + b"]]", b'{"boxes": [[1, 2, 3, 4]], "segmentation": [[1, 2, 3]]}',
        b"[" * 900 + b"[1, 2, 3, 4]" + b"]" * 900,
        b'{"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]], "objects": [{"bbox": [900, 900, 901, 901]}, {"bbox": [1, 2, 3, 4]}]}',
    ],
)  # fmt: skip
def test_annotations_that_cannot_be_moved(text: bytes) -> None:
    with pytest.raises(DecodeError):
        move(text, halved(), boxes=True, points=True, box_format="xyxy")


def halved() -> Geometry:
    return Geometry.of(TranscodeRecipe(size=50, mode="short"), Header("jpeg", 100, 100, 1, 3, False), upright=True)


def test_annotations_with_half_a_surrogate_pair() -> None:
    found = move(b'{"boxes": [[2, 4, 6, 8]], "a": "\\ud800"}', halved(), boxes=True, points=False, box_format="xyxy")
    assert found == b'{"boxes":[[1,2,3,4]],"a":"\\ud800"}'


def test_exif_of_nothing_but_its_name_is_read() -> None:
    """In 0.1 s; looking at each from the start would take hours."""
    assert exif.orientation(b"Exif\0\0" * 300_000) == 1


def test_reading_takes_the_memory_of_the_file_not_of_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture(1))
    descriptor = os.open(tmp_path / "a.jpg", os.O_RDONLY)
    tracemalloc.start()
    try:
        with open_reader(tmp_path) as reader:
            assert bytes(reader.view(0)) == picture(1)
        assert read_at(descriptor, 0, 1 << 33) == picture(1)
        assert read_at(descriptor, (1 << 64) - 1, 5) == b""
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
        os.close(descriptor)


def test_a_fifo_in_an_images_place_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture(1))
    with open_reader(tmp_path) as reader:
        (tmp_path / "a.jpg").unlink()
        os.mkfifo(tmp_path / "a.jpg")
        with pytest.raises(SourceError, match="not a file"):
            reader.view(0)


def test_columns_whose_arrays_are_not_described_as_such(tmp_path: Path) -> None:
    text = b'{"arrays": {"a": ["<u8", "0"]}}'
    head = len(text).to_bytes(8, "little") + crc32c(text).to_bytes(8, "little")
    (tmp_path / "x").write_bytes(columns.MAGIC + head + text)
    with pytest.raises(ContainerError, match="the header of its columns is invalid"):
        columns.load(tmp_path / "x")


def test_verify_names_a_record_in_one_line(tmp_path: Path) -> None:
    path = tar_sets.foreign(tmp_path / "x.tar", {"a\nb.jpg": b"no image"})
    (problem,) = verify(path).problems
    assert "\n" not in str(problem)
