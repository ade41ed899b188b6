"""Figures of several intervals of one job together; a figure is None if no interval has it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from operator import itemgetter

from iofast.monitor import thresholds
from iofast.monitor.probe.proc import LOADER_THREADS
from iofast.monitor.snapshot import (
    LOADER,
    Doing,
    Frame,
    LoaderFigures,
    ProcessFigures,
    Snapshot,
    WaitSite,
    WaitSource,
    WorkerTask,
    clamped,
    idle_of,
    own_devices,
    workers_of,
)

_Part = tuple[float, ProcessFigures]  # seconds of an interval, and a process in it
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
    """Figures of the snapshots of one job together.

    They are judged by the threshold `bound`, and bounds of shares that were sampled are `z` standard errors wide. Sums
    are exact (`fsum`), so the order of processes cannot change a verdict.
    """

    def __init__(
        self, snapshots: Sequence[Snapshot], *, bound: float = thresholds.BOUND, z: float = thresholds.Z
    ) -> None:
        self.bound, self.z = bound, z
        self.snapshots = tuple(one for one in snapshots if one.seconds > 0)
        self.seconds = fsum(one.seconds for one in self.snapshots)
        self._add_samples()
        self._add_machine()
        self._add_processors()
        self._add_loaders()

    def _add_samples(self) -> None:
        """What the training thread and the workers were seen at."""
        every = self.snapshots
        self.looks = sum(max(0, one.main.samples) for one in every)
        seen = {what: fsum(one.main.samples * one.main.shares.get(what, 0.0) for one in every) for what in Doing}
        self.doing = {what: count / max(1, self.looks) for what, count in seen.items()}  # shares of the samples
        self.stacks = tuple(one.stacks for one in every if one.stacks is not None and one.stacks.looks)
        self.frame_looks = sum(one.looks for one in self.stacks)
        self.trains = any(one.trains or LOADER & one.main.keys() for one in self.stacks)  # a training loop, or a loader
        # lines that wait for the device, and at which the thread waits or makes a batch; most stack samples first
        pooled = sum((one.waits for one in self.stacks), Counter[WaitSite]()).items()
        sites = [replace(site, share=count / self.frame_looks) for site, count in pooled]
        sites.sort(key=lambda site: (-site.share, site.file, site.line, site.call))
        self.syncs = [site for site in sites if site.source is WaitSource.DEVICE]
        self.waits = [site for site in sites if site.source is not WaitSource.DEVICE]
        self.longest_wait = next((site for site in self.waits if site.share >= thresholds.NOTICE), None)
        # shares of the workers' tasks among their stack samples, starved ones left out; {} without any
        tasks = list[WorkerTask](what for what in WorkerTask if what is not WorkerTask.STARVED)
        counts = {what: sum(one.workers[what] for one in self.stacks) for what in tasks}
        self.work_looks = sum(counts.values())
        self.work = {what: count / self.work_looks for what, count in counts.items()} if self.work_looks else {}

    def _add_machine(self) -> None:
        """Devices and processors; the means are over intervals, None if unknown."""
        every = self.snapshots
        self.devices = own_devices(device for one in every for device in one.devices)  # in each interval
        self.busy = mean(device.busy for device in self.devices)
        self.sm_active = mean(device.sm_active for device in self.devices)
        self.tensor_active = mean(device.tensor_active for device in self.devices)
        self.dram_active = mean(device.dram_active for device in self.devices)
        self.shared = any(device.others for device in self.devices)  # with other jobs
        idles = [(idle_of(one), one.seconds) for one in every]
        idle = _ratio((None if share is None else share * seconds, seconds) for share, seconds in idles)
        used = idle is None or idle < _UNUSED or any(device.own for device in self.devices)
        self.idle = idle if used else None  # share of time in which the device ran nothing; None without a device
        self.cores = mean(one.system.cores for one in every)
        self.idle_cores = mean(one.system.idle_cores for one in every)
        self.other_cores = mean(one.system.other_cores for one in every)  # in use by other programs,
        most, full = thresholds.PART * (self.cores or 0.0), (self.idle_cores or 0.0) < thresholds.CORES_FREE
        taken = self.other_cores if self.idle_cores is not None and full else None
        self.taken = taken if taken and taken >= most else None  # if that is a large share, and none is free
        self.memory_available = mean(one.system.memory_available for one in every)
        held = [(one.system.throttled_s, one.seconds) for one in every]  # by the cgroup's CPU quota
        self.throttled = min(1.0, mean(None if wait is None else wait / seconds for wait, seconds in held) or 0.0)

    def _add_processors(self) -> None:
        """Cores in use, and shares of the training thread's time, None if unknown."""
        every = self.snapshots
        self.cpu = self._cores(process.cpu_s for one in every for process in one.processes)
        self.main_cpu = self._cores(process.cpu_s for _, process in self.processes("main"))
        ran = [one.main.cpu_s for one in every if one.main.cpu_s is not None]
        self.other_threads = max(0.0, self.main_cpu - self._cores(ran)) if ran else 0.0  # of the training process
        waits = [one.main.runnable_s for one in every if one.main.runnable_s is not None]
        self.queued = clamped(self._cores(waits)) if waits else None  # for a processor
        known = self.queued is not None and len(ran) == len(every)
        self.running = clamped(self._cores(ran) + (self.queued or 0.0)) if known else None  # or queued
        # no thread of the training process ran or was queued, at least
        self.asleep = None if self.queued is None else clamped(1.0 - self.main_cpu - self.queued)
        self.worker_count = max((len(workers_of(one)) for one in every), default=0)  # at most in one interval
        self.workers = self._workers()
        others = ((process.name, process.pid, process.cpu_s) for _, process in self.processes("other"))
        self.busiest_child = self._busiest(others) or ("", 0.0)  # that is no worker: its name, and its cores
        # threads of the training process that work for a loader, and with worker processes; None without any
        own = [each.cpu_s for one in every for each in one.threads if each.name.startswith(LOADER_THREADS)]
        fed = any(site.loader and site.source is WaitSource.THREADS for site in self.waits)
        self.loader_thread_cores = self._cores(own) if own else self.other_threads if fed else None
        used = [process.cpu_s for _, process in self.processes("worker")]
        known = bool(used) or self.loader_thread_cores is not None
        self.loader_cores = self._cores(used) + (self.loader_thread_cores or 0.0) if known else None

    def _add_loaders(self) -> None:
        """What loaders report from inside; None if none does."""
        self.loaders = [loader for one in self.snapshots for loader in one.loaders if loader.batches > 0]
        self.steps = sum(loader.batches for loader in self.loaders) if self.loaders else None
        # Share of time at starts and ends of epochs. A step is reported when it ends, so the time watched is the least
        # length: during a first step of a minute the loader has reported nothing but the start of the epoch.
        starts = fsum(one.epoch_start_s for one in self.loaders)
        whole = max(starts + fsum(map(_stepped, self.loaders)), self.seconds if starts else 0.0)
        self.starts = clamped(starts / whole) if whole else None
        # shares of step time: the stall by the device's clock, its waits for copies, the host's waits in next(loader)
        lengths = [_stepped(one) if one.device_step_s is None else one.device_step_s for one in self.loaders]
        self.exposed = self._per_step([one.exposed_s for one in self.loaders], lengths)
        lengths = list(map(_stepped, self.loaders))
        self.copied = self._per_step([one.transfer_s for one in self.loaders], lengths)
        self.waited = self._per_step([one.wait_s for one in self.loaders], lengths)
        # if no loader reports, the share of samples in which the training thread read a worker's queue
        self.waiting = self.doing[Doing.QUEUE] if self.waited is None else self.waited

    def frames(self, *which: Frame) -> float | None:
        """Share of stack samples in any of these frames; None without stacks."""
        if not self.frame_looks:
            return None
        return sum(one.main[frame] for one in self.stacks for frame in which) / self.frame_looks

    def processes(self, role: str) -> list[_Part]:
        """Processes of that role, each with the seconds of its interval."""
        return [(one.seconds, process) for one in self.snapshots for process in one.processes if process.role == role]

    def thread_cpu(self, prefix: str) -> float | None:
        """Cores in use by the busiest thread with that name prefix; None without such a thread."""
        threads = (each for one in self.snapshots for each in one.threads if each.name.startswith(prefix))
        busiest = self._busiest((thread.name, thread.tid, thread.cpu_s) for thread in threads)
        return None if busiest is None else busiest[1]

    def _busiest(self, used: Iterable[tuple[str, int, float]]) -> tuple[str, float] | None:
        """Of names, numbers and seconds: the name with most processor time, and the cores that it uses."""
        times = defaultdict[tuple[str, int], list[float]](list)
        for name, number, seconds in used:
            times[name, number].append(seconds)
        cores = [(name, self._cores(each)) for (name, _), each in sorted(times.items())]
        return max(cores, key=itemgetter(1), default=None)

    def _cores(self, used_s: Iterable[float]) -> float:
        """Seconds of processor time as cores in use."""
        return fsum(used_s) / self.seconds if self.seconds else 0.0

    def _workers(self) -> Workers | None:
        """Workers of the training loader; those of a second loader that only wait are left out. None without any."""
        lives = defaultdict[tuple[int, int], list[_Part]](list)
        for seconds, process in self.processes("worker"):
            lives[process.pid, process.start_time].append((seconds, process))
        if not lives:
            return None
        effort = {key: _on_cpu(parts) + _on_disk(parts) for key, parts in lives.items()}
        most = max(effort.values())
        # If no worker uses a fifth of a core, sleeping ones may be waiting for remote storage: keep all.
        chosen = [key for key in lives if most < 0.2 or effort[key] >= 0.25 * most]
        parts = [part for key in sorted(chosen) for part in lives[key]]
        return Workers(
            count=self.worker_count,
            cpu=_on_cpu(parts),
            runnable=_ratio((process.runnable_s, seconds) for seconds, process in parts),
            disk=_on_disk(parts),
            reads=total(process.read_bytes for _, process in parts),
            calls=total(process.read_calls_bytes for _, process in parts),
            faults=total(process.major_faults for _, process in parts),
        )

    def _per_step(self, values: Sequence[float | None], lengths: Sequence[float]) -> float | None:
        """Share of step time over all loaders that report a value; None without any.

        With several loaders side by side, a step waits for each in turn.
        """
        parts = zip(values, lengths, strict=True)
        known = [(value, seconds) for value, seconds in parts if value is not None and seconds > 0]
        if not known:
            return None
        whole = fsum(seconds for _, seconds in known)
        if whole > 1.2 * self.seconds:  # they run side by side
            whole = self.seconds
        return clamped(fsum(value for value, _ in known) / whole)


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


def _ratio(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """Sum of the known values by the sum of their seconds; None without any."""
    known = [(value, seconds) for value, seconds in parts if value is not None]
    seconds = fsum(length for _, length in known)
    return fsum(value for value, _ in known) / seconds if seconds else None


def _on_cpu(parts: Collection[_Part]) -> float:
    return _ratio((process.cpu_s, seconds) for seconds, process in parts) or 0.0


def _on_disk(parts: Collection[_Part]) -> float:
    return _ratio((seconds * process.states.get("D", 0.0), seconds) for seconds, process in parts) or 0.0
