"""Where the time of a whole run went. Pure: sums of intervals, however many there are.

A verdict rests on a window of intervals. Before intervals fall out of it their older half is summed up: each has the
phase that the whole window gives it, and intervals of training have the stall that they show together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum

from iofast.monitor.bounds import Share, exposed
from iofast.monitor.findings import Phase
from iofast.monitor.phases import phases
from iofast.monitor.snapshot import Snapshot, own_devices
from iofast.monitor.thresholds import THRESHOLDS
from iofast.monitor.training import Training


@dataclass(frozen=True, slots=True)
class RunSums:
    """Where the time since watching began went: parts of `seconds`, as shares.

    `computed` is training without the wait for batches, `waited` that wait. `lost_gpu_hours` counts the job's devices
    while they waited for batches, for a start, or for a checkpoint; None without a device.
    """

    seconds: float
    computed: Share
    waited: Share
    start_up: float
    epoch_starts: float
    validation: float
    checkpoints: float
    paused: float
    devices: int
    lost_gpu_hours: Share | None


@dataclass(frozen=True, slots=True)
class _Part:
    """Seconds of some intervals: of training, by the bounds of its wait for batches, and of other phases."""

    training: float = 0.0
    low: float = 0.0
    high: float = 0.0
    others: dict[Phase, float] = field(default_factory=dict)
    devices: int = 0

    def plus(self, later: _Part) -> _Part:
        others = {
            phase: self.others.get(phase, 0.0) + later.others.get(phase, 0.0) for phase in self.others | later.others
        }
        training, low, high = self.training + later.training, self.low + later.low, self.high + later.high
        return _Part(training, low, high, others, max(self.devices, later.devices))


@dataclass(slots=True)
class Ledger:
    """Sums of one job. Of the newest snapshots, which are in a window, `unsummed` are not in `past` yet."""

    past: _Part = field(default_factory=_Part)
    unsummed: int = 0

    def before_adding(self, window: deque[Snapshot]) -> None:
        """Must be called before each snapshot is added to `window`: its oldest snapshot may then fall out."""
        if self.unsummed == window.maxlen:
            older = (self.unsummed + 1) // 2
            self.past = self.past.plus(_part(window, 0, older))
            self.unsummed -= older
        self.unsummed += 1

    def sums(self, window: deque[Snapshot]) -> RunSums:
        """Sums since watching began."""
        return _shares(self.past.plus(_part(window, len(window) - self.unsummed, len(window))))


def _part(window: Sequence[Snapshot], start: int, stop: int) -> _Part:
    """Sums of the snapshots from `start` to `stop`, by the phases that the whole window shows."""
    found = list(zip(window, phases(window, THRESHOLDS), strict=True))[start:stop]
    trained = [one for one, phase in found if phase is Phase.TRAINING]
    others = {phase: fsum(one.seconds for one, its in found if its is phase) for _, phase in found}
    others.pop(Phase.TRAINING, None)
    training, reported = Training(trained), Training([one for one, _ in found])
    # A loader that reports says how long the starts of epochs took, in which intervals soever.
    begun = 0.0 if reported.starts is None else reported.starts * reported.seconds
    others[Phase.BETWEEN] = max(begun, others.get(Phase.BETWEEN, 0.0) if reported.starts is None else 0.0)
    rest = max(0.0, fsum(one.seconds for one, _ in found) - fsum(others.values()))
    stall = exposed(training) if trained else None
    low, high = (0.0, 1.0) if stall is None else (stall.low, stall.high)
    devices = max((len(own_devices(one.devices)) for one, _ in found), default=0)
    return _Part(rest, rest * low, rest * high, others, devices)


def _shares(run: _Part) -> RunSums:
    seconds = run.training + fsum(run.others.values())
    whole = max(seconds, 1e-9)
    other = {phase: run.others.get(phase, 0.0) / whole for phase in Phase}
    waited = Share(run.low / whole, run.high / whole)
    idle = other[Phase.WARM_UP] + other[Phase.BETWEEN] + other[Phase.CHECKPOINT] + other[Phase.PAUSED]
    hours = run.devices * seconds / 3600
    return RunSums(
        seconds=seconds,
        computed=Share(run.training / whole - waited.high, run.training / whole - waited.low),
        waited=waited,
        start_up=other[Phase.WARM_UP],
        epoch_starts=other[Phase.BETWEEN],
        validation=other[Phase.VALIDATION],
        checkpoints=other[Phase.CHECKPOINT],
        paused=other[Phase.PAUSED],
        devices=run.devices,
        lost_gpu_hours=Share(hours * (idle + waited.low), hours * (idle + waited.high)) if run.devices else None,
    )
