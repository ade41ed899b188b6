"""Phase of each interval, and where the time of a whole run went.

Only TRAINING counts towards a verdict; all phases are reported. Stacks name the phase. Without them a stopped process
is paused, an interval in which new workers replace others is between epochs, and intervals at the beginning that idle
much more than later ones, or have no workers yet, are warm-up.

A verdict rests on a window of intervals. Before intervals fall out of it their older half is summed up: each has the
phase that the whole window gives it, and intervals of training have the stall that they show together.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median

from iofast.monitor import thresholds
from iofast.monitor.bounds import exposed
from iofast.monitor.findings import Band, Phase
from iofast.monitor.snapshot import Doing, Frame, Snapshot, idle_of, own_devices, workers_of
from iofast.monitor.training import Training

_BY_FRAMES = (
    (Frame.COMPILE, Phase.WARM_UP),
    (Frame.VALIDATION, Phase.VALIDATION),
    (Frame.CHECKPOINT, Phase.CHECKPOINT),
    (Frame.LOADER_START, Phase.BETWEEN),
)
_STAY = 4  # intervals with workers that show that this training has them
_PAUSES = (Phase.VALIDATION, Phase.CHECKPOINT, Phase.BETWEEN, Phase.PAUSED)
_Workers = Sequence[frozenset[tuple[int, int]]]  # of each interval


def phases(snapshots: Sequence[Snapshot]) -> tuple[Phase, ...]:
    """The phase of each snapshot, in order."""
    found = [_alone(one) for one in snapshots]
    sets = [workers_of(one) for one in snapshots]
    for at, phase in enumerate(found):
        if phase is Phase.TRAINING and _new_workers(sets, at):
            found[at] = Phase.BETWEEN
    _widen(snapshots, found)
    for at in range(_warm(snapshots, sets, found)):
        if found[at] is Phase.TRAINING:
            found[at] = Phase.WARM_UP
    return tuple(found)


def seconds_by_phase(snapshots: Sequence[Snapshot], found: Sequence[Phase]) -> dict[Phase, float]:
    """Seconds by phase, of those that occurred."""
    return {
        phase: fsum(one.seconds for one, its in zip(snapshots, found, strict=True) if its is phase)
        for phase in Phase
        if phase in found
    }


def _alone(snapshot: Snapshot) -> Phase:
    """Phase by the interval itself."""
    stopped = [process.states.get("T", 0.0) for process in snapshot.processes if process.role == "main"]
    if max([snapshot.main.shares.get(Doing.STOPPED, 0.0), *stopped]) >= thresholds.HALF:
        return Phase.PAUSED
    stacks = snapshot.stacks
    for frame, phase in _BY_FRAMES if stacks is not None and stacks.looks > 0 else ():
        if stacks is not None and stacks.main[frame] >= thresholds.PART * stacks.looks:
            return phase
    return Phase.TRAINING


def _new_workers(sets: _Workers, at: int) -> bool:
    """Whether new workers replace others in this interval; those of a second loader come beside the first."""
    before = next((workers for workers in reversed(sets[:at]) if workers), None)
    if before is None or not sets[at] - before:
        return False
    after = next((workers for workers in sets[at + 1 :] if workers), sets[at])
    return not before <= after  # one interval may show both the old and the new workers


def _widen(snapshots: Sequence[Snapshot], found: list[Phase]) -> None:
    """Extend pauses to neighbours that idle far more than training: a pause begins and ends within an interval."""
    idles = [idle_of(one) for one in snapshots]
    training = [idle for idle, phase in zip(idles, found, strict=True) if idle is not None and phase is Phase.TRAINING]
    before = list(found)
    for at, idle in enumerate(idles):
        if before[at] is Phase.TRAINING and idle is not None and idle > median(training) + thresholds.PART:
            beside = [before[by] for by in (at - 1, at + 1) if 0 <= by < len(before) and before[by] in _PAUSES]
            found[at] = beside[0] if beside else Phase.TRAINING


def _warm(snapshots: Sequence[Snapshot], sets: _Workers, found: Sequence[Phase]) -> int:
    """Number of intervals at the beginning that differ from later ones. A long warm-up is how this training runs."""
    later = [at for at in range(len(snapshots) // 2, len(snapshots)) if found[at] is Phase.TRAINING]
    idles = [idle for at in later if (idle := idle_of(snapshots[at])) is not None]
    workers = any(sets[at] for at in later)
    count = 0
    for one, its in zip(snapshots, sets, strict=True):
        idle = idle_of(one)
        idler = bool(idles) and idle is not None and idle > median(idles) + thresholds.PART
        steps = [loader.batches for loader in one.loaders if loader.live]
        if not (idler or (workers and not its) or (steps and not any(steps))):
            break
        count += 1
    starting = max(_before_workers(snapshots, sets, found), _imports(snapshots, found))
    return max(starting, count if len(snapshots) >= 4 and count <= max(len(snapshots) / 2, starting) else 0)


def _before_workers(snapshots: Sequence[Snapshot], sets: _Workers, found: Sequence[Phase]) -> int:
    """Number of intervals before the first workers, which stay: imports, 40 s of them on a busy machine.

    0 if a loader without workers has handed over batches in them: then the workers are those of a validation.
    """
    first = next((at for at, workers in enumerate(sets) if workers), 0)
    if any(loader.batches for at in range(first) for loader in snapshots[at].loaders):
        return 0
    training = [at for at in range(first, len(sets)) if found[at] is Phase.TRAINING]
    return first if len(training) >= _STAY and all(sets[at] for at in training) else 0


def _imports(snapshots: Sequence[Snapshot], found: Sequence[Phase]) -> int:
    """Number of intervals up to the last stacks of imports, before anything trains: most intervals have no stacks."""
    count = 0
    for at, one in enumerate(snapshots):
        idle, looked = idle_of(one), one.stacks is not None and one.stacks.looks > 0
        works = workers_of(one) or any(loader.batches for loader in one.loaders)
        if works or (idle is not None and idle < thresholds.HALF) or (looked and found[at] is not Phase.WARM_UP):
            break
        count = at + 1 if looked else count
    return count


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


class Ledger:
    """The newest snapshots of one job, and sums of all. Of those in the window `_unsummed` are not in `_past` yet."""

    def __init__(self, longest: int) -> None:
        self.window = deque[Snapshot](maxlen=longest)
        self._past, self._waited = dict.fromkeys(Phase, 0.0), Band(0.0, 0.0)  # seconds
        self._unsummed = 0

    def add(self, snapshot: Snapshot) -> None:
        """Add one to the window, whose oldest may then fall out."""
        if self._unsummed == self.window.maxlen:
            older = (self._unsummed + 1) // 2
            self._past, self._waited = self._with(0, older)
            self._unsummed -= older
        self._unsummed += 1
        self.window.append(snapshot)

    def sums(self) -> RunSums:
        """Sums since watching began."""
        spent, waits = self._with(len(self.window) - self._unsummed, len(self.window))
        seconds = fsum(spent.values())
        share = {phase: its / max(seconds, 1e-9) for phase, its in spent.items()}
        waited, training = Band(waits.low / max(seconds, 1e-9), waits.high / max(seconds, 1e-9)), share[Phase.TRAINING]
        idle = share[Phase.WARM_UP] + share[Phase.BETWEEN] + share[Phase.CHECKPOINT] + share[Phase.PAUSED]
        devices = max((len(own_devices(one.devices)) for one in self.window), default=0)
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

    def _with(self, start: int, stop: int) -> tuple[dict[Phase, float], Band]:
        """The past, and the snapshots from `start` to `stop`, by the phases that the whole window shows."""
        found = list(zip(self.window, phases(self.window), strict=True))[start:stop]
        spent, waited = _spent([one for one, _ in found], [phase for _, phase in found])
        both = {phase: its + spent.get(phase, 0.0) for phase, its in self._past.items()}
        return both, Band(self._waited.low + waited.low, self._waited.high + waited.high)


def _spent(snapshots: Sequence[Snapshot], found: Sequence[Phase]) -> tuple[dict[Phase, float], Band]:
    """Seconds in each phase, and of the wait in training."""
    trained = [one for one, phase in zip(snapshots, found, strict=True) if phase is Phase.TRAINING]
    reported, spent = Training(snapshots), seconds_by_phase(snapshots, found)
    training = reported if len(trained) == len(snapshots) else Training(trained)
    if reported.starts is not None:  # how long the starts of epochs took, in which intervals soever
        starts = ((fsum(loader.epoch_start_s for loader in one.loaders), one.seconds) for one in reported.snapshots)
        # Before the interval in which the first start of an epoch was reported it looked like warm-up.
        first = next((max(0.0, start - length) for start, length in starts if start), 0.0)
        spent[Phase.WARM_UP] = max(0.0, spent.get(Phase.WARM_UP, 0.0) - first)
        others = fsum(its for phase, its in spent.items() if phase not in (Phase.TRAINING, Phase.BETWEEN))
        spent[Phase.BETWEEN] = min(reported.starts * reported.seconds, reported.seconds - others)
    rest = max(0.0, reported.seconds - fsum(its for phase, its in spent.items() if phase is not Phase.TRAINING))
    stall = exposed(training) if training.snapshots else None
    waited = Band(0.0, 1.0) if stall is None else stall
    return {**spent, Phase.TRAINING: rest}, Band(rest * waited.low, rest * waited.high)
