"""Time on a device: of one call by the device's own clock, of many by the wall's, of a loop over batches."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.job import Job
from iofast.beside import wait

SAMPLES, WARM = 30, 5
BUSY = 30_000_000  # cycles that the stream works before each timed call, so that the host gets ahead: 15 ms
LONGER = 8 * BUSY  # if that was never enough
MOST = 1000  # calls in a row


class Rate(NamedTuple):
    """Images a second, and the cores that this process used meanwhile."""

    images: float
    cores: float


def on_device(job: Job, call: Callable[[], Any]) -> float:
    """Seconds that the device works for one call: the median. Without a GPU the wall's.

    The stream is busy before, so that the whole call is launched before it begins and the device never waits for the
    host. A sample for which the host was too late is left out.
    """
    for _ in range(2 if job.quick else WARM):
        call()
    wait(job.device)
    if not job.cuda:
        return on_wall(job, call, 0.05)
    found = []
    for number in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(BUSY if number < SAMPLES // 2 or found else LONGER)
        begin.record()
        call()
        end.record()
        late = begin.query()
        wait(job.device)
        if not late:
            found.append(begin.elapsed_time(end) / 1e3)
    if not found:
        raise RuntimeError("the host took longer to launch it than the stream was busy")
    return statistics.median(found)


def on_wall(job: Job, call: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, of as many in a row as take about `seconds`."""
    call()
    wait(job.device)
    one = _elapsed(job, call, 1)
    calls = max(1, min(int(seconds / max(one, 1e-9)), MOST))
    return _elapsed(job, call, calls) / calls


def _elapsed(job: Job, call: Callable[[], Any], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    wait(job.device)
    return time.perf_counter() - begun


def rate(job: Job, loader: Iterable[Any], seconds: float, warm: int = 8) -> Rate:
    """The rate of a loop that does nothing with its batches; the first ones are not counted."""
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    wait(job.device)
    images, cpu, begun = 0, time.process_time(), time.perf_counter()
    for batch in batches:
        images += len(batch[0])
        if time.perf_counter() - begun >= seconds:
            break
    wait(job.device)
    taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
    getattr(batches, "close", lambda: None)()
    return Rate(images / taken, cpu / taken)
