"""Compare a container's index with the container: rows, keys, shards, fingerprint, and places of payloads."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator

import numpy as np
from numpy.typing import NDArray

from iofast.checking.problems import Findings
from iofast.containers.base import Entry, Reader
from iofast.containers.columns import ABSENT
from iofast.containers.fingerprint import Fingerprint
from iofast.containers.indexed_reader import IndexedReader
from iofast.errors import ContainerError

STEP = 65_536  # rows of the index that are read together


def sound_rows(reader: Reader, findings: Findings) -> NDArray[np.int64]:
    """The dense indices with valid index rows. The others are reported, and columns with another checksum."""
    if isinstance(reader, IndexedReader):
        for problem in reader.index.check():
            findings.add(problem)
    found = [_sound(reader, findings, start, min(start + STEP, len(reader))) for start in range(0, len(reader), STEP)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _sound(reader: Reader, findings: Findings, start: int, stop: int) -> NDArray[np.int64]:
    indices = np.arange(start, stop, dtype=np.int64)
    try:
        for name in reader.manifest.fields:
            try:
                reader.locate(indices, name)
            except KeyError:  # in no file
                reader.columns(indices)
        reader.labels(indices)
        reader.positions(indices)
    except ContainerError as error:
        if stop - start == 1:
            findings.add(str(error), start)
            return indices[:0]
        middle = (start + stop) // 2
        return np.concatenate([_sound(reader, findings, start, middle), _sound(reader, findings, middle, stop)])
    return indices


def check_index(reader: Reader, findings: Findings) -> None:
    """Check that positions rise, and that the fingerprint is right.

    Every row of the index must be valid.
    """
    fingerprint = Fingerprint(reader.manifest.key_width)
    last, sums = -1, True
    for start in range(0, len(reader), STEP):
        indices = np.arange(start, min(start + STEP, len(reader)), dtype=np.int64)
        places = {name: reader.locate(indices, name) for name in reader.manifest.fields}
        positions = reader.positions(indices).astype(np.int64)
        steps = np.flatnonzero(np.diff(positions, prepend=last) <= 0)
        for row in steps[:1].tolist():
            findings.add(f"its position {positions[row]} does not follow that of the record before", start + row)
        last = int(positions[-1])
        file = np.min([located.file for located in places.values()], axis=0)
        if file.max() == ABSENT:
            findings.add("it has no field at all", start + int(np.argmax(file)))
        sums = sums and all(located.crc is not None for located in places.values())
        if sums:
            fingerprint.add(
                positions.astype(np.uint64), {name: own.field_places() for name, own in sorted(places.items())}
            )
    found = str(fingerprint)
    if sums and len(reader) and found != reader.manifest.fingerprint:
        findings.add(f"the fingerprint of the index is {found}, expected {reader.manifest.fingerprint}")


def without(reader: Reader, indices: NDArray[np.int64], shards: Collection[int]) -> NDArray[np.int64]:
    """The records that are in none of `shards`."""
    kept = []
    for start in range(0, len(indices), STEP):
        part = indices[start : start + STEP]
        files = np.min([reader.locate(part, name).file for name in reader.manifest.fields], axis=0)
        kept.append(part[~np.isin(files, list(shards))])
    return np.concatenate(kept) if kept else indices


def check_places(reader: Reader, findings: Findings, broken: Container[int] = ()) -> bool:
    """Compare every payload's name and place with `Reader.walk`; False if the container has no such listing.

    Every row of the index must be valid; the shards in `broken` are skipped.
    """
    first = 0
    for number, shard in enumerate(reader.manifest.shards):
        if number in broken:
            first += shard.count
            continue
        walk = reader.walk(number)
        if walk is None:
            return False
        _compare(walk, _expected(reader, first, first + shard.count), shard.name or findings.result.path, findings)
        first += shard.count
    return True


def _expected(reader: Reader, start: int, stop: int) -> Iterator[tuple[int, Entry]]:
    """The payloads of records [start, stop) in the index, with their dense indices."""
    for begin in range(start, stop, STEP):
        indices = np.arange(begin, min(begin + STEP, stop), dtype=np.int64)
        places = [(name, reader.locate(indices, name)) for name in reader.manifest.fields]
        columns = [(name, own.file.tolist(), own.offset.tolist(), own.length.tolist()) for name, own in places]
        for row, key in enumerate(reader.keys(places[0][1])):
            for name, file, offset, length in columns:
                if file[row] != ABSENT:
                    yield begin + row, Entry(f"{key}.{name}", offset[row], length[row])


def _compare(walk: Iterator[Entry], expected: Iterator[tuple[int, Entry]], name: str, findings: Findings) -> None:
    """Two sorted listings side by side."""
    try:
        found, own = next(walk, None), next(expected, None)
        while found is not None or own is not None:
            if found is not None and (own is None or found.name < own[1].name):
                findings.add(f"{name}: {found.name!r:.80} at offset {found.offset} is not in the index")
                found = next(walk, None)
            elif own is not None and (found is None or own[1].name < found.name):
                findings.add(f"{name} does not have {own[1].name!r}", own[0], offset=own[1].offset)
                own = next(expected, None)
            elif own is not None and found is not None:
                if found != own[1]:
                    words = [f"{each.length} bytes at offset {each.offset}" for each in (found, own[1])]
                    reason = f"{found.name}: {words[0]}, but the index has {words[1]}"
                    findings.add(reason, own[0], offset=found.offset)
                found, own = next(walk, None), next(expected, None)
    except ContainerError as error:
        findings.add(str(error))
