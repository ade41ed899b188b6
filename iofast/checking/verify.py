"""`verify`: the parts of a verification one after another, the payloads in threads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iofast.checking.payloads import SLICE_BYTES, SLICE_RECORDS, PayloadCheck
from iofast.checking.problems import Findings, Verification
from iofast.checking.structure import STEP, check_index, check_places, sound_rows, without
from iofast.containers.base import Reader
from iofast.containers.identity import is_ours
from iofast.containers.shard_reader import ShardReader
from iofast.errors import ContainerError
from iofast.machine import cores
from iofast.opening import open_damaged, open_reader

if TYPE_CHECKING:
    from iofast.foreign.options import ForeignOptions

Progress = Callable[[int, int, int], None]  # records and bytes that are done now, problems so far


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = True,
    workers: int | None = None,
    foreign: ForeignOptions | Mapping[str, Any] | None = None,
    begin: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Look at every byte of a container, a plain folder or another program's container, and say what is wrong with it.

    Payloads are compared with their checksums, where there are any, and every image is decoded unless `decode` is
    False. Of what iofast wrote, index, manifest and container are compared with each other. Goes on after whatever it
    finds, also where shards that iofast wrote are missing or cut off. `workers` are threads, by default one for each
    usable core; `foreign` is that of `open_reader`; `begin(records)` and `progress` tell how it goes. Raises what
    `open_reader` raises where nothing can be opened at all.
    """
    with _opened(path, foreign) as reader:
        result = Verification(os.fspath(path), reader.container, len(reader))
        findings = Findings(result, reader)
        own = is_ours(reader)
        broken = reader.broken if isinstance(reader, ShardReader) else {}
        for number, reason in broken.items():
            findings.add(f"{reason}; its {reader.manifest.shards[number].count} records were not looked at")
        sound = sound_rows(reader, findings)
        if own and len(sound) == len(reader):
            check_index(reader, findings)
            check_places(reader, findings, broken)
        elif own:
            result.notes.append("the index is damaged, so it was not compared with the container")
        if broken:
            sound = without(reader, sound, broken)
        if begin is not None:
            begin(len(sound))
        with _Checks(reader, findings, decode, own) as checks:
            checks.run(sound, cores() if workers is None else workers, progress)
        if result.unchecked and not result.checked:
            result.notes.append(
                "there are no checksums: payloads were read" + (" and images decoded" if decode else "")
            )
        result.problems.sort(key=lambda problem: -1 if problem.index is None else problem.index)
    return result


def _opened(path: str | os.PathLike[str], foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    try:
        return open_reader(path, foreign)
    except ContainerError:
        if foreign is None:  # what iofast wrote takes no options
            with contextlib.suppress(ContainerError):
                return open_damaged(path)
        raise


class _Checks:
    """The threads that look at payloads, each with a context of its own."""

    def __init__(self, reader: Reader, findings: Findings, decode: bool, own: bool) -> None:
        self._arguments = (reader, findings, decode, own)
        self._here = threading.local()
        self._made: list[PayloadCheck] = []

    def __enter__(self) -> _Checks:
        return self

    def __exit__(self, *_: object) -> None:
        for check in self._made:
            check.close()

    def run(self, sound: NDArray[np.int64], workers: int, progress: Progress | None) -> None:
        """All slices, at most two for each thread waiting, so that memory does not grow with the records."""
        pool = ThreadPoolExecutor(max(1, workers), "iofast-verify")
        pending: set[Future[tuple[int, int]]] = set()
        try:
            for indices in self._slices(sound):
                pending.add(pool.submit(self._check, indices))
                if len(pending) >= 2 * workers:
                    pending = self._collect(pending, progress)
            while pending:
                pending = self._collect(pending, progress)
        finally:
            pool.shutdown(cancel_futures=True)

    def _slices(self, sound: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        reader = self._arguments[0]
        for start in range(0, len(sound), STEP):
            part = sound[start : start + STEP]
            for first, last in reader.columns(part).slices(SLICE_BYTES, SLICE_RECORDS):
                yield part[first:last]

    def _check(self, indices: NDArray[np.int64]) -> tuple[int, int]:
        check = getattr(self._here, "check", None)
        if check is None:
            reader, findings, decode, own = self._arguments
            check = self._here.check = PayloadCheck(reader, findings, decode=decode, own=own)
            self._made.append(check)
        return len(indices), check.check(indices)

    def _collect(
        self, pending: set[Future[tuple[int, int]]], progress: Progress | None
    ) -> set[Future[tuple[int, int]]]:
        done, left = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            records, size = future.result()
            if progress is not None:
                progress(records, size, self._arguments[1].result.failed)
        return left
