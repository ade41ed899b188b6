"""`verify`: compare index, container and payloads; payloads are checked in threads."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.checking.payloads import SLICE_BYTES, SLICE_RECORDS, PayloadCheck
from iofast.checking.problems import Findings, Verification
from iofast.checking.structure import check_index, check_places, sound_rows, without
from iofast.containers.base import Reader
from iofast.containers.columns import ABSENT
from iofast.containers.indexed_reader import IndexedReader
from iofast.containers.located import pieces, steps
from iofast.containers.shard_reader import LOOKS, ShardReader
from iofast.errors import ContainerError
from iofast.foreign.options import ForeignOptions
from iofast.machine import cores
from iofast.opening import open_damaged, open_reader

MOST_COMPARED = 1 << 26  # records among which duplicates are looked for: 17 bytes of memory each
SHOWN = 5  # pairs of duplicates whose keys are reported


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = True,
    workers: int | None = None,
    foreign: ForeignOptions | Mapping[str, Any] | None = None,
    begin: Callable[[int], None] | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Verification:
    """Check every byte of a container, a plain folder or another program's container, and report all problems.

    Payloads are compared with their checksums, and every image is decoded unless `decode` is False. In a container that
    iofast wrote, index, manifest and container are compared with each other, and equal images are counted. Every
    problem is reported, even if shards are missing or cut off. `workers` is the number of threads (default: usable
    cores); `foreign` is the argument of `open_reader`; `begin(records)` is called once, then `progress` with
    records and bytes that are done now and all problems so far. Raises like `open_reader` if nothing can be opened.
    """
    workers = max(1, cores() if workers is None else workers)
    with _opened(path, foreign) as reader:
        result = Verification(os.fspath(path), reader.container, len(reader))
        findings = Findings(result, reader)
        own = isinstance(reader, IndexedReader)
        broken = reader.broken if isinstance(reader, ShardReader) else {}
        for number, reason in broken.items():
            findings.add(f"{reason}; its {reader.manifest.shards[number].count} records were not looked at")
        sound = sound_rows(reader, findings)
        if isinstance(reader, IndexedReader) and len(sound) == len(reader):
            check_index(reader, findings)
            check_places(reader, findings, broken)
        elif own:
            result.notes.append("the index is damaged, so it was not compared with the container")
        if broken:
            sound = without(reader, sound, broken)
        if own:
            _find_duplicates(reader, sound, result)
        if begin is not None:
            begin(len(sound))
        check = PayloadCheck(reader, findings, decode=decode, own=own)
        with contextlib.closing(_checked(check, _slices(reader, sound), workers)) as done:
            for records, size in done:
                if progress is not None:
                    progress(records, size, result.failed)
        if result.unchecked and not result.checked:
            decoded = " and images decoded" if decode else ""
            result.notes.append(f"there are no checksums: payloads were read{decoded}")
        if unlabelled := sum(int((reader.labels(part) < 0).sum()) for part in pieces(sound)):
            result.notes.append(f"records without a label: {unlabelled:,} of {len(sound):,}")
        result.notes.extend(reader.left_out)
        result.problems.sort(key=lambda problem: -1 if problem.index is None else problem.index)
    return result


def _opened(path: str | os.PathLike[str], foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    try:
        reader = open_reader(path, foreign)
        if isinstance(reader, ShardReader) and len(reader.manifest.shards) > LOOKS:
            return open_damaged(reader.path)  # compares all shards
        return reader
    except ContainerError:
        if foreign is None:  # containers of iofast take no options
            with contextlib.suppress(ContainerError):
                return open_damaged(path)
        raise


def _find_duplicates(reader: Reader, sound: NDArray[np.int64], result: Verification) -> None:
    """Count images that equal an earlier one by length and checksum, which the index has."""
    if len(sound) > MOST_COMPARED:
        result.notes.append(f"duplicates were not looked for: there are more than {MOST_COMPARED:,} records")
        return
    keys, there = np.zeros(len(sound), np.uint64), np.zeros(len(sound), np.bool_)
    for rows in steps(0, len(sound)):
        part = reader.columns(sound[rows])
        keys[rows] = part.length << np.uint64(32) | (0 if part.crc is None else part.crc)
        there[rows] = part.file != ABSENT
    own, keys = sound[there], keys[there]
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    result.duplicates = len(same)
    for later, earlier in sorted((int(own[order[at + 1]]), int(own[order[at]])) for at in same[:SHOWN].tolist()):
        first, second = reader.keys(reader.columns(np.array([earlier, later])))
        result.equal.append((first, second))


def _slices(reader: Reader, sound: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for part in pieces(sound):
        for first, last in reader.columns(part).slices(SLICE_BYTES, SLICE_RECORDS):
            yield part[first:last]


def _checked(
    check: PayloadCheck, slices: Iterator[NDArray[np.int64]], workers: int
) -> Generator[tuple[int, int], None, None]:
    """Check all slices in threads; yields records and bytes of each.

    At most two slices per thread wait, so memory does not grow with the records.
    """
    pool = ThreadPoolExecutor(workers, "iofast-verify")
    pending: deque[tuple[int, Future[int]]] = deque()
    try:
        for indices in slices:
            pending.append((len(indices), pool.submit(check.check, indices)))
            while len(pending) >= 2 * workers:
                records, future = pending.popleft()
                yield records, future.result()
        for records, future in pending:
            yield records, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
