"""What the training intervals of a job say together: one figure for each thing, None where no interval has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import TypeVar

from iofast.monitor.probe.family import WORKER
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
    Window,
    WorkerTask,
)

Site = TypeVar("Site", SyncSite, WaitSite)
_UNUSED = 0.99  # a device that idles more, and is not known to be this job's, is nothing this job trains on


@dataclass(frozen=True, slots=True)
class Workers:
    """A loader's worker processes at work; shares are of one worker's time.

    `reads` and `calls` are bytes from the disk and bytes that read() returned, `faults` major faults, of all together.
    """

    count: int
    cpu: float
    runnable: float | None
    disk: float
    asleep: float
    reads: int | None
    calls: int | None
    faults: int | None

    @property
    def busy(self) -> float:
        """On a processor, or waiting for one."""
        return self.cpu + (self.runnable or 0.0)


class Training:
    """Snapshots of one job, pooled. Sums are exact (`fsum`), so that no order of processes changes a verdict."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = tuple(one for one in snapshots if one.seconds > 0)
        self.seconds = fsum(one.seconds for one in self.snapshots)

    # --- the training thread

    @cached_property
    def looks(self) -> int:
        return sum(max(0, one.main.samples) for one in self.snapshots)

    @cached_property
    def doing(self) -> dict[Doing, float]:
        """Shares of the looks at the training thread's state; all 0 where there was none."""
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
        """Share of the looks at stacks; None where there were no stacks."""
        if not self.frame_looks:
            return None
        return fsum(one.looks * one.main.get(frame, 0.0) for one in self.stacks for frame in which) / self.frame_looks

    def syncs(self) -> list[SyncSite]:
        """Lines that wait for the device, the worst first; shares are of all looks."""
        return pooled([(one.syncs, one.looks) for one in self.stacks])

    @cached_property
    def waits(self) -> list[WaitSite]:
        """Lines at which the training thread waits or makes a batch, the longest first; shares are of all looks."""
        return pooled([(one.waits, one.looks) for one in self.stacks])

    @property
    def trains(self) -> bool:
        """Whether stacks showed a training: a loop that trains, or a loader."""
        return any(one.trains or LOADER & one.main.keys() for one in self.stacks)

    @cached_property
    def work(self) -> dict[WorkerTask, float]:
        """What workers did when they did something: shares of their looks but the starved ones. {} without stacks."""
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
        """Looks at workers that did something."""
        stacks = [one.stacks for one in self.snapshots if one.stacks is not None]
        return fsum(one.worker_looks * (1.0 - one.workers.get(WorkerTask.STARVED, 0.0)) for one in stacks)

    # --- devices

    @cached_property
    def devices(self) -> list[DeviceFigures]:
        """Figures of the devices that this job uses, or of those of which nobody can say, from all intervals."""
        every = [device for one in self.snapshots for device in one.devices if device.own is not False]
        return [device for device in every if device.own] or every

    @cached_property
    def windows(self) -> list[Window]:
        return [window for one in self.snapshots for window in one.windows if window.seconds > 0]

    @cached_property
    def device_windows(self) -> list[Window]:
        """Windows with a reading of a device that this job uses; [] where it trains on none."""
        seen = [window for window in self.windows if window.idle is not None]
        total = fsum(window.seconds for window in seen)
        idle = fsum(window.seconds * (window.idle or 0.0) for window in seen) / total if total else 1.0
        owned = any(device.own for device in self.devices)
        return seen if owned or idle < _UNUSED else []

    @cached_property
    def idle(self) -> float | None:
        """Share of time that the device ran nothing."""
        total = fsum(window.seconds for window in self.device_windows)
        if not total:
            return None
        return fsum(window.seconds * _share(window.idle or 0.0) for window in self.device_windows) / total

    @property
    def shared(self) -> bool:
        """Whether other jobs' processes keep the device busy as well."""
        return any(device.others for device in self.devices)

    def device(self, figure: Callable[[DeviceFigures], float | None]) -> float | None:
        """Mean of a figure over devices and intervals."""
        return mean(figure(device) for device in self.devices)

    # --- processes

    def processes(self, role: str) -> list[tuple[float, ProcessFigures]]:
        """With the seconds of the interval."""
        return [(one.seconds, process) for one in self.snapshots for process in one.processes if process.role == role]

    @cached_property
    def cpu(self) -> float:
        """Cores that the job's processes used, all together."""
        used = fsum(process.cpu_s for one in self.snapshots for process in one.processes)
        return used / self.seconds if self.seconds else 0.0

    @cached_property
    def main_cpu(self) -> float:
        used = fsum(process.cpu_s for _, process in self.processes("main"))
        return used / self.seconds if self.seconds else 0.0

    @cached_property
    def other_threads(self) -> float:
        """Cores that threads of the training process used beside the training thread; 0 where that is not known."""
        own = [one.main.cpu_s for one in self.snapshots if one.main.cpu_s is not None]
        return max(0.0, self.main_cpu - fsum(own) / self.seconds) if own else 0.0

    @cached_property
    def main_runnable(self) -> float | None:
        """Of the training thread's time in state R, the share that it waited for a processor; None if not known."""
        known = [one.main for one in self.snapshots if one.main.cpu_s is not None and one.main.runnable_s is not None]
        waited = fsum(main.runnable_s or 0.0 for main in known)
        whole = waited + fsum(main.cpu_s or 0.0 for main in known)
        return _share(waited / whole) if whole > 0 else None

    @property
    def asleep(self) -> float | None:
        """Share of the time that no thread of the training process used a processor or was queued for one, at least."""
        own = [one.main for one in self.snapshots]
        if not any(one.cpu_s is not None for one in own):
            return None
        queued = fsum(one.runnable_s or 0.0 for one in own) / self.seconds
        return _share(1.0 - self.main_cpu - queued)

    @cached_property
    def main_reads(self) -> float:
        """Bytes a second that read() returned to the training process."""
        read = sum(process.read_calls_bytes or 0 for _, process in self.processes("main"))
        return read / self.seconds if self.seconds else 0.0

    @cached_property
    def workers(self) -> Workers | None:
        """Worker processes of the loader that trains. A second loader's, which only wait, are left out."""
        lives: dict[tuple[int, int], list[tuple[float, ProcessFigures]]] = {}
        for seconds, process in self.processes("worker"):
            lives.setdefault((process.pid, process.start_time), []).append((seconds, process))
        if not lives:
            return None
        cpu = {key: _per_second(parts, lambda process: process.cpu_s) for key, parts in lives.items()}
        disk = {key: _mean_state(parts, "D") for key, parts in lives.items()}
        effort = {key: cpu[key] + disk[key] for key in lives}
        most = max(effort.values())
        # Below a fifth of a core nobody works hard, and sleepers may be waiting for a remote storage.
        chosen = [key for key in lives if most < 0.2 or effort[key] >= 0.25 * most]
        parts = [part for key in sorted(chosen) for part in lives[key]]
        return Workers(
            count=self.worker_count,
            cpu=_per_second(parts, lambda process: process.cpu_s),
            runnable=_per_second_or_none(parts, lambda process: process.runnable_s),
            disk=_mean_state(parts, "D"),
            asleep=_mean_state(parts, "S"),
            reads=total(process.read_bytes for _, process in parts),
            calls=total(process.read_calls_bytes for _, process in parts),
            faults=total(process.major_faults for _, process in parts),
        )

    @cached_property
    def worker_count(self) -> int:
        """Workers alive at once, at most."""
        return max((sum(process.role == "worker" for process in one.processes) for one in self.snapshots), default=0)

    @cached_property
    def busiest_child(self) -> tuple[str, float]:
        """Of the processes below that are no workers: name and cores in use; "" and 0 where there is none."""
        used: dict[tuple[str, int], list[float]] = {}
        for _, process in self.processes("other"):
            used.setdefault((process.name, process.pid), []).append(process.cpu_s)
        cores = {key: fsum(times) / self.seconds for key, times in used.items()}
        busiest = max(sorted(cores), key=cores.__getitem__, default=("", 0))
        return busiest[0], cores.get(busiest, 0.0)

    @cached_property
    def named_workers(self) -> bool:
        """Whether processes are there that PyTorch has named as its loader's workers."""
        return any(process.name == WORKER for _, process in self.processes("worker"))

    def thread_cpu(self, prefix: str) -> float | None:
        """Processors' share of the busiest thread of that name; None where there is no such thread."""
        used: dict[int, list[float]] = {}
        for one in self.snapshots:
            for thread in one.threads:
                if thread.name.startswith(prefix):
                    used.setdefault(thread.tid, []).append(thread.cpu_s)
        return max((fsum(times) / self.seconds for times in used.values()), default=None)

    def system(self, figure: Callable[[Snapshot], float | None]) -> float | None:
        """Mean of a figure over intervals."""
        return mean(figure(one) for one in self.snapshots)

    # --- loaders that report from inside

    @cached_property
    def loaders(self) -> list[LoaderFigures]:
        return [loader for one in self.snapshots for loader in one.loaders if loader.batches > 0]

    @cached_property
    def steps(self) -> int | None:
        return sum(loader.batches for loader in self.loaders) if self.loaders else None

    @cached_property
    def starts(self) -> float | None:
        """Share of the time that starts and ends of epochs took; None where no loader reports.

        Steps are told when they have ended. What has passed counts as well: during a first step of a minute the start
        of the epoch is all that a loader has told.
        """
        starts = fsum(one.epoch_start_s for one in self.loaders)
        whole = max(starts + fsum(_stepped(one) for one in self.loaders), self.seconds if starts else 0.0)
        return _share(starts / whole) if whole else None

    def step_phases(self) -> tuple[dict[str, float], bool]:
        """Shares of a step by name of `meter.step`, the largest first, and whether a device has timed them.

        Of several loaders that have phases, those of the one whose steps took most of the time.
        """
        told: dict[str, list[LoaderFigures]] = {}
        for one in self.loaders:
            if one.phases and one.step_s:
                told.setdefault(one.name, []).append(one)
        times = {name: fsum((one.step_s or 0.0) * one.batches for one in each) for name, each in told.items()}
        if not times:
            return {}, False
        longest = max(sorted(times), key=times.__getitem__)
        parts = told[longest]
        shares = {
            phase: fsum(one.phases.get(phase, 0.0) for one in parts) / times[longest]
            for phase in {phase for one in parts for phase in one.phases}
        }
        order = sorted(shares, key=lambda phase: (-shares[phase], phase))
        return {phase: shares[phase] for phase in order}, any(one.phases_on_device for one in parts)

    def exposed(self) -> float | None:
        """Share of the device's time that it idled for want of a batch, by its own clock; None where none says it."""
        return self.per_step(lambda one: one.exposed_s, _device_time)

    def per_step(
        self, figure: Callable[[LoaderFigures], float | None], length: Callable[[LoaderFigures], float] | None = None
    ) -> float | None:
        """Share of step time, over the loaders that say it. Of several side by side a step waits for each in turn."""
        length = length or _stepped
        parts = [(figure(one), length(one)) for one in self.loaders]
        known = [(value, seconds) for value, seconds in parts if value is not None and seconds > 0]
        if not known:
            return None
        whole = fsum(seconds for _, seconds in known)
        if whole > 1.2 * self.seconds:  # they run side by side
            whole = self.seconds
        return _share(fsum(value for value, _ in known) / whole)


def pooled(parts: Sequence[tuple[Sequence[Site], int]]) -> list[Site]:
    """Sites of several bursts as those of one, the largest share first; with the looks of each burst."""
    looks = sum(count for _, count in parts)
    shares: dict[Site, list[float]] = {}
    for sites, count in parts:
        for site in sites:
            shares.setdefault(replace(site, share=0.0), []).append(site.share * count)
    found = [replace(place, share=fsum(counts) / max(1, looks)) for place, counts in shares.items()]
    return sorted(found, key=lambda site: (-site.share, site.file, site.line, site.call))


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def total(values: Iterable[int | None]) -> int | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _stepped(loader: LoaderFigures) -> float:
    return (loader.step_s or 0.0) * (loader.steps or loader.batches)


def _device_time(loader: LoaderFigures) -> float:
    return _stepped(loader) if loader.device_step_s is None else loader.device_step_s


def _per_second(parts: Collection[tuple[float, ProcessFigures]], figure: Callable[[ProcessFigures], float]) -> float:
    seconds = fsum(length for length, _ in parts)
    return fsum(figure(process) for _, process in parts) / seconds if seconds else 0.0


def _per_second_or_none(
    parts: Collection[tuple[float, ProcessFigures]], figure: Callable[[ProcessFigures], float | None]
) -> float | None:
    known = [(seconds, process) for seconds, process in parts if figure(process) is not None]
    return _per_second(known, lambda process: figure(process) or 0.0) if known else None


def _mean_state(parts: Collection[tuple[float, ProcessFigures]], letter: str) -> float:
    seconds = fsum(length for length, _ in parts)
    return fsum(length * process.states.get(letter, 0.0) for length, process in parts) / seconds if seconds else 0.0
