"""Where the time of a whole run went. Pure: sums of intervals, however many there are.

A verdict rests on a window of intervals. Before intervals fall out of it their older half is summed up: each has the
phase that the whole window gives it, and intervals of training have the stall that they show together.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum

from iofast.monitor.bounds import exposed
from iofast.monitor.findings import Band, Phase
from iofast.monitor.phases import phases
from iofast.monitor.snapshot import Snapshot, own_devices
from iofast.monitor.training import Training


@dataclass(frozen=True, slots=True)
class RunSums:
    """Where the time since watching began went: parts of `seconds`, as shares.

    `computed` is training without the wait for batches, `waited` that wait. `lost_gpu_hours` counts the job's devices
    while they waited for batches, for a start, or for a checkpoint, or were paused; None without a device.
    """

    seconds: float
    computed: Band
    waited: Band
    start_up: float
    epoch_starts: float
    validation: float
    checkpoints: float
    paused: float
    devices: int
    lost_gpu_hours: Band | None


_Seconds = dict[str, float]  # by phase; of the wait in training the _LEAST and the _MOST
_LEAST, _MOST = "least", "most"


@dataclass(slots=True)
class Ledger:
    """Sums of one job. Of the newest snapshots, which are in a window, `unsummed` are not in `past` yet."""

    past: _Seconds = field(default_factory=dict)
    unsummed: int = 0

    def before_adding(self, window: deque[Snapshot]) -> None:
        """Must be called before each snapshot is added to `window`: its oldest snapshot may then fall out."""
        if self.unsummed == window.maxlen:
            older = (self.unsummed + 1) // 2
            self.past = _plus(self.past, _part(window, 0, older))
            self.unsummed -= older
        self.unsummed += 1

    def sums(self, window: deque[Snapshot]) -> RunSums:
        """Sums since watching began."""
        devices = max((len(own_devices(one.devices)) for one in window), default=0)
        return _shares(_plus(self.past, _part(window, len(window) - self.unsummed, len(window))), devices)


def _plus(one: _Seconds, other: _Seconds) -> _Seconds:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in one | other}


def _part(window: Sequence[Snapshot], start: int, stop: int) -> _Seconds:
    """Sums of the snapshots from `start` to `stop`, by the phases that the whole window shows."""
    found = list(zip(window, phases(window), strict=True))[start:stop]
    trained = [one for one, phase in found if phase is Phase.TRAINING]
    spent: _Seconds = {phase: fsum(one.seconds for one, its in found if its is phase) for _, phase in found}
    training, reported = Training(trained), Training([one for one, _ in found])
    seconds = fsum(one.seconds for one, _ in found)
    if reported.starts is not None:  # how long the starts of epochs took, in which intervals soever
        starts = ((fsum(loader.epoch_start_s for loader in one.loaders), one.seconds) for one in reported.snapshots)
        # Before the interval in which the first start of an epoch was reported it looked like warm-up.
        first = next((max(0.0, start - length) for start, length in starts if start), 0.0)
        spent[Phase.WARM_UP] = max(0.0, spent.get(Phase.WARM_UP, 0.0) - first)
        others = fsum(its for phase, its in spent.items() if phase not in (Phase.TRAINING, Phase.BETWEEN))
        spent[Phase.BETWEEN] = min(reported.starts * reported.seconds, seconds - others)
    rest = max(0.0, seconds - fsum(its for phase, its in spent.items() if phase != Phase.TRAINING))
    stall = exposed(training) if trained else None
    least, most = (0.0, rest) if stall is None else (rest * stall.low, rest * stall.high)
    return {**spent, Phase.TRAINING: rest, _LEAST: least, _MOST: most}


def _shares(spent: _Seconds, devices: int) -> RunSums:
    seconds = fsum(spent.get(phase, 0.0) for phase in Phase)
    share = {name: spent.get(name, 0.0) / max(seconds, 1e-9) for name in (*Phase, _LEAST, _MOST)}
    waited, training = Band(share[_LEAST], share[_MOST]), share[Phase.TRAINING]
    idle = share[Phase.WARM_UP] + share[Phase.BETWEEN] + share[Phase.CHECKPOINT] + share[Phase.PAUSED]
    hours = devices * seconds / 3600
    return RunSums(
        seconds=seconds,
        computed=Band(training - waited.high, training - waited.low),
        waited=waited,
        start_up=share[Phase.WARM_UP],
        epoch_starts=share[Phase.BETWEEN],
        validation=share[Phase.VALIDATION],
        checkpoints=share[Phase.CHECKPOINT],
        paused=share[Phase.PAUSED],
        devices=devices,
        lost_gpu_hours=Band(hours * (idle + waited.low), hours * (idle + waited.high)) if devices else None,
    )
