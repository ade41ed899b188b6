"""Compare a container's index with the container: rows, keys, shards, fingerprint, and places of payloads."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.checking.problems import Findings
from iofast.containers.base import Reader
from iofast.containers.columns import NOWHERE, columns_of
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


def check_index(reader: IndexedReader[Any], findings: Findings) -> None:
    """Check that positions rise, that every record has a field, and that the fingerprint is right.

    Every row of the index must be valid.
    """
    fields, last, fingerprint = reader.manifest.fields, -1, Fingerprint(reader.manifest.key_width)
    for start in range(0, len(reader), STEP):
        indices = np.arange(start, min(start + STEP, len(reader)), dtype=np.int64)
        columns = reader.index.read(["position", *(each for name in fields for each in columns_of(name))], indices)
        positions = columns["position"].astype(np.int64)
        for row in np.flatnonzero(np.diff(positions, prepend=last) <= 0)[:1].tolist():
            findings.add(f"its position {positions[row]} does not follow that of the record before", start + row)
        last = int(positions[-1])
        there = [columns[f"{name}.offset"] != np.uint64(NOWHERE) for name in fields]
        for row in np.flatnonzero(~np.any(there, axis=0))[:1].tolist():
            findings.add("it has no field at all", start + row)
        fingerprint.add(columns)
    if len(reader) and str(fingerprint) != reader.manifest.fingerprint:
        findings.add(f"the fingerprint of the index is {fingerprint}, expected {reader.manifest.fingerprint}")


def without(reader: Reader, indices: NDArray[np.int64], shards: Collection[int]) -> NDArray[np.int64]:
    """The records that are in none of `shards`."""
    kept = []
    for start in range(0, len(indices), STEP):
        part = indices[start : start + STEP]
        files = np.min([reader.locate(part, name).file for name in reader.manifest.fields], axis=0)
        kept.append(part[~np.isin(files, list(shards))])
    return np.concatenate(kept) if kept else indices


def check_places(reader: IndexedReader[Any], findings: Findings, broken: Container[int] = ()) -> None:
    """Compare the files with the index. Every row of the index must be valid; the shards in `broken` are skipped."""
    for number in range(len(reader.manifest.shards)):
        if number in broken:
            continue
        try:
            for index, reason in reader.differences(number):
                findings.add(reason, index)
        except ContainerError as error:
            findings.add(str(error))
