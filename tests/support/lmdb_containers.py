"""Containers for the tests of LMDB: records that depend on their position, and the expected result of reading them."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import lmdb
import numpy as np

from iofast.containers.columns import ABSENT
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.containers.manifest import Description, Manifest
from iofast.containers.writer import Section, Writer
from iofast.record import ImageInfo, Record

Fields = dict[str, bytes]
Sample = tuple[int, Fields, ImageInfo, str]


def sample(position: int, size: int | None = None, split: str = "all") -> Sample:
    """A record with a large payload, a small one and a label, which all depend on its position."""
    rng = random.Random(position)
    jpg = rng.randbytes(rng.choice((0, 10, 3000, 9000)) if size is None else size)
    label = position % 7
    info = ImageInfo(label, position % 60_000 + 1, 20, position % 8 + 1)
    return position, {"jpg": jpg, "cls": b"%d" % label, "json": b'{"path":"%d.jpg"}' % position}, info, split


def build(path: Path, samples: Sequence[Sample], description: Description | None = None) -> Manifest:
    writer = LmdbWriter(path.parent, path.name, description or Description())
    write(writer, samples)
    manifest = writer.finish()
    for rows in path.parent.glob("rows-*"):
        rows.unlink()
    return manifest


def sections(samples: Sequence[Sample], records: int = 25) -> list[Section]:
    """Sections of so many samples, none with samples of two splits."""
    groups: list[list[Sample]] = []
    for each in samples:
        if not groups or groups[-1][0][3] != each[3] or len(groups[-1]) == records:
            groups.append([])
        groups[-1].append(each)
    return [Section(number, own[0][3], own[0][0], own[-1][0] + 1) for number, own in enumerate(groups)]


def write(writer: Writer, samples: Sequence[Sample], records: int = 25) -> None:
    """Write samples in sections of so many, except sections that the writer has finished."""
    for section in sections(samples, records):
        if section.number in writer.finished:
            continue
        writer.begin(section)
        for position, fields, info, _ in samples:
            if section.start <= position < section.stop:
                writer.write(position, fields, info)
        writer.commit()


def read_all(reader: LmdbReader) -> list[Record]:
    """Every record; also compares the payloads that locate and pread give with those of the record."""
    records = list(reader)
    indices = np.arange(len(reader))
    for field in reader.manifest.fields:
        located = reader.locate(indices, field)
        with reader.payloads(located, 0, len(indices)) as (fds, offsets, lengths, crcs, orientations, raw):
            assert crcs is not None
            assert raw is None
            assert (orientations == located.orientation).all()
            for i, record in enumerate(records):
                if located.file[i] != ABSENT:
                    payload = os.pread(int(fds[i]), int(lengths[i]), int(offsets[i]))
                    assert payload == record.fields[field]
                    assert google_crc32c.value(payload) == crcs[i]
    return records


def expected(samples: Sequence[Sample], width: int = 8) -> list[Record]:
    return [Record(f"{position:0{width}d}", dict(sorted(fields.items()))) for position, fields, _, _ in samples]


def samples() -> list[Sample]:
    return [sample(i + i // 10, split="train" if i < 200 else "val") for i in range(300)]


def copy(container: Path, folder: Path) -> Path:
    path = folder / "copy.lmdb"
    path.write_bytes(container.read_bytes())
    return path


def compact(path: Path, environment: lmdb.Environment) -> None:
    environment.copy(str(path.with_suffix(".compact")), compact=True)
    os.replace(path.with_suffix(".compact"), path)


def put_another(path: Path, environment: lmdb.Environment) -> None:
    with environment.begin(write=True) as txn:
        for i in range(50):
            txn.put(b"00000000.zzz%02d" % i, bytes(i * 100))
