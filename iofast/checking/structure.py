"""Compare a container's index with the container: rows, keys, shards, fingerprint, and places of payloads."""

from collections.abc import Collection, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.checking.problems import Findings
from iofast.containers.base import Reader
from iofast.containers.columns import NOWHERE, columns_of
from iofast.containers.index import Fingerprint
from iofast.containers.indexed_reader import IndexedReader
from iofast.containers.located import pieces, steps
from iofast.errors import ContainerError


def sound_rows(reader: Reader, findings: Findings) -> NDArray[np.int64]:
    """The dense indices with valid index rows. The others are reported, and columns with another checksum."""
    if isinstance(reader, IndexedReader):
        for problem in reader.index.check():
            findings.add(problem)
    found = [_sound(reader, findings, indices) for indices in steps(0, len(reader))]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _sound(reader: Reader, findings: Findings, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    try:
        for name in reader.manifest.fields:
            try:
                reader.locate(indices, name)
            except KeyError:  # in no file
                reader.columns(indices)
        reader.labels(indices)
        reader.positions(indices)
    except ContainerError as error:
        if len(indices) == 1:
            findings.add(str(error), int(indices[0]))
            return indices[:0]
        return np.concatenate([_sound(reader, findings, half) for half in np.array_split(indices, 2)])
    return indices


def check_index(reader: IndexedReader[Any], findings: Findings) -> None:
    """Check that positions rise, that every record has a field, and that the fingerprint is right.

    Every row of the index must be valid.
    """
    fields, last, fingerprint = reader.manifest.fields, -1, Fingerprint(reader.manifest.key_width)
    for indices in steps(0, len(reader)):
        columns = reader.index.read(["position", *(each for name in fields for each in columns_of(name))], indices)
        positions = columns["position"].astype(np.int64)
        for row in np.flatnonzero(np.diff(positions, prepend=last) <= 0)[:1].tolist():
            findings.add(f"its position {positions[row]} does not follow that of the record before", int(indices[row]))
        last = int(positions[-1])
        there = [columns[f"{name}.offset"] != np.uint64(NOWHERE) for name in fields]
        for row in np.flatnonzero(~np.any(there, axis=0))[:1].tolist():
            findings.add("it has no field at all", int(indices[row]))
        fingerprint.add(columns)
    if len(reader) and str(fingerprint) != reader.manifest.fingerprint:
        findings.add(f"the fingerprint of the index is {fingerprint}, expected {reader.manifest.fingerprint}")


def without(reader: Reader, indices: NDArray[np.int64], shards: Collection[int]) -> NDArray[np.int64]:
    """The records that are in none of `shards`."""
    kept = []
    for part in pieces(indices):
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
