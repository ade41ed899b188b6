"""`--dry-run`: transcode a sample with all workers, and estimate size and time of the whole run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from iofast.containers.publish import existing_folder
from iofast.packing import estimate
from iofast.packing.child import ChunkJob
from iofast.packing.failures import Failures
from iofast.packing.pack_work import PackWork
from iofast.packing.pool import Done, WorkerPool
from iofast.packing.report import Estimate, PackReport

_SAMPLE = 64  # images per worker: a fraction of a second for photographs, half a minute for the very largest
_START_UP = 0.3  # seconds until the first image, on any machine of today


def forecast(work: PackWork, target: Path, pool: WorkerPool) -> PackReport:
    """The report of a dry run, with its `estimate`. Nothing is written beside the target."""
    images = len(work.source)
    sample = estimate.spread(images, _SAMPLE * work.workers)
    failures = Failures(images, images, target)
    pace = _Pace()
    for done in pool.results(work.setup(), _jobs(work, sample)):
        pace.note(done)
        for failure in work.failures(done):
            failures.add(failure)
    good = max(1, len(sample) - len(failures) - pace.left_out)
    payload = pace.bytes_out / good
    admitted = images - images * pace.left_out // len(sample)
    size = estimate.Room(target.suffix).container(admitted, payload)
    expected = Estimate(
        sample=len(sample),
        bytes_out=size,
        seconds=_START_UP + images / pace.rate(len(sample)),
        bytes_peak=size,
        bytes_free=shutil.disk_usage(existing_folder(target.parent)).free,
    )
    return replace(
        work.report(target, failures, (), 0, 0),
        left_out=pace.left_out,
        bytes_in=int(pace.bytes_in / good * admitted),
        errors_file=None,
        estimate=expected,
    )


def _jobs(work: PackWork, sample: list[int]) -> Iterator[ChunkJob]:
    """The sample in jobs so small that all workers end at about the same time."""
    size = max(1, min(work.chunk, len(sample) // (8 * work.workers)))
    return (work.job(i, sample[i : i + size]) for i in range(0, len(sample), size))


class _Pace:
    """Sums of finished jobs. The clock starts with the first one, when all workers have started."""

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.left_out = 0
        self._jobs = 0
        self._created = self._first = self._last = time.monotonic()

    def note(self, done: Done) -> None:
        self._last = time.monotonic()
        self._first = self._last if self._jobs == 0 else self._first
        self._jobs += 1
        self.bytes_in += done.bytes_in
        self.bytes_out += sum(len(payload) for record in done.records for payload in record.fields.values())
        self.left_out += done.left_out

    def rate(self, images: int) -> float:
        """Images per second, of `images` in all the jobs."""
        if self._jobs < 4:
            return images / max(1e-6, self._last - self._created)
        return images * (self._jobs - 1) / self._jobs / max(1e-6, self._last - self._first)
