"""The binary index: rows are read as they were written, rows of a damaged block are refused, and sections are apart."""

from __future__ import annotations

import struct
import tempfile

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_entries import ENTRY_FIELDS, some_entries
from numpy.typing import NDArray

from iofast.containers import index
from iofast.containers.entries import RecordEntry, in_columns
from iofast.containers.file_bytes import FileBytes
from iofast.containers.index import Stamp
from iofast.containers.index_view import IndexView
from iofast.containers.located import of_images
from iofast.containers.manifest import MAX_COUNT, Manifest, Shard
from iofast.errors import ContainerError
from iofast.record import KINDS, ImageInfo

STAMP = Stamp(5, 99)


def manifest(count: int, fields: tuple[str, ...] = ENTRY_FIELDS, classes: tuple[str, ...] | None = None) -> Manifest:
    return Manifest(count, fields, {"all": ((0, count),)}, "sha256:" + "0" * 64, (Shard("", count, 0),), classes)


def chunks(entries: list[RecordEntry], fields: tuple[str, ...] = ENTRY_FIELDS, stamp: Stamp = STAMP) -> list[bytes]:
    return list(index.encode_rows(in_columns(enumerate(entries)), fields, stamp))


def in_a_file(parts: list[bytes]) -> FileBytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"before" + b"".join(parts))
        file.flush()
        return FileBytes(file.name)


def view(parts: list[bytes], described: Manifest) -> IndexView:
    starts = np.cumsum([6, *map(len, parts)]).tolist()
    return IndexView(in_a_file(parts), described, lambda chunk: (starts[chunk], len(parts[chunk])), "here")


def everything(own: IndexView, indices: NDArray[np.int64], fields: tuple[str, ...] = ENTRY_FIELDS) -> list[RecordEntry]:
    """The records of an index, read as a reader does."""
    located = of_images(indices, own.images(indices), np.zeros(len(indices), np.uint32))
    kinds = own.images(indices)["place"] >> 51 & 7
    places = {name: own.places(indices, number) for number, name in enumerate(fields)}
    labels, positions, entries = own.labels(indices), own.positions(indices), []
    for row in range(len(indices)):
        found = []
        for name, at in places.items():
            if at.there[row]:
                found.append((name, int(at.length[row]), int(at.crc[row]), int(at.offset[row])))
            elif kinds[row] and KINDS[kinds[row] - 1] == name:
                assert located.crc is not None
                found.append((name, int(located.length[row]), int(located.crc[row]), int(located.offset[row])))
        assert labels[row] == located.label[row]
        info = ImageInfo(*(int(c[row]) for c in (labels, located.width, located.height, located.orientation)))
        entries.append(RecordEntry(int(positions[row]), info, tuple(found)))
    return entries


@given(st.integers(1, 700), st.integers(0, 4), st.sampled_from([1, 3, 1 << 40]), st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_round_trip(count: int, fields: int, step: int, seed: int) -> None:
    names = tuple(sorted({"json", *ENTRY_FIELDS[:fields]}))
    entries = some_entries(count, seed, names, step)
    (chunk,) = chunks(entries, names)
    own = view([chunk], Manifest(**{**_members(manifest(count, names)), "key_width": 20}))
    looked = np.random.default_rng(seed).integers(0, count, 50)
    assert everything(own, looked, names) == [entries[i] for i in looked]
    assert own.stamp() == STAMP
    outlines = index.Outlines()
    for entry in entries:
        outlines.add(entry)
    assert [outline.size(names) for outline in outlines.chunks] == [len(chunk)]


def _members(described: Manifest) -> dict[str, object]:
    return {name: getattr(described, name) for name in Manifest.__slots__}


def test_several_chunks() -> None:
    count = 2 * index.CHUNK_ROWS + 300
    one = some_entries(500)
    entries = [
        one[i % 500]._replace(position=i + max(0, i - 100_000))  # holes in the second chunk alone
        for i in range(count)
    ]
    parts = chunks(entries)
    assert len(parts) == 3
    looked = np.array([0, 65_535, 65_536, 131_071, 131_072, count - 1, 7, 65_536, 100_001])
    own = view(parts, manifest(count))
    for _ in range(2):
        assert everything(own, looked) == [entries[i] for i in looked]
    for start, stop in ((0, 300), (65_000, 66_000), (131_000, count), (130_816, 131_080), (255, 65_537)):
        assert everything(own, np.arange(start, stop)) == entries[start:stop]
    with_holes = [index.POSITIONS in index.decode_head(part, len(ENTRY_FIELDS)).starts for part in parts]
    assert with_holes == [False, True, True]


def test_bytes_are_those_of_the_specification() -> None:
    info = ImageInfo(3, 70_000, 375, 6)
    entries = [
        RecordEntry(7, info, (("cls", 1, 11, 512), ("jpg", 9, 8, 1 << 40))),
        RecordEntry(9, ImageInfo(), (("json", 5, 6, 7),)),
    ]
    (chunk,) = chunks(entries, ("cls", "jpg", "json"))
    bits = 1 << 40 | 5 << 48 | 1 << 51 | 1 << 54
    nowhere = struct.pack("<IHII", 0xFFFFFFFF, 0xFFFF, 0, 0)
    sections = (
        struct.pack("<QIIiHH", bits, 9, 8, 3, 70_000 - 65_536, 375) + struct.pack("<QIIiHH", 0, 0, 0, -1, 0, 0),
        struct.pack("<ii", 3, -1),
        struct.pack("<II", 0, 2),
        struct.pack("<IHII", 512, 0, 1, 11) + nowhere,
        nowhere + struct.pack("<IHII", 7, 0, 5, 6),
    )
    head = b"iofastIX" + struct.pack("<HHIQQQQ 5H", 2, 5, 2, 0, 7, 5, 99, 0, 1, 2, 16, 18)
    expected = head + struct.pack("<I", google_crc32c.value(head))
    for section in sections:
        expected += section + struct.pack("<I", google_crc32c.value(section + bytes(8)))
    assert chunk == expected


def test_sections_that_say_nothing_are_left_out() -> None:
    entries = [RecordEntry(i, ImageInfo(-1, 5, 5), (("jpg", 1, 2, 3),)) for i in range(1000)]
    (chunk,) = chunks(entries, ("jpg",))
    assert index.decode_head(chunk, 1).starts.keys() == {index.IMAGES}
    assert len(chunk) / 1000 == pytest.approx(24, abs=0.1)
    assert everything(view([chunk], manifest(1000, ("jpg",))), np.arange(3), ("jpg",)) == entries[:3]


@pytest.mark.parametrize("count", [1, 256, 257, 600])
def test_every_flipped_bit_is_noticed(count: int) -> None:
    (chunk,) = chunks(some_entries(count, 1))
    every = np.arange(count)
    for place in {*range(0, 70, 3), *range(64, len(chunk), 997), len(chunk) - 1}:
        damaged = bytearray(chunk)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(ContainerError, match=r"^here: "):
            everything(view([bytes(damaged)], manifest(count)), every)


def test_a_block_in_another_place_is_noticed() -> None:
    entries = [RecordEntry(i, ImageInfo(), (("jpg", 1, 2, i),)) for i in range(512)]
    (chunk,) = chunks(entries, ("jpg",))
    start, block = index.decode_head(chunk, 1).starts[index.IMAGES], 256 * 24 + 4
    swapped = chunk[:start] + chunk[start + block :] + chunk[start : start + block]
    with pytest.raises(ContainerError, match="rows 0"):
        view([swapped], manifest(512, ("jpg",))).images(np.array([3]))


def test_only_blocks_and_sections_in_use_are_checked() -> None:
    entries = some_entries(1000, 1)
    (chunk,) = chunks(entries)
    starts = index.decode_head(chunk, len(ENTRY_FIELDS)).starts
    for code, start in starts.items():
        damaged = bytearray(chunk)
        damaged[start + 3 * (256 * index.row_type(code).itemsize + 4)] ^= 1
        own = view([bytes(damaged)], manifest(1000))
        assert everything(own, np.arange(768)) == entries[:768]
        reads = {
            index.IMAGES: lambda own, rows: own.images(rows),
            index.LABELS: lambda own, rows: own.labels(rows),
            index.POSITIONS: lambda own, rows: own.positions(rows),
        }
        for other in (*starts, index.FIELDS):
            read = reads.get(other, lambda own, rows, other=other: own.places(rows, other - index.FIELDS))
            if other != code:
                read(own, np.arange(1000))
        with pytest.raises(ContainerError, match=f"rows 768 … of section {code} "):
            reads.get(code, lambda own, rows, code=code: own.places(rows, code - index.FIELDS))(own, np.array([0, 800]))


def test_only_chunks_in_use_are_opened() -> None:
    entries = [RecordEntry(i, ImageInfo(), (("json", 1, 2, 3),)) for i in range(index.CHUNK_ROWS + 1)]
    parts, asked = chunks(entries), []

    def find(chunk: int) -> tuple[int, int]:
        asked.append(chunk)
        return (6, len(parts[0])) if chunk == 0 else (6 + len(parts[0]), len(parts[1]))

    own = IndexView(in_a_file(parts), manifest(len(entries)), find, "here")
    own.images(np.array([65_536]))
    own.images(np.array([65_536]))
    assert asked == [1, 0]  # chunk 0 for the stamp that all must share


@pytest.mark.parametrize("wrong", [-1, 10, 1 << 40, -(1 << 62)])
def test_an_index_out_of_range_is_an_index_error(wrong: int) -> None:
    own = view(chunks(some_entries(10)), manifest(10))
    for read in (own.images, own.labels, own.positions, lambda indices: own.places(indices, 0)):
        with pytest.raises(IndexError, match=str(wrong)):
            read(np.array([3, wrong]))


def test_no_indices() -> None:
    own, none = view(chunks(some_entries(10)), manifest(10)), np.array([], np.int64)
    assert (
        len(own.images(none)) == len(own.labels(none)) == len(own.positions(none)) == len(own.places(none, 0)[0]) == 0
    )


KIND, NO_IMAGE = 7 << 51, ~(7 << 51) & (1 << 64) - 1


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("label", lambda _: -2),
        ("label", lambda _: 3),
        ("place", lambda bits: bits | KIND),  # an unknown kind
        ("place", lambda bits: bits & NO_IMAGE | 2 << 51),  # the kind of a field that the manifest does not have
        ("place", lambda bits: bits & NO_IMAGE),  # no image, but a place
    ],
)
def test_impossible_rows_are_refused(field: str, change: object) -> None:
    rows = np.zeros(5, index.IMAGE_ROW)
    rows["place"], rows["length"], rows["label"] = 1 << 51 | 100, 7, 2
    rows[field][3] = change(int(rows[field][3]))  # type: ignore[operator]
    chunk = index.encode_chunk({index.IMAGES: rows.tobytes()}, 0, 5, 0, STAMP)
    own = view([chunk], manifest(5, classes=("a", "b", "c")))
    assert len(own.images(np.array([0, 1, 2, 4]))) == 4
    with pytest.raises(ContainerError, match="record 3 is impossible"):
        own.images(np.arange(5))


def test_impossible_labels_positions_and_places_are_refused() -> None:
    images, absent = bytes(24 * 3), struct.pack("<IHII", 0xFFFFFFFF, 0xFFFF, 1, 0)
    for code, section, read in (
        (index.LABELS, struct.pack("<3i", 0, 5, 0), IndexView.labels),
        (index.POSITIONS, struct.pack("<3I", 0, 99_999_999, 0), IndexView.positions),
        (index.LONG_POSITIONS, struct.pack("<3Q", 0, (1 << 64) - 1, 0), IndexView.positions),
        (index.FIELDS, bytes(14) + absent + bytes(14), lambda own, rows: own.places(rows, 0)),
    ):
        chunk = index.encode_chunk({index.IMAGES: images, code: section}, 0, 3, 1, STAMP)
        own = view([chunk], manifest(3, classes=("a", "b", "c")))
        read(own, np.array([0, 2]))
        with pytest.raises(ContainerError, match="record 1 is impossible"):
            read(own, np.arange(3))


def test_a_payload_behind_48_bits_cannot_be_written() -> None:
    with pytest.raises(ContainerError, match="field jpg of position 3 ends behind 2\\^48 bytes"):
        chunks([RecordEntry(3, ImageInfo(), (("jpg", 1, 0, (1 << 48) - 1),))])


def test_chunks_must_agree_with_manifest_and_each_other() -> None:
    entries = [RecordEntry(i, ImageInfo(), (("json", 1, 2, 3),)) for i in range(index.CHUNK_ROWS + 10)]
    first, second = chunks(entries)
    both = manifest(len(entries))
    for parts, described in (
        ([first, chunks(entries, stamp=Stamp(5, 98))[1]], both),  # another stamp
        ([first, chunks(entries[:10])[0]], both),  # begins at row 0
        ([first, second], manifest(len(entries), ("jpg", "json"))),  # another number of fields
        ([first, second], manifest(len(entries) - 1)),  # another number of rows
        ([first, second + bytes(64)], both),  # longer
        ([first[:-1], second], both),
        ([second, first], both),
    ):
        with pytest.raises(ContainerError, match="index chunk"):
            view(parts, described).images(np.array([0, len(entries) - 2]))


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "<8s", b"iofastIY", "must begin"),
        (8, "<H", 1, "version 2, found .* version 1"),
        (12, "<I", 1 << 31, "1 to 65536 rows, found 2147483648"),
        (12, "<I", 0, "1 to 65536 rows, found 0"),
        (48, "<H", 1, r"known sections, found \[1, "),
        (50, "<H", 4, "known sections"),
        (56, "<H", 20, "known sections"),
        (54, "<H", 2, "known sections"),
    ],
)
def test_wrong_heads_with_right_checksums(offset: int, layout: str, value: object, message: str) -> None:
    (chunk,) = chunks(some_entries(10, 1))
    damaged = bytearray(chunk)
    end = index.decode_head(chunk, len(ENTRY_FIELDS)).starts[index.IMAGES] - 4
    struct.pack_into(layout, damaged, offset, value)
    struct.pack_into("<I", damaged, end, google_crc32c.value(bytes(damaged[:end])))
    with pytest.raises(ContainerError, match=message):
        index.decode_head(bytes(damaged), len(ENTRY_FIELDS))


def test_a_short_head_is_refused() -> None:
    (chunk,) = chunks(some_entries(300))
    for length in (0, 47, 48, 60):
        with pytest.raises(ContainerError, match=r"shorter|damaged"):
            index.decode_head(chunk[:length], len(ENTRY_FIELDS))


def test_more_records_than_the_file_can_have() -> None:
    with pytest.raises(ContainerError, match=f"too few for an index of {MAX_COUNT} records"):
        view(chunks(some_entries(10)), manifest(MAX_COUNT))
