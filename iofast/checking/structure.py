"""Compare a container's index with the container: rows, keys, shards, fingerprint, and places of payloads."""

from __future__ import annotations

from collections.abc import Collection, Container

import numpy as np
from numpy.typing import NDArray

from iofast.checking.problems import Findings
from iofast.containers.base import Reader
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


def check_places(reader: Reader, findings: Findings, broken: Container[int] = ()) -> None:
    """Compare the files with the index. Every row of the index must be valid; the shards in `broken` are skipped."""
    if not isinstance(reader, IndexedReader):
        return
    for number in range(len(reader.manifest.shards)):
        if number in broken:
            continue
        try:
            for index, reason in reader.differences(number):
                findings.add(reason, index)
        except ContainerError as error:
            findings.add(str(error))
