"""One job's snapshots, an interval at a time: looks at 20 a second at most, each at a random moment of its slot.

At even distances a training with steps of 50 ms would always be met at the same place. Where looks cost more than usual
they become rarer, so that all of them together stay below a hundredth of one core.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from iofast.errors import OptionError
from iofast.monitor.bursts import Bursts
from iofast.monitor.find import MonitorError
from iofast.monitor.look_windows import LATE_S, Loading, Windows
from iofast.monitor.probe.data_folders import DataFolders
from iofast.monitor.probe.machine_facts import SystemProbe
from iofast.monitor.probe.nvml import NvmlProbe, Reading
from iofast.monitor.probe.pages import PagesProbe
from iofast.monitor.probe.peers import Peers
from iofast.monitor.probe.proc import Look, ProcProbe
from iofast.monitor.snapshot import DeviceFigures, Job, LoaderFigures, ProcessFigures, Snapshot

Stacks = Literal["auto", "off", "on"]

MOST_LOOKS: Final = 20  # a second
_BUDGET: Final = 0.006  # of one core: verdicts, views and waking up use a third more
_FEWEST_LOOKS: Final = 2.0  # a second, however dear they are
_PEERS_EVERY: Final = 5  # looks
_MOST_NOTES: Final = 16


@dataclass(frozen=True)
class WatchOptions:
    """How to watch a job.

    interval  seconds from one snapshot to the next
    rate      looks a second, at most
    stacks    Python stacks by py-spy: "auto" where that is possible, "on" is an error where it is not, "off"
    device    index of the GPU that the job uses, where the driver does not say (containers); None: as it says

    Raises `OptionError` for what makes no sense.
    """

    interval: float = 1.0
    rate: float = MOST_LOOKS
    stacks: Stacks = "auto"
    device: int | None = None

    def __post_init__(self) -> None:
        if not 0.05 <= self.interval <= 3600:
            raise OptionError(f"interval must be from 0.05 to 3600 seconds, found {self.interval}")
        if not 1 <= self.rate <= MOST_LOOKS:
            raise OptionError(f"rate must be from 1 to {MOST_LOOKS} looks a second, found {self.rate}")
        if self.stacks not in get_args(Stacks):
            raise OptionError(f"stacks must be one of {', '.join(get_args(Stacks))}, found {self.stacks!r}")
        if self.device is not None and self.device < 0:
            raise OptionError(f"device must be the index of a GPU, from 0 on, found {self.device}")


class Watch:
    """Snapshots of a job. Raises JobEnded, also later, once the job has ended. `nvml` stays the caller's."""

    def __init__(self, job: Job, options: WatchOptions | None = None, nvml: NvmlProbe | None = None) -> None:
        self.job = job
        self.options = options or WatchOptions()
        self.cost_s = 0.0  # processor time of this thread for looks and snapshots, so far
        self._nvml = nvml
        self._proc = ProcProbe(job)
        self._system = SystemProbe(job)
        self._pages = PagesProbe(job)
        self._peers = Peers(job)
        self._files = DataFolders()
        self._bursts = Bursts(job) if self.options.stacks != "off" else None
        self._windows = Windows()
        self._looks: list[Look] = []
        self._look_s = self._snapshot_s = 0.0  # what one costs, of late
        self._loaders: tuple[LoaderFigures, ...] = ()
        self._device: str | None = None  # uuid
        self._notes: dict[str, None] = {}
        self._taken_at = self._due_at = time.monotonic()

    def interval(self) -> Snapshot:
        """Look for an interval; what was seen. The next call goes on where this one ended, if it comes in time."""
        start, length = self._due_at, self.options.interval
        if time.monotonic() > start + length / 2:  # the caller was busy with something else
            start = time.monotonic()
        self._due_at = start + length
        slots = max(1, int(self._rate() * length))
        for slot in range(slots):
            at = start + (slot + random.random()) * length / slots
            if at < time.monotonic() - length / slots:  # this process had no processor: no burst of looks after that
                continue
            _sleep_until(at)
            self._look(slot)
        _sleep_until(self._due_at)
        return self._snapshot()

    def _rate(self) -> float:
        """Looks a second that the budget allows, beside a snapshot an interval."""
        if not self._look_s:
            return self.options.rate
        left = max(_BUDGET - self._snapshot_s / self.options.interval, _BUDGET / 2)  # who wants many snapshots pays
        return min(self.options.rate, max(_FEWEST_LOOKS, left / self._look_s))

    def _look(self, number: int) -> None:
        before = time.thread_time()
        self._looks.append(self._proc.look())
        if number % _PEERS_EVERY == 0:
            self._peers.look()
        if self._bursts is not None:
            self._bursts.start_if_due(self._proc.workers)
        cost = time.thread_time() - before
        self._look_s += (cost - self._look_s) / 16 if self._look_s else cost
        self.cost_s += cost

    def _snapshot(self) -> Snapshot:
        before, now = time.thread_time(), time.monotonic()
        seconds = max(now - self._taken_at, 1e-3)
        self._taken_at = now
        looks, processes, threads = self._proc.take(seconds)
        self._loaders = self._pages.take()
        pids = tuple(each.pid for each in processes)
        self._files.glimpse([*self._proc.workers, self.job.pid])
        devices = self._devices(pids, seconds)
        device = self._own(devices)
        self._windows.add(self._looks, seconds, self._loading(processes))
        self._looks = []
        idle = None if device is None or device.busy is None else 1.0 - device.busy
        stacks = self._bursts.take() if self._bursts is not None else None
        self.job = replace(self.job, rank=self._pages.rank, world_size=self._pages.world_size)
        snapshot = Snapshot(
            time_s=now,
            seconds=seconds,
            job=self.job,
            main=looks,
            windows=self._windows.take(self._readings(device, now), idle, now),
            processes=processes,
            threads=threads,
            system=self._system.take(seconds),
            devices=devices,
            stacks=stacks,
            loaders=self._loaders,
            dataset_paths=self._files.folders,
            notes=self._noted(devices),
            peers={**self._peers.take(), **self._pages.peers()},
            file_bytes=self._files.image_bytes,
        )
        cost = time.thread_time() - before
        self._snapshot_s += (cost - self._snapshot_s) / 4 if self._snapshot_s else cost
        self.cost_s += cost
        return snapshot

    def _loading(self, processes: tuple[ProcessFigures, ...]) -> Loading:
        within = any(each.live and each.kind == "FastLoader" and each.num_workers for each in self._loaders)
        workers = any(each.role == "worker" for each in processes)
        return Loading(processes=workers, threads=within or self._proc.loader_threads)

    def _devices(self, pids: tuple[int, ...], seconds: float) -> tuple[DeviceFigures, ...]:
        """The job's: by pid, or by option; where the driver does not say, all of which that may be so."""
        if self._nvml is None:
            return ()
        found = self._nvml.devices(pids, seconds)
        if self.options.device is not None:
            return tuple(replace(each, own=True) for each in found if each.index == self.options.device)
        own = tuple(each for each in found if each.own)
        return own or tuple(each for each in found if each.own is None)

    def _own(self, devices: tuple[DeviceFigures, ...]) -> DeviceFigures | None:
        """The one whose readings the looks are joined with: of several the busiest, and then for good."""
        own = [each for each in devices if each.own] or (list(devices) if len(devices) == 1 else [])
        if not own:
            self._device = None
            return None
        chosen = next((each for each in own if each.uuid == self._device), None)
        if chosen is None:
            chosen = max(own, key=lambda each: each.busy or 0.0)
            self._device, self._windows = chosen.uuid, Windows() if self._device else self._windows
        return chosen

    def _readings(self, device: DeviceFigures | None, now: float) -> list[Reading] | None:
        """None where the device gives none, or gives none any more."""
        if device is None or self._nvml is None:
            return None
        since = self._windows.covered_until
        found = self._nvml.readings(device.index, max(since, now - LATE_S - self.options.interval), device.uuid)
        return found if found or now - since < LATE_S else None

    def _noted(self, devices: tuple[DeviceFigures, ...]) -> tuple[str, ...]:
        """A line for each thing that could not be looked at so far."""
        found = list(self._proc.notes.values())
        if self._pages.note:
            found.append(self._pages.note)
        found += [NvmlProbe.note] if self._nvml is None else self._nvml.notes
        if len(devices) > 1 and not any(each.own for each in devices):
            found.append(
                f"which of {len(devices)} GPUs is this job's cannot be seen in a container: name it with --gpu"
            )
        if self._bursts is not None and self._bursts.note:
            if self.options.stacks == "on" and not self._bursts.succeeded:
                raise MonitorError(f"stacks cannot be looked at: {self._bursts.note}")
            found.append(self._bursts.note)
        for note in filter(None, found):
            if len(self._notes) < _MOST_NOTES:
                self._notes.setdefault(note)
        return tuple(self._notes)

    def close(self) -> None:
        """Close all files, and wait for a burst that is under way."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._proc.close)
            stack.callback(self._peers.close)
            if self._bursts is not None:
                stack.callback(self._bursts.close)


def _sleep_until(at: float) -> None:
    left = at - time.monotonic()
    if left > 0:
        time.sleep(left)
