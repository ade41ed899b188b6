"""Records in columns: the same as one by one, for any mixture of fields; and their fingerprint (docs/format.md 2.2)."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_entries import some_entries

from iofast.containers.entries import EntryColumns, RecordEntry
from iofast.containers.fingerprint import Fingerprint
from iofast.containers.register import Register
from iofast.errors import ContainerError
from iofast.record import KINDS, ImageInfo, image_field

NAMES = ("cls", "jpg", "json", "png", "rgb", "seg.png")


def fingerprint(entries: list[RecordEntry], width: int) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        key = f"{entry.position:0{width}d}".encode()
        for name, length, crc, _ in entry.fields:
            digest.update(bytes([width]) + key + bytes([len(name)]) + name.encode() + struct.pack("<II", length, crc))
    return f"sha256:{digest.hexdigest()}"


@given(st.integers(1, 300), st.integers(0, 1 << 30), st.sampled_from([8, 20]), st.sampled_from([2, 1 << 40]))
def test_fingerprint(count: int, seed: int, width: int, step: int) -> None:
    entries = some_entries(count, seed, NAMES, step if width == 20 else 2)
    cut = seed % count
    own = Fingerprint(width)
    for part in (entries[:cut], entries[cut:]):
        columns = EntryColumns.of(part)
        own.add(columns.position, columns.fields)
    assert str(own) == fingerprint(entries, width)


@given(st.integers(1, 300), st.integers(0, 1 << 30))
def test_columns(count: int, seed: int) -> None:
    entries = some_entries(count, seed, NAMES)
    columns = EntryColumns.of(entries)
    start, stop = sorted(np.random.default_rng(seed).integers(0, count + 1, 2).tolist())
    part = columns.rows(slice(start, stop))
    kind, image = part.images()
    assert len(part) == stop - start
    for row, entry in enumerate(entries[start:stop]):
        places = {name: (length, crc, offset) for name, length, crc, offset in entry.fields}
        own = image_field(places)
        assert part.position[row] == entry.position
        info = entry.info.label, entry.info.width, entry.info.height, entry.info.orientation
        assert (part.label[row], part.width[row], part.height[row], part.orientation[row]) == info
        assert kind[row] == (0 if own is None else 1 + KINDS.index(own))
        assert image.there[row] == (own is not None)
        if own is not None:
            assert (image.length[row], image.crc[row], image.offset[row]) == places[own]
        for name in NAMES:
            beside = part.beside_image(name)
            assert beside.there[row] == (name in places and name != own)
            if beside.there[row]:
                assert (beside.length[row], beside.crc[row], beside.offset[row]) == places[name]


def test_the_record_at_fault_is_named() -> None:
    def adopt(*entries: RecordEntry, width: int = 8) -> None:
        register = Register(width)
        register.adopt(EntryColumns.of(entries[:1]), "all")
        register.adopt(EntryColumns.of(entries[1:]), "all")

    one = [RecordEntry(position, ImageInfo(), (("jpg", 1, 2, 3),)) for position in range(5)]
    adopt(*one)
    far = [each._replace(position=(1 << 63) + each.position) for each in one]
    adopt(*far, width=20)
    for wrong, message in (
        (one[3]._replace(position=2), "record 00000002: its position does not follow 2"),
        (one[3]._replace(fields=()), "record 00000003: it has no field"),
        (one[3]._replace(fields=(("J", 1, 2, 3),)), "record 00000003: field name 'J'"),
        (one[3]._replace(position=10**8), "position 100000000 does not fit"),
    ):
        with pytest.raises(ContainerError, match=message):
            adopt(*one[:3], wrong)
