"""`--dry-run`: transcode a sample with all workers, and estimate size and time of the whole run."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

from iofast.containers.publish import existing_folder
from iofast.packing.estimate import container_size, spread
from iofast.packing.pack_run import PackRun
from iofast.packing.report import Estimate, PackReport
from iofast.packing.work import PackWork

_SAMPLE = 64  # images per worker: a fraction of a second for photographs, half a minute for the very largest
_START_UP = 0.3  # seconds until the first image, on any machine of today


def forecast(run: PackRun) -> PackReport:
    """The report of a dry run, with its `estimate`. Nothing is written beside the target."""
    work, path, workers = run.work, run.target.path, run.pool.count
    assert isinstance(work, PackWork)  # a copy is no dry run
    images = len(work.source)
    sample = spread(images, _SAMPLE * workers)
    size = max(1, min(work.chunk, len(sample) // (8 * workers)))  # so small that all workers end at about the same time
    jobs = (work.job(i, sample[i : i + size]) for i in range(0, len(sample), size))
    run.failures.allowed = images
    bytes_in = bytes_out = left_out = 0
    times = [time.monotonic()]
    for done in run.pool.results(work.setup, jobs):
        times.append(time.monotonic())
        bytes_in += done.bytes_in
        bytes_out += sum(len(payload) for record in done.records for payload in record.fields.values())
        left_out += done.left_out
        run.note_failures(done)
    good = max(1, len(sample) - len(run.failures) - left_out)
    admitted = images - images * left_out // len(sample)
    total = container_size(path.suffix, admitted, bytes_out / good)
    expected = Estimate(
        sample=len(sample),
        bytes_out=total,
        seconds=_START_UP + images / _rate(times, len(sample)),
        bytes_peak=total,
        bytes_free=shutil.disk_usage(existing_folder(path.parent)).free,
    )
    bytes_in = int(bytes_in / good * admitted)
    return replace(run.report(()), left_out=left_out, bytes_in=bytes_in, errors_file=None, estimate=expected)


def _rate(times: list[float], images: int) -> float:
    """Images per second, of `images` in jobs that ended at `times[1:]`, begun at `times[0]`.

    The clock starts with the end of the first job, when all workers have started, unless there are few jobs.
    """
    jobs = len(times) - 1
    if jobs < 4:
        return images / max(1e-6, times[-1] - times[0])
    return images * (jobs - 1) / jobs / max(1e-6, times[-1] - times[1])
