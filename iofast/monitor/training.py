"""Figures of several intervals of one job together; a figure is None if no interval has it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from operator import itemgetter
from typing import TypeVar

from iofast.monitor.probe.proc import LOADER_THREADS
from iofast.monitor.snapshot import (
    LOADER,
    DeviceFigures,
    Doing,
    Frame,
    LoaderFigures,
    ProcessFigures,
    Snapshot,
    StackFigures,
    SyncSite,
    WaitSite,
    WaitSource,
    WorkerTask,
    clamped,
    idle_of,
    own_devices,
    workers_of,
)
from iofast.monitor.thresholds import THRESHOLDS, Thresholds

_Part = tuple[float, ProcessFigures]  # seconds of an interval, and a process in it
Site = TypeVar("Site", SyncSite, WaitSite)
Key = TypeVar("Key", int, tuple[str, int])
FEW = 8  # stack samples below which an absence means nothing
TWICE = 1.5  # stack samples: something seen once may be chance
_UNUSED = 0.99  # idle share above which a device that is not known to be this job's does not count


@dataclass(frozen=True, slots=True)
class Workers:
    """Worker processes of the training loader. Shares are of one worker's time, byte counts are of all workers.

    `reads` counts bytes from the disk, `calls` bytes returned by read(), `faults` major page faults.
    """

    count: int
    cpu: float
    runnable: float | None
    disk: float
    reads: int | None
    calls: int | None
    faults: int | None

    @property
    def busy(self) -> float:
        """Share of time on a processor or queued for one."""
        return self.cpu + (self.runnable or 0.0)


class Training:
    """Snapshots of one job, pooled, and the thresholds to judge them by.

    Sums are exact (`fsum`), so the order of processes cannot change a verdict.
    """

    def __init__(self, snapshots: Sequence[Snapshot], thresholds: Thresholds = THRESHOLDS) -> None:
        self.thresholds = thresholds
        self.snapshots = tuple(one for one in snapshots if one.seconds > 0)
        self.seconds = fsum(one.seconds for one in self.snapshots)

    @cached_property
    def looks(self) -> int:
        return sum(max(0, one.main.samples) for one in self.snapshots)

    @cached_property
    def doing(self) -> dict[Doing, float]:
        """Shares of the samples of the training thread's state; all 0 without samples."""
        seen = {
            what: fsum(one.main.samples * one.main.shares.get(what, 0.0) for one in self.snapshots) for what in Doing
        }
        return {what: count / self.looks if self.looks else 0.0 for what, count in seen.items()}

    @cached_property
    def stacks(self) -> tuple[StackFigures, ...]:
        return tuple(one.stacks for one in self.snapshots if one.stacks is not None and one.stacks.looks > 0)

    @cached_property
    def frame_looks(self) -> int:
        return sum(one.looks for one in self.stacks)

    def frames(self, *which: Frame) -> float | None:
        """Share of stack samples in any of these frames; None without stacks."""
        if not self.frame_looks:
            return None
        return fsum(one.looks * one.main.get(frame, 0.0) for one in self.stacks for frame in which) / self.frame_looks

    def syncs(self) -> list[SyncSite]:
        """Lines that wait for the device, the largest share of all stack samples first."""
        return _pooled([(one.syncs, one.looks) for one in self.stacks])

    @cached_property
    def waits(self) -> list[WaitSite]:
        """Lines at which the training thread waits or makes a batch, the largest share of stack samples first."""
        return _pooled([(one.waits, one.looks) for one in self.stacks])

    @property
    def trains(self) -> bool:
        """Whether stacks showed a training loop or a loader."""
        return any(one.trains or LOADER & one.main.keys() for one in self.stacks)

    @cached_property
    def work(self) -> dict[WorkerTask, float]:
        """Shares of the workers' tasks among their stack samples, starved ones left out; {} without stacks."""
        counts = {
            what: fsum(
                one.stacks.worker_looks * one.stacks.workers.get(what, 0.0) for one in self.snapshots if one.stacks
            )
            for what in WorkerTask
            if what is not WorkerTask.STARVED
        }
        total = fsum(counts.values())
        return {what: count / total for what, count in counts.items()} if total > 0 else {}

    @cached_property
    def work_looks(self) -> float:
        """Stack samples of workers that were not starved."""
        stacks = [one.stacks for one in self.snapshots if one.stacks is not None]
        return fsum(one.worker_looks * (1.0 - one.workers.get(WorkerTask.STARVED, 0.0)) for one in stacks)

    @cached_property
    def devices(self) -> list[DeviceFigures]:
        """Device figures of all intervals: of this job's devices, or of those whose owner is unknown."""
        return own_devices(device for one in self.snapshots for device in one.devices)

    @cached_property
    def idle(self) -> float | None:
        """Share of time in which the device ran nothing; None if the job trains on none."""
        known = [(one.seconds, idle) for one in self.snapshots if (idle := idle_of(one)) is not None]
        if not known:
            return None
        share = fsum(seconds * idle for seconds, idle in known) / fsum(seconds for seconds, _ in known)
        return share if share < _UNUSED or any(device.own for device in self.devices) else None

    @property
    def shared(self) -> bool:
        """Whether other jobs run on the device too."""
        return any(device.others for device in self.devices)

    def device(self, figure: Callable[[DeviceFigures], float | None]) -> float | None:
        """Mean of a figure over devices and intervals."""
        return mean(figure(device) for device in self.devices)

    def processes(self, role: str) -> list[_Part]:
        """Processes of that role, each with the seconds of its interval."""
        return [(one.seconds, process) for one in self.snapshots for process in one.processes if process.role == role]

    def _cores(self, used_s: Iterable[float]) -> float:
        """Seconds of processor time as cores in use."""
        return fsum(used_s) / self.seconds if self.seconds else 0.0

    @cached_property
    def cpu(self) -> float:
        """Cores in use by all processes of the job."""
        return self._cores(process.cpu_s for one in self.snapshots for process in one.processes)

    @cached_property
    def main_cpu(self) -> float:
        return self._cores(process.cpu_s for _, process in self.processes("main"))

    @cached_property
    def other_threads(self) -> float:
        """Cores in use by threads of the training process other than the training thread; 0 if unknown."""
        own = [one.main.cpu_s for one in self.snapshots if one.main.cpu_s is not None]
        return max(0.0, self.main_cpu - self._cores(own)) if own else 0.0

    @cached_property
    def queued(self) -> float | None:
        """Share of time in which the training thread was queued for a processor; None if unknown."""
        waits = [one.main.runnable_s for one in self.snapshots if one.main.runnable_s is not None]
        return clamped(self._cores(waits)) if waits else None

    @cached_property
    def running(self) -> float | None:
        """Share of time in which the training thread was on a processor or queued for one; None if unknown."""
        ran = [one.main.cpu_s for one in self.snapshots if one.main.cpu_s is not None]
        if self.queued is None or len(ran) < len(self.snapshots):
            return None
        return clamped(self._cores(ran) + self.queued)

    @property
    def asleep(self) -> float | None:
        """Share of time in which no thread of the training process ran or was queued, at least; None if unknown."""
        return None if self.queued is None else clamped(1.0 - self.main_cpu - self.queued)

    @cached_property
    def workers(self) -> Workers | None:
        """Workers of the training loader; those of a second loader that only wait are left out. None without any."""
        lives = defaultdict[tuple[int, int], list[_Part]](list)
        for seconds, process in self.processes("worker"):
            lives[process.pid, process.start_time].append((seconds, process))
        if not lives:
            return None
        effort = {key: _cpu(parts) + _mean_state(parts, "D") for key, parts in lives.items()}
        most = max(effort.values())
        # If no worker uses a fifth of a core, sleeping ones may be waiting for remote storage: keep all.
        chosen = [key for key in lives if most < 0.2 or effort[key] >= 0.25 * most]
        parts = [part for key in sorted(chosen) for part in lives[key]]
        return Workers(
            count=self.worker_count,
            cpu=_cpu(parts),
            runnable=_rate(parts, lambda process: process.runnable_s),
            disk=_mean_state(parts, "D"),
            reads=total(process.read_bytes for _, process in parts),
            calls=total(process.read_calls_bytes for _, process in parts),
            faults=total(process.major_faults for _, process in parts),
        )

    @cached_property
    def worker_count(self) -> int:
        """Most workers alive in one interval."""
        return max((len(workers_of(one)) for one in self.snapshots), default=0)

    @cached_property
    def busiest_child(self) -> tuple[str, float]:
        """Name and cores in use of the busiest child process that is no worker; ("", 0.0) without any."""
        (name, _), cores = self._busiest(
            ((process.name, process.pid), process.cpu_s) for _, process in self.processes("other")
        ) or (("", 0), 0.0)
        return name, cores

    def _busiest(self, used_s: Iterable[tuple[Key, float]]) -> tuple[Key, float] | None:
        """The process or thread with most processor time, and the cores that it uses; None without any."""
        times = defaultdict[Key, list[float]](list)
        for key, seconds in used_s:
            times[key].append(seconds)
        cores = {key: self._cores(each) for key, each in times.items()}
        return max(sorted(cores.items()), key=itemgetter(1), default=None)

    @cached_property
    def loader_thread_cores(self) -> float | None:
        """Cores in use by threads of the training process that work for a loader; None without any."""
        threads = (thread for one in self.snapshots for thread in one.threads)
        own = [thread.cpu_s for thread in threads if thread.name.startswith(LOADER_THREADS)]
        fed = any(site.loader and site.source is WaitSource.THREADS for site in self.waits)
        return self._cores(own) if own else self.other_threads if fed else None

    @cached_property
    def loader_cores(self) -> float | None:
        """Cores in use by worker processes and threads of loaders; None without any."""
        used, threads = [process.cpu_s for _, process in self.processes("worker")], self.loader_thread_cores
        return None if threads is None and not used else self._cores(used) + (threads or 0.0)

    def thread_cpu(self, prefix: str) -> float | None:
        """Cores in use by the busiest thread with that name prefix; None without such a thread."""
        threads = (thread for one in self.snapshots for thread in one.threads if thread.name.startswith(prefix))
        busiest = self._busiest((thread.tid, thread.cpu_s) for thread in threads)
        return None if busiest is None else busiest[1]

    def system(self, figure: Callable[[Snapshot], float | None]) -> float | None:
        """Mean of a figure over intervals."""
        return mean(figure(one) for one in self.snapshots)

    @cached_property
    def taken(self) -> float | None:
        """Cores that other programs use, if that is a large share and no core is free; None otherwise or if unknown."""
        taken, idle = self.system(lambda one: one.system.other_cores), self.system(lambda one: one.system.idle_cores)
        most = self.thresholds.part * (self.system(lambda one: one.system.cores) or 0.0)
        return taken if taken and idle is not None and idle < self.thresholds.cores_free and taken >= most else None

    @cached_property
    def throttled(self) -> float:
        """Seconds per second that the cgroup's CPU quota kept threads waiting, at most 1; 0 if unknown."""
        known = [one for one in self.snapshots if one.system.throttled_s is not None]
        return min(1.0, mean((one.system.throttled_s or 0.0) / one.seconds for one in known) or 0.0)

    @cached_property
    def loaders(self) -> list[LoaderFigures]:
        return [loader for one in self.snapshots for loader in one.loaders if loader.batches > 0]

    @cached_property
    def steps(self) -> int | None:
        return sum(loader.batches for loader in self.loaders) if self.loaders else None

    @cached_property
    def starts(self) -> float | None:
        """Share of time at starts and ends of epochs; None if no loader reports.

        A step is reported when it ends, so the time watched is the least length: during a first step of a minute the
        loader has reported nothing but the start of the epoch.
        """
        starts = fsum(one.epoch_start_s for one in self.loaders)
        whole = max(starts + fsum(_stepped(one) for one in self.loaders), self.seconds if starts else 0.0)
        return clamped(starts / whole) if whole else None

    def exposed(self) -> float | None:
        """Stall measured by the device's clock, as a share of step time; None if no loader measures it."""
        return self.per_step(
            lambda one: one.exposed_s, lambda one: _stepped(one) if one.device_step_s is None else one.device_step_s
        )

    @cached_property
    def copied(self) -> float | None:
        """Share of step time in which the device waits for the copy of a batch; None if no loader measures it."""
        return self.per_step(lambda one: one.transfer_s)

    @cached_property
    def waited(self) -> float | None:
        """Share of step time that the host waits in next(loader); None if no loader reports."""
        return self.per_step(lambda one: one.wait_s)

    @property
    def waiting(self) -> float:
        """`waited`; if no loader reports, the share of samples in which the training thread read a worker's queue."""
        return self.doing[Doing.QUEUE] if self.waited is None else self.waited

    def per_step(
        self, figure: Callable[[LoaderFigures], float | None], length: Callable[[LoaderFigures], float] | None = None
    ) -> float | None:
        """Share of step time over all loaders that report `figure`; None without any.

        With several loaders side by side, a step waits for each in turn.
        """
        length = length or _stepped
        parts = [(figure(one), length(one)) for one in self.loaders]
        known = [(value, seconds) for value, seconds in parts if value is not None and seconds > 0]
        if not known:
            return None
        whole = fsum(seconds for _, seconds in known)
        if whole > 1.2 * self.seconds:  # they run side by side
            whole = self.seconds
        return clamped(fsum(value for value, _ in known) / whole)


def _pooled(parts: Sequence[tuple[Sequence[Site], int]]) -> list[Site]:
    """Sites of several bursts as one list, the largest share first. `parts`: sites of a burst and its stack samples."""
    looks = sum(count for _, count in parts)
    shares = defaultdict[Site, list[float]](list)
    for sites, count in parts:
        for site in sites:
            shares[replace(site, share=0.0)].append(site.share * count)
    found = [replace(place, share=fsum(counts) / max(1, looks)) for place, counts in shares.items()]
    return sorted(found, key=lambda site: (-site.share, site.file, site.line, site.call))


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def total(values: Iterable[int | None]) -> int | None:
    """Sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _stepped(loader: LoaderFigures) -> float:
    return (loader.step_s or 0.0) * (loader.steps or loader.batches)


def _rate(parts: Collection[_Part], figure: Callable[[ProcessFigures], float | None]) -> float | None:
    """A figure per second, over the intervals in which it is known; None without any."""
    known = [(seconds, value) for seconds, process in parts if (value := figure(process)) is not None]
    seconds = fsum(length for length, _ in known)
    return fsum(value for _, value in known) / seconds if seconds else None


def _cpu(parts: Collection[_Part]) -> float:
    return _rate(parts, lambda process: process.cpu_s) or 0.0


def _mean_state(parts: Collection[_Part], letter: str) -> float:
    seconds = fsum(length for length, _ in parts)
    return fsum(length * process.states.get(letter, 0.0) for length, process in parts) / seconds if seconds else 0.0
