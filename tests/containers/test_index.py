"""The binary index: rows are read as they were written, and rows of a damaged block are refused."""

from __future__ import annotations

import struct
import tempfile

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iofast.containers import index
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import ABSENT, IndexView, Rows, Stamp
from iofast.containers.manifest import Manifest, Shard
from iofast.errors import ContainerError

STAMP = Stamp(5, 99)


def manifest(count: int, fields: tuple[str, ...] = ("cls", "jpg"), classes: tuple[str, ...] | None = None) -> Manifest:
    return Manifest(count, fields, {"all": ((0, count),)}, "sha256:" + "0" * 64, (Shard("", count, 0),), classes)


FIELDS = ("cls", "jpg", "rgb", "yuv")  # of `some_rows`: the first few of them


def some_rows(count: int, groups: int = 2, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, index.row_dtype(FIELDS[:groups]))
    rows["position"] = np.cumsum(rng.integers(1, 4, count))
    rows["label"] = rng.integers(-1, 1000, count)
    rows["width"], rows["height"] = rng.integers(0, 65_536, (2, count))
    rows["orientation"] = rng.integers(1, 9, count)
    place = rows["place"]
    place["offset"] = rng.integers(0, 1 << 62, (count, groups))
    place["length"], place["crc"] = rng.integers(0, 1 << 32, (2, count, groups))
    return rows


def chunks(rows: Rows, stamp: Stamp = STAMP) -> list[bytes]:
    fields = FIELDS[: rows["place"].shape[1]]
    firsts = range(0, len(rows), index.CHUNK_ROWS)
    return [index.encode_chunk(rows[i : i + index.CHUNK_ROWS].tobytes(), i, fields, stamp) for i in firsts]


def in_a_file(parts: list[bytes]) -> FileBytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(parts))
        file.flush()
        return FileBytes(file.name)


def view(parts: list[bytes], described: Manifest) -> IndexView:
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    return IndexView(in_a_file(parts), described, lambda chunk: (starts[chunk], len(parts[chunk])), "here")


@given(st.integers(1, 700), st.integers(0, 4), st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_round_trip(count: int, groups: int, seed: int) -> None:
    rows = some_rows(count, groups, seed)
    (chunk,) = chunks(rows)
    assert len(chunk) == index.chunk_size(count, FIELDS[:groups])
    described = manifest(count, FIELDS[:groups])
    looked = np.random.default_rng(seed).integers(0, count, 50)
    assert view([chunk], described).rows(looked).tobytes() == rows[looked].tobytes()
    assert view([chunk], described).stamp() == STAMP


def test_several_chunks() -> None:
    rows = some_rows(2 * index.CHUNK_ROWS + 300)
    parts = chunks(rows)
    looked = np.array([0, 65_535, 65_536, 131_071, 131_072, len(rows) - 1, 7, 65_536])
    own = view(parts, manifest(len(rows)))
    for _ in range(2):
        assert own.rows(looked).tobytes() == rows[looked].tobytes()


def test_bytes_are_those_of_the_specification() -> None:
    rows = np.zeros(1, index.row_dtype(("cls", "jpg")))
    rows[0] = (7, -1, 500, 375, 6, 0, [(0, 1 << 40, 9, 8), (ABSENT, 0, 0, 0)])
    (chunk,) = chunks(rows)
    row = struct.pack("<QiIIBB IQII IQII", 7, -1, 500, 375, 6, 0, 0, 1 << 40, 9, 8, ABSENT, 0, 0, 0)
    check = struct.pack("<I", google_crc32c.value(row))
    head = b"iofastIX" + struct.pack("<HHIQIHHQQQI", 1, 64, 62, 0, 1, 2, 0, 5, 99, 0, 0)
    assert chunk == head + struct.pack("<I", google_crc32c.value(head + check)) + check + row
    assert index.row_struct(FIELDS[:2]).size == index.row_dtype(FIELDS[:2]).itemsize == 62


@pytest.mark.parametrize("count", [1, 256, 257, 600])
def test_every_flipped_bit_is_noticed(count: int) -> None:
    rows = some_rows(count)
    (chunk,) = chunks(rows)
    everything = np.arange(count)
    for place in {*range(64 + 4 * -(-count // 256)), *range(64, len(chunk), 997), len(chunk) - 1}:
        damaged = bytearray(chunk)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ContainerError, match=r"^here: "):
            view([bytes(damaged)], manifest(count)).rows(everything)


def test_only_blocks_in_use_are_checked() -> None:
    rows = some_rows(1000)
    (chunk,) = chunks(rows)
    damaged = bytearray(chunk)
    damaged[-1] ^= 1
    own = view([bytes(damaged)], manifest(1000))
    assert own.rows(np.arange(768)).tobytes() == rows[:768].tobytes()
    with pytest.raises(ContainerError, match="rows 768"):
        own.rows(np.array([0, 800]))


def test_only_chunks_in_use_are_opened() -> None:
    rows = some_rows(index.CHUNK_ROWS + 1)
    parts, asked = chunks(rows), []

    def find(chunk: int) -> tuple[int, int]:
        asked.append(chunk)
        return (0, len(parts[0])) if chunk == 0 else (len(parts[0]), len(parts[1]))

    own = IndexView(in_a_file(parts), manifest(len(rows)), find, "here")
    own.rows(np.array([65_536]))
    own.rows(np.array([65_536]))
    assert asked == [1, 0]  # chunk 0 for the stamp that all must share


@pytest.mark.parametrize("wrong", [-1, 10, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_is_an_index_error(wrong: int) -> None:
    own = view(chunks(some_rows(10)), manifest(10))
    with pytest.raises(IndexError, match=str(wrong)):
        own.rows(np.array([3, wrong]))


def test_no_indices() -> None:
    assert len(view(chunks(some_rows(10)), manifest(10)).rows(np.array([], np.int64))) == 0


@pytest.mark.parametrize(
    ("field", "value"), [("label", -2), ("label", 3), ("orientation", 0), ("orientation", 9), ("flags", 1)]
)
def test_impossible_rows_are_refused(field: str, value: int) -> None:
    rows = some_rows(5)
    rows["label"] = 2
    rows[field][3] = value
    own = view(chunks(rows), manifest(5, classes=("a", "b", "c")))
    assert len(own.rows(np.array([0, 1, 2, 4]))) == 4
    with pytest.raises(ContainerError, match=f"position {rows['position'][3]} is impossible"):
        own.rows(np.arange(5))


def test_chunks_must_agree_with_manifest_and_each_other() -> None:
    rows = some_rows(index.CHUNK_ROWS + 10)
    first, second = chunks(rows)
    both = manifest(len(rows))
    for parts, described in (
        ([first, chunks(rows, Stamp(5, 98))[1]], both),  # another stamp
        ([first, chunks(rows[:10])[0]], both),  # begins at row 0
        ([first, second], manifest(len(rows), ("jpg",))),  # another number of fields
        ([first, second], manifest(len(rows) - 1)),  # another number of rows
        ([second, second], both),
    ):
        with pytest.raises(ContainerError, match="index chunk"):
            view(parts, described).rows(np.array([0, len(rows) - 2]))


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "<8s", b"iofastIY", "must begin"),
        (8, "<H", 2, "version 2"),
        (24, "<I", 1 << 31, "header must be"),
        (12, "<I", 0, "header must be"),
    ],
)
def test_wrong_headers_with_right_checksums(offset: int, layout: str, value: object, message: str) -> None:
    damaged = bytearray(chunks(some_rows(10))[0])
    struct.pack_into(layout, damaged, offset, value)
    struct.pack_into(
        "<I", damaged, 60, google_crc32c.value(bytes(damaged[:60] + damaged[64:68]))
    )  # with a right checksum
    with pytest.raises(ContainerError, match=message):
        index.decode_header(bytes(damaged), FIELDS[:2])


def test_a_short_header_is_refused() -> None:
    (chunk,) = chunks(some_rows(300))
    for length in (0, 63, 64, 71):
        with pytest.raises(ContainerError, match=r"shorter|damaged"):
            index.decode_header(chunk[:length], FIELDS[:2])


def test_rows_that_are_no_chunk_are_refused() -> None:
    for rows, first in ((b"", 0), (b"x" * 61, 0), (b"x" * 62, 5), (bytes(62 * 65_537), 0)):
        with pytest.raises(ContainerError, match="no chunk"):
            index.encode_chunk(rows, first, FIELDS[:2], STAMP)
