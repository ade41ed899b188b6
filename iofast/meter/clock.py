"""StallClock: how long the consumer of a loader waits for its batches, by the host's clock and by the device's.

A loader calls `clock.begin()` for each pass, then for each batch `waiting()` at the entry of its next() and
`got(images)` at its return, and `left()` at the end. The clock keeps sums and a bounded window for the median, writes
the telemetry page about once a second, and takes no lock.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from statistics import median
from threading import get_ident, get_native_id
from typing import Any, Final, Self

from iofast.meter.counters import Cells, Stages
from iofast.meter.device import RECENT, DeviceTimes
from iofast.meter.page import LoaderInfo, PhaseTotals, Totals
from iofast.meter.page_files import Slot
from iofast.meter.stats import MeterStats, Stall, StepPhase

PUBLISH_NS: Final = 750_000_000  # between two pages: a monitor that reads every second is to find a new one
END_NS: Final = 100_000_000  # the same at the end of an epoch; writing a page takes 0.1 to 0.5 ms
MAX_PHASES: Final = 64
OTHER: Final = "other"  # further phases: a new name for each step must not fill the memory

_EPOCHS, _BATCHES, _STEPS, _IMAGES, _UNKNOWN, _STEP_NS, _WAIT_NS, _START_NS, _QUEUED_NS, _SEEN_NS = range(10)


class StallClock:
    """The times of one loader, for any number of simultaneous passes in any threads.

    `device`: "cpu" measures host waits, a CUDA device (as torch writes it) its stall; None decides at the beginning of
    each pass, by whether this process uses CUDA. `stages` are the loader's counters; the clock counts the stage
    `queue`. Tests replace `now`, which returns nanoseconds, and `cuda`, None for torch.cuda.
    """

    def __init__(self, info: LoaderInfo, device: str | None = None, stages: Stages | None = None) -> None:
        self.stages = stages
        self.slot = Slot(info)  # whose `info` may be replaced at any time
        self.now: Callable[[], int] = time.monotonic_ns
        self.cuda: Any = None
        self.sums = Cells(10)
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.device = device
        self._times: DeviceTimes | None = None
        self._phases: dict[str, Cells] = {}  # the fields of PhaseTotals, by name
        self._passes = itertools.count()
        self.publish_at = 0  # by `now`; the next batch after it publishes
        weakref.finalize(self, self.slot.close).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return StallClock, (self.slot.info, self.device, self.stages)  # a copy measures for itself

    def begin(self, epoch: int | None = None) -> Pass:
        """Begin a pass. `epoch` is its number on the telemetry page; by default passes are counted from 0."""
        if self._times is None:
            self._times = self._device_times()
            if self._times is not None:
                self.slot.info = replace(self.slot.info, device=self._times.name)
        return Pass(self, next(self._passes) if epoch is None else epoch, self._times)

    def step(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that measures the phase `name` of the step."""
        if name not in self._phases and len(self._phases) >= MAX_PHASES:
            name = OTHER
        return _Phase(self._phases.setdefault(name, Cells(len(PhaseTotals._fields))), self.now, self._times)

    def publish(self, epoch: int, now: int) -> None:
        """Write the telemetry page."""
        self.publish_at = now + PUBLISH_NS
        _, batches, steps, images, _, step_ns, wait_ns, start_ns, *_ = self.sums.sums()
        times = self._times
        on_device = (0, 0) if times is None else (times.stall_ns, times.step_ns)
        figures = Totals(epoch, batches, images, steps, step_ns, wait_ns, start_ns, *on_device, now)
        self.slot.write(figures, self.stages, self._phase_totals(), on_device=times is not None)

    @property
    def stats(self) -> MeterStats:
        """The measurements so far."""
        times = self._times
        if times is not None:
            times.collect()
        epochs, batches, steps, images, unknown, step_ns, wait_ns, start_ns, queued_ns, seen_ns = self.sums.sums()
        recent, count, total = self.recent, steps, step_ns
        host_wait = wait_ns / step_ns if step_ns else None
        stall, transfer = Stall(0.0, 1.0), None
        if times is not None and times.steps:
            recent, count, total = times.recent, times.steps, times.step_ns
            stall = Stall(times.stall_ns / max(1, total), times.stall_ns / max(1, total))
            transfer = None if self.stages is None else 1e9 * self.stages.transfer.stats().wait_s / max(1, total)
        elif host_wait is not None:  # exact without a device, otherwise an upper bound
            stall = Stall(host_wait if times is None else 0.0, host_wait)
        mean = total / count / 1e9 if count else None
        return MeterStats(
            device="cpu" if times is None else times.name,
            epochs=epochs,
            batches=batches,
            steps=steps,
            images=None if unknown else images,
            step_median_s=median(list(recent)) / 1e9 if count else None,
            step_mean_s=mean,
            host_wait=host_wait,
            stall=stall,
            transfer=transfer,
            epoch_start_s=start_ns / epochs / 1e9 if epochs else None,
            phases=self._phase_stats(batches, mean),
            queued=queued_ns / seen_ns if seen_ns else None,
        )

    def _phase_stats(self, batches: int, step_s: float | None) -> dict[str, StepPhase]:
        phases = {}
        for name, (entered, timed, total) in self._phase_totals().items():
            if timed:  # may be less than `entered`: the device has not passed the events, or there were none
                seconds = total / timed * entered / max(1, batches) / 1e9
                phases[name] = StepPhase(seconds, seconds / step_s if step_s else None)
        return phases

    def _phase_totals(self) -> dict[str, PhaseTotals]:
        """Return the totals by name, in the order of their first use."""
        return {name: PhaseTotals(*sums.sums()) for name, sums in list(self._phases.items())}

    def _device_times(self) -> DeviceTimes | None:
        if self.device is not None and not self.device.startswith("cuda"):
            return None
        cuda = self.cuda
        if cuda is None:
            torch = sys.modules.get("torch")  # imported already if this process uses CUDA
            if torch is None or (self.device is None and not torch.cuda.is_initialized()):
                return None
            cuda = torch.cuda
        index = self.device.partition(":")[2] if self.device is not None else ""
        copies = None if self.stages is None else self.stages.transfer
        return DeviceTimes(f"cuda:{index or cuda.current_device()}", cuda, copies)


class _Phase:
    """A phase of a step, for one use: by the host's clock, or by a device's between events on the consumer's stream."""

    def __init__(self, sums: Cells, now: Callable[[], int], times: DeviceTimes | None) -> None:
        self._sums, self._now, self._times = sums, now, times
        self._start: Any = None

    def __enter__(self) -> Self:
        self._start = self._now() if self._times is None else self._times.mark()
        return self

    def __exit__(self, *error: object) -> None:
        row = self._sums.mine()
        row[0] += 1
        if self._times is not None:
            self._times.phase(self._sums, self._start, self._times.mark())
        else:
            row[1] += 1
            row[2] += self._now() - self._start


class Pass:
    """One pass over a loader, in the consumer's thread.

    On a device it marks events: `waiting` and `got` for each batch, between them perhaps `arrived`.
    """

    def __init__(self, clock: StallClock, epoch: int, times: DeviceTimes | None) -> None:
        self._clock, self._epoch, self._batch = clock, epoch, 0
        self._now, self._thread, self._times = clock.now, get_ident(), times
        self._before = self._waiting = self._arrived = None  # events: the last `got`, and those since
        self._since: int | None = None  # the current entry of next()
        self._before_ns = 0  # spent in iter()
        self._last: int | None = None
        self._queued = _queued_ns()

    def waiting(self) -> None:
        """Note the entry of next() or iter()."""
        if self._times is not None and self._before is not None:  # the first batch of an epoch ends no step
            self._waiting = self._times.mark()
        self._since = self._now()

    def began(self) -> None:
        """Note the return of iter(): its time counts to the start of the epoch."""
        self._before_ns = self._waited(self._now())

    def arrived(self) -> None:
        """Note that the batch is ready and its copy to the device is not."""
        if self._times is not None and self._waiting is not None:
            self._arrived = self._times.mark()

    def got(self, images: int | None = None) -> None:
        """Note the return of next() with a batch of `images` samples, None if unknown."""
        clock, now = self._clock, self._now()
        wait, row = self._waited(now), clock.sums.mine()
        row[_BATCHES] += 1
        if images is None:
            row[_UNKNOWN] += 1
        else:
            row[_IMAGES] += images
        if not self._batch:
            row[_EPOCHS] += 1
            row[_START_NS] += wait + self._before_ns
        elif self._last is not None:  # None: the consumer went on after an error
            step = now - self._last
            row[_STEPS] += 1
            row[_STEP_NS] += step
            row[_WAIT_NS] += wait
            clock.recent.append(step)
        self._last = now
        self._batch += 1
        if clock.stages is not None:
            clock.stages.queue.add(wait_ns=wait)
        if (times := self._times) is not None:
            event = times.mark()
            times.step(self._before, self._waiting, self._arrived, event)
            self._before, self._waiting, self._arrived = event, None, None
            times.collect()
        if now >= clock.publish_at:
            self._see_queue()
            clock.publish(self._epoch, now)

    def left(self) -> None:
        """End the pass: at its end, by an error, or because the consumer left. May be called in a finalizer."""
        clock = self._clock
        if self._batch:
            now = self._now()  # behind a next() without a batch, in which a DataLoader ends its workers
            clock.sums.mine()[_START_NS] += self._waited(now)
            self._see_queue()
            if now >= clock.publish_at - PUBLISH_NS + END_NS:
                clock.publish(self._epoch, now)
        self._last = self._since = self._before = self._waiting = self._arrived = None

    def _see_queue(self) -> None:
        """Add the time since the last look, of the thread that began the pass."""
        if get_ident() != self._thread or self._queued is None or (found := _queued_ns()) is None:
            return
        for number, before, now in zip((_QUEUED_NS, _SEEN_NS), self._queued, found, strict=True):
            self._clock.sums.mine()[number] += now - before
        self._queued = found

    def _waited(self, now: int) -> int:
        """Return the nanoseconds since the entry of next(), once."""
        since, self._since = self._since, None
        return 0 if since is None else now - since


def _queued_ns() -> tuple[int, int] | None:
    """How long this thread has been ready to run without a processor, and now; None if that is not counted."""
    try:
        with open(f"/proc/self/task/{get_native_id()}/schedstat", "rb") as file:
            ran, queued, _ = map(int, file.read().split())
            return (queued, time.monotonic_ns()) if ran else None
    except (OSError, IndexError, ValueError, NameError):  # the last: `open` is gone while the interpreter exits
        return None
