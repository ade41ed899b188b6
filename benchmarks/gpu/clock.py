"""Time on a device: of one call by the device's own clock, of many by the wall's, of steps in a loop."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from benchmarks.gpu.job import Job, Stalls
from iofast import watch
from iofast.meter import MeterStats

SAMPLES, WARM = 30, 5
BUSY = 30_000_000  # cycles that the stream works before each timed call, so that the host gets ahead: 15 ms
LONGER = 8 * BUSY  # if that was never enough
MOST = 1000  # calls in a row

Step = Callable[[Any], None]


def wait(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


def rate(job: Job, loader: Iterable[Any], seconds: float, warm: int = 8) -> float:
    """Images a second of a loop that does nothing with its batches; the first ones are not counted."""
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    wait(job.device)
    images, begun = 0, time.perf_counter()
    for batch in batches:
        images += len(batch[0])
        if time.perf_counter() - begun >= seconds:
            break
    wait(job.device)
    taken = time.perf_counter() - begun
    _leave(batches)
    return images / taken


def stalls(job: Job, loader: Iterable[Any], step: Step, steps: int, warm: int = 10) -> Stalls:
    """Measure the stall of `steps` steps in two ways: by iofast's clock, and as the time beyond the same steps on a
    batch that stays on the device, run before and after."""
    pass_ = iter(loader)
    held = next(pass_)
    _leave(pass_)
    before = _steps(job, itertools.repeat(held), step, steps, warm)
    meter = watch(loader, device=str(job.device) if job.cuda else None)
    batches = iter(meter)
    for _ in range(warm):
        step(next(batches))
    wait(job.device)
    begun = meter.stats
    loop = _steps(job, batches, step, steps, 0)
    ended = meter.stats
    _leave(batches)
    after = _steps(job, itertools.repeat(held), step, steps, warm)
    images = len(held[0]) * steps / loop
    return Stalls(window(begun, ended), exposed(loop, (before + after) / 2), images, 1e3 * loop / steps)


def _steps(job: Job, batches: Iterator[Any], step: Step, steps: int, warm: int) -> float:
    for _ in range(warm):
        step(next(batches))
    wait(job.device)
    begun = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    wait(job.device)
    return time.perf_counter() - begun


def exposed(loop: float, held: float) -> float:
    """Share of the loop's time beyond that of steps with a batch at hand; below 0 by noise alone."""
    return 1 - held / loop


def window(begun: MeterStats, ended: MeterStats) -> float:
    """The stall between two readings of one meter."""
    times = [(each.step_mean_s or 0.0) * each.steps for each in (begun, ended)]
    waits = [each.stall.high * each_time for each, each_time in zip((begun, ended), times, strict=True)]
    if times[1] <= times[0]:
        raise RuntimeError(f"the meter saw no step: {begun.steps} before, {ended.steps} after")
    return (waits[1] - waits[0]) / (times[1] - times[0])


def tuned(job: Job, seconds: float) -> Step:
    """A step of about `seconds`: matrix products, and the whole batch read once."""
    side, dtype = (4096, torch.bfloat16) if job.cuda else (128, torch.float32)
    one, two = (torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2))
    out, sink = torch.empty_like(one), torch.zeros((), device=job.device)
    times = repeats(seconds, on_wall(job, lambda: torch.mm(one, two, out=out), 0.2))

    def step(batch: Any) -> None:
        sink.add_(batch[0].sum(dtype=torch.float32))
        for _ in range(times):
            torch.mm(one, two, out=out)

    return step


def repeats(seconds: float, one: float) -> int:
    """How often something that takes `one` second each has to be done."""
    return max(1, round(seconds / max(one, 1e-9)))


def _leave(batches: Iterator[Any]) -> None:
    """End a pass that is not at its end."""
    getattr(batches, "close", lambda: None)()
