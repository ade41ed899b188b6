"""One job's snapshots, an interval at a time.

An interval has at most 20 looks a second, each at a random moment of its slot: at even distances a training with steps
of 50 ms would always be met at the same place. When looks cost more than usual they become rarer, so that all of them
together stay below a hundredth of one core.
"""

import random
import time
from dataclasses import replace
from typing import Final

from iofast.monitor import thresholds
from iofast.monitor.limits import is_silent
from iofast.monitor.probe.data_folders import DataFolders, program_of
from iofast.monitor.probe.machine_facts import SystemProbe
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.probe.pages import PagesProbe
from iofast.monitor.probe.proc import ProcProbe
from iofast.monitor.probe.stacks import StackProbe
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import DeviceFigures, Job, Snapshot, own_devices

_MOST_LOOKS: Final = 20.0  # a second
_FEWEST_LOOKS: Final = 2.0  # a second, whatever they cost
_BUDGET: Final = 0.006  # of one core: verdicts, views and waking up use a third more
_MOST_NOTES: Final = 16
_HURRIED_S: Final = 5.0  # without a batch: bursts can be 30 s apart, and only they tell a hang from a cell that ended


class Watch:
    """Snapshots of a job. The constructor and `interval` raise Gone. The caller closes `nvml`."""

    def __init__(self, job: Job, options: WatchOptions | None = None, nvml: NvmlProbe | None = None) -> None:
        self.job = job
        self.options = options or WatchOptions()
        self._nvml = nvml or NvmlProbe()
        self._proc = ProcProbe(job)
        self._system = SystemProbe(job)
        self._pages = PagesProbe(job)
        self._files = DataFolders()
        self._source, self._named = program_of(job.pid)
        self._stacks = StackProbe(job, wanted=self.options.stacks != "off")
        self._look_s = self._snapshot_s = 0.0  # running means of the cost of one
        self._silent_s = 0.0
        self._notes: tuple[str, ...] = ()
        self._taken_at = self._due_at = time.monotonic()

    def interval(self) -> Snapshot:
        """Look for an interval and return its snapshot. A prompt next call continues where this one ended."""
        start, length = self._due_at, self.options.interval
        if time.monotonic() > start + length / 2:  # the caller is late
            start = time.monotonic()
        self._due_at = start + length
        slots = max(1, int(self._rate() * length))
        for slot in range(slots):
            at = start + (slot + random.random()) * length / slots
            if at < time.monotonic() - length / slots:  # this process had no processor: skip the looks that it missed
                continue
            _sleep_until(at)
            self._look()
        _sleep_until(self._due_at)
        return self._snapshot()

    def _rate(self) -> float:
        """Looks a second that the budget allows, beside a snapshot an interval."""
        if not self._look_s:
            return _MOST_LOOKS
        left = max(_BUDGET - self._snapshot_s / self.options.interval, _BUDGET / 2)  # frequent snapshots cost more
        return min(_MOST_LOOKS, max(_FEWEST_LOOKS, left / self._look_s))

    def _look(self) -> None:
        before = time.thread_time()
        self._proc.look()
        self._look_s = _mean_cost(before, self._look_s, 16)
        self._stacks.look(self._proc.workers)  # whose bursts have a budget of their own

    def _snapshot(self) -> Snapshot:
        before, now = time.thread_time(), time.monotonic()
        seconds = max(now - self._taken_at, 1e-3)
        self._taken_at = now
        main, processes, threads = self._proc.take()
        self._files.glimpse([*self._proc.workers, self.job.pid])
        devices = self._devices(tuple(each.pid for each in processes), seconds)
        loaders = self._pages.take()  # before their rank
        self.job = replace(self.job, rank=self._pages.rank, world_size=self._pages.world_size)
        snapshot = Snapshot(
            time_s=now,
            seconds=seconds,
            job=self.job,
            main=main,
            processes=processes,
            threads=threads,
            system=self._system.take(seconds),
            devices=devices,
            stacks=self._stacks.take(),
            loaders=loaders,
            data_folder=self._files.folder,
            notes=self._noted(devices),
            peers=self._proc.peers | self._pages.peers,
            file_bytes=self._files.image_bytes,
            image_root=self._files.image_root(self._source.root if self._source else "", self._named),
            source=self._source,
        )
        self._hurry(snapshot)
        self._snapshot_s = _mean_cost(before, self._snapshot_s, 4)
        return snapshot

    def _hurry(self, snapshot: Snapshot) -> None:
        """Ask for stacks, once, when the job begins to do nothing."""
        before = self._silent_s
        self._silent_s = before + snapshot.seconds if is_silent(snapshot, thresholds.IDLE_CPU) else 0.0
        if before < _HURRIED_S <= self._silent_s:
            self._stacks.hurry()

    def _devices(self, pids: tuple[int, ...], seconds: float) -> tuple[DeviceFigures, ...]:
        """The job's devices: by option or by pid; where the driver names no processes, all that may be the job's."""
        devices = self._nvml.devices(pids, seconds)
        if self.options.gpu is not None:
            return tuple(replace(each, own=True) for each in devices if each.index == self.options.gpu)
        return tuple(own_devices(devices))

    def _noted(self, devices: tuple[DeviceFigures, ...]) -> tuple[str, ...]:
        """A line for each thing that could not be looked at so far."""
        notes = [*self._proc.notes.values(), self._pages.note, self._stacks.note, *self._nvml.notes]
        if len(devices) > 1 and not any(each.own for each in devices):
            notes.append(
                f"which of {len(devices)} GPUs is this job's cannot be seen in a container: name it with --gpu"
            )
        self._notes = tuple(dict.fromkeys((*self._notes, *filter(None, notes))))[:_MOST_NOTES]
        return self._notes

    def close(self) -> None:
        """End a running burst."""
        self._stacks.close()


def _mean_cost(before: float, mean: float, memory: int) -> float:
    """The running mean over about `memory` costs in processor time, with the one since `before`."""
    cost = time.thread_time() - before
    return mean + (cost - mean) / memory if mean else cost


def _sleep_until(at: float) -> None:
    left = at - time.monotonic()
    if left > 0:
        time.sleep(left)
