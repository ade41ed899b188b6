"""The machine as a job has it: cores, quotas, disks, memory, other programs. What cannot be read is None."""

import contextlib
import math
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from iofast.machine import control_groups, memory_of, number, quota_v1, quota_v2
from iofast.monitor.probe import states
from iofast.monitor.probe.states import Gone, Stat, below, process_table, read_stat
from iofast.monitor.snapshot import Job, SystemFigures

_CGROUPS = Path("/sys/fs/cgroup")  # tests have another folder
_SELDOM_S: Final = 5.0
_USED: Final = {"usage_usec": 1e6}
_THROTTLED: Final = {"throttled_usec": 1e6, "throttled_time": 1e9}  # in version 2 and in version 1
_RECLAIMABLE: Final = {"": "inactive_file", "memory": "total_inactive_file"}  # of memory.stat, by controller
_BUDGET: Final = 0.002  # of one core; a scan of a thousand processes takes 20 to 50 ms
_ALONE: Final = 0.7  # of what others use: if the busiest process uses less, it is named with others
_NAMED: Final = 0.1  # of what others use: if the busiest in sight uses less, as beside a container, none is named


class _SystemTotals(NamedTuple):
    """Counts whose differences are an interval's figures."""

    idle_s: float  # of all cores of the job
    used_s: float | None  # by its control group with the smallest quota
    throttled_s: float | None
    disk_bytes: int | None  # read


class SystemProbe:
    """Reads totals at the start and at each take. The control groups are the job's, not this process's."""

    def __init__(self, job: Job, scan_s: float = _SELDOM_S) -> None:
        """`scan_s`: seconds between two scans of all processes, at least."""
        self.job = job
        self._neighbours = Neighbours(job, scan_s)
        self._unified, self._cpu, self._memory = (
            list(control_groups(states.folder(job.pid) / "cgroup", _CGROUPS, name)) for name in ("", "cpu", "memory")
        )
        self._seldom_at = -math.inf
        self._read_seldom()
        self._before = self._read(self._affinity())

    def take(self, seconds: float) -> SystemFigures:
        """Figures of the `seconds` since the last take."""
        self._read_seldom()
        allowed = self._affinity()
        before, now = self._before, self._read(allowed)
        self._before = now
        cores = float(len(allowed))
        idle = min(cores, max(0.0, now.idle_s - before.idle_s) / seconds)
        if self._quota is not None:
            used = _grown(now.used_s, before.used_s)
            cores = min(cores, self._quota[0])
            idle = min(idle, cores if used is None else max(0.0, self._quota[0] - used / seconds))
        read = _grown(now.disk_bytes, before.disk_bytes)
        others, busiest = self._neighbours.take(seconds, cores, idle, allowed)
        return SystemFigures(
            cores=cores,
            idle_cores=idle,
            throttled_s=_grown(now.throttled_s, before.throttled_s),
            memory_available=self._available,
            disk_read_bytes=None if read is None else round(read),
            other_cores=others,
            busiest=busiest,
        )

    def _read_seldom(self) -> None:
        """Read what changes slowly, every five seconds: it would be half of the price of a take."""
        if time.monotonic() - self._seldom_at < _SELDOM_S:
            return
        self._seldom_at = time.monotonic()
        limits = [(quota_v2(group), group) for group in self._unified]
        limits += [(quota_v1(group), group) for group in self._cpu]
        self._quota = min(((limit, group) for limit, group in limits if limit is not None), default=None)
        self._available = self._available_memory()

    def _affinity(self) -> set[int]:
        try:
            return set(os.sched_getaffinity(self.job.pid))
        except OSError:
            return set(range(os.cpu_count() or 1))

    def _read(self, allowed: set[int]) -> _SystemTotals:
        times = psutil.cpu_times(percpu=True)
        throttled = [_cpu_stat(group, _THROTTLED) for group in (*self._unified, *self._cpu)]
        disks = psutil.disk_io_counters(nowrap=False)
        return _SystemTotals(
            # a core that waits for a disk has nothing to do
            idle_s=sum(each.idle + getattr(each, "iowait", 0.0) for at, each in enumerate(times) if at in allowed),
            used_s=None if self._quota is None else _used(self._quota[1]),
            throttled_s=max((seconds for seconds in throttled if seconds is not None), default=None),
            disk_bytes=None if disks is None else disks.read_bytes,
        )

    def _available_memory(self) -> int:
        """Of the machine, or what the tightest group leaves: its page cache can be reclaimed."""
        left = [psutil.virtual_memory().available]
        for controller, groups in (("", self._unified), ("memory", self._memory)):
            for group in groups:
                limit, usage = memory_of(group, controller)
                if limit is not None and usage is not None:
                    cache = _field(group / "memory.stat", _RECLAIMABLE[controller]) or 0
                    left.append(max(0, limit - usage + cache))
        return min(left)


class Neighbours:
    """Processes that are neither the job's, nor its other ranks', nor this monitor's.

    All processes are scanned every `scan_s` seconds, and less often if that costs more than the budget; with 0 at each
    `take`.
    """

    def __init__(self, job: Job, scan_s: float) -> None:
        self._job, self._scan_s = job, scan_s
        self._others: float | None = None
        self._busiest = 0, ""  # its pid, and what it is called
        self._table = self._scan()

    def take(
        self, seconds: float, cores: float, idle: float, allowed: Collection[int]
    ) -> tuple[float | None, str | None]:
        """Cores that others use, and the busiest process, by the last scan; None before the second one.

        In these `seconds`, `idle` of the `cores` that the job may use had nothing to do; `allowed` has their numbers.
        """
        self._used_s += seconds * max(0.0, cores - idle)
        self._seconds += seconds
        if time.monotonic() >= self._due_at:
            self._compare(self._used_s, self._seconds, allowed)
        pid, called = self._busiest
        with contextlib.suppress(Gone):  # it may have ended since the last scan
            if called and read_stat(pid).start_time == self._table[pid].start_time:
                return self._others, called
        return self._others, None

    def _compare(self, used_s: float, seconds: float, allowed: Collection[int]) -> None:
        """Compare the last scan with a new one."""
        before, now = self._table, self._scan()
        self._table = now
        own_before, own = self._own(before), self._own(now)
        # A worker that has ended is counted by its parent, with all that it ever used.
        own_s = sum(_with_children(now[pid]) for pid in own) - sum(_with_children(before[pid]) for pid in own_before)
        self._others = others = max(0.0, used_s - max(0.0, own_s)) / seconds
        rates = {
            pid: (stat.cpu_s - before[pid].cpu_s) / seconds
            for pid, stat in now.items()
            if pid in before and pid not in own and (stat.processor is None or stat.processor in allowed)
        }
        busiest = max(rates, key=rates.__getitem__, default=0)
        rate = rates.get(busiest, 0.0)
        more = ", and others" if rate < _ALONE * others else ""
        named = others and rate >= _NAMED * others
        self._busiest = busiest, f"pid {busiest}, {now[busiest].name}{more}" if named else ""

    def _scan(self) -> dict[int, Stat]:
        self._used_s = self._seconds = 0.0  # since this scan
        before, table = time.thread_time(), process_table()
        cost = time.thread_time() - before
        self._due_at = time.monotonic() + (max(self._scan_s, cost / _BUDGET) if self._scan_s else 0.0)
        return table

    def _own(self, table: Mapping[int, Stat]) -> set[int]:
        """The job's processes, those of its launcher if it is one of several ranks, and the monitor's."""
        found = {self._job.pid, os.getpid()} & table.keys()
        if self._job.pid in found and (self._job.world_size or 1) > 1:
            found |= {table[self._job.pid].parent} & table.keys()
        return found | below(table, found)


def _used(group: Path) -> float | None:
    """Seconds of processor time of a control group."""
    seconds, nanoseconds = _cpu_stat(group, _USED), number(group / "cpuacct.usage")
    return nanoseconds / 1e9 if seconds is None and nanoseconds is not None else seconds


def _cpu_stat(group: Path, units: dict[str, float]) -> float | None:
    """Seconds from a group's cpu.stat; `units` has the parts of a second by the name of the field."""
    for name, unit in units.items():
        if (value := _field(group / "cpu.stat", name)) is not None:
            return value / unit
    return None


def _grown(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else max(0.0, now - before)


def _field(path: Path, name: str) -> int | None:
    """The number behind a name at the beginning of a line."""
    try:
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return None
    return next((int(words[1]) for words in lines if len(words) > 1 and words[0] == name and words[1].isdigit()), None)


def _with_children(stat: Stat) -> float:
    return stat.cpu_s + stat.ended_cpu_s
