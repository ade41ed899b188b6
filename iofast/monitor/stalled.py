"""A training that hangs: for 30 seconds no batch came, nothing was read, and nothing computed but a loop that waits."""

from math import fsum

from iofast.monitor.findings import Bound
from iofast.monitor.limits import Finding
from iofast.monitor.snapshot import LOADER, Doing, Frame, Snapshot
from iofast.monitor.training import FEW, Training

_STATES = {"T": "stopped (state T)", "t": "stopped by a debugger", "D": "waiting for a disk (state D)"}
_AT_REST = 0.0005  # cores of a process that hangs, at most: waits with a timeout use a tenth of it
_TICKS = 0.02  # seconds by which the times of a process and of its thread differ
_NAMED = 4  # workers at one place; of more, the number is given


def stalled(every: Training) -> Finding | None:
    """STALLED, with where the training thread and each worker stand; None if it goes on, or was none.

    UNKNOWN after a third of the time: the waits of a hang look like those for a slow storage.
    """
    return _hanging(every, spins=False) or _hanging(every, spins=True)


def _hanging(every: Training, *, spins: bool) -> Finding | None:
    """The same for a training thread that sleeps, or one that `spins`: it asks its loader again and again."""
    thresholds = every.thresholds
    silent: list[Snapshot] = []
    for one in reversed(every.snapshots):
        if not is_silent(one, thresholds.idle_cpu, spins=spins):
            break
        silent.insert(0, one)
    quiet = Training(silent, thresholds)
    reports = any(loader.live for one in silent for loader in one.loaders)
    # Of a thread that works in its loader only the loader's own report says that no batch comes.
    waiting = LOADER if reports else (Frame.LOADER_WAIT,)
    if spins and (quiet.frame_looks < FEW or quiet.frames(*waiting) != 1.0):
        return None
    if quiet.seconds < thresholds.min_seconds / 3 or quiet.doing[Doing.STOPPED] >= thresholds.half:
        return None
    used = fsum(_cpu(one, spins=spins) for one in silent) - _TICKS * spins
    if not reports and used >= _AT_REST * quiet.seconds * (1 + quiet.worker_count):
        return None  # a slow loop, whose batches nobody counts
    waits = quiet.trains or bool(quiet.frames(Frame.COMMUNICATION)) or (quiet.worker_count and not quiet.stacks)
    if not (reports or waits):
        return None
    bound = Bound.STALLED if quiet.seconds >= thresholds.min_seconds else Bound.UNKNOWN
    return Finding(bound, reason=f"no batch for {quiet.seconds:.0f} s: {_places(quiet)}")


def is_silent(one: Snapshot, least_cpu: float, *, spins: bool = False) -> bool:
    """Whether an interval has no batch, next to no work, and no byte read."""
    job = [process for process in one.processes if process.role != "other"]
    read = sum((process.read_bytes or 0) + (process.read_calls_bytes or 0) for process in job)
    busy = any((device.busy or 0.0) > 0 for device in one.devices if device.own is not False)
    idle = _cpu(one, spins=spins) <= least_cpu * one.seconds
    return idle and not (read or busy or any(loader.batches for loader in one.loaders))


def _cpu(one: Snapshot, *, spins: bool) -> float:
    """Processor time of the job, without that of a training thread that spins."""
    used = fsum(process.cpu_s for process in one.processes if process.role != "other")
    return used - (one.main.cpu_s or 0.0) * spins


def _places(quiet: Training) -> str:
    """Where the training thread and each worker stand; workers at one place together."""
    seen = {pid: site for one in quiet.stacks for pid, site in one.stands.items()}
    main, workers = "", dict[str, list[str]]()
    for process in sorted(quiet.snapshots[-1].processes, key=lambda one: one.pid):
        state = max(process.states, key=process.states.__getitem__, default="")
        at = [_STATES[state]] if state in _STATES else []
        at += [f"in {seen[process.pid].place}"] if process.pid in seen else []
        where = " ".join(at) or "asleep"
        if process.role == "main":
            main = f"the training thread {where}"
        elif process.role == "worker":
            workers.setdefault(where, []).append(str(process.pid))
    return "; ".join([main, *(f"{_named(pids)} {where}" for where, pids in workers.items())])


def _named(pids: list[str]) -> str:
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return f"worker{'s' * (len(pids) > 1)} {', '.join(pids[:_NAMED])}{more}"
