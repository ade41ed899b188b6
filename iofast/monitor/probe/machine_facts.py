"""The machine as a job has it: cores, quotas, disks, memory, other programs. What cannot be read is None."""

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from iofast.machine import control_groups, memory_of, number, quota_v1, quota_v2
from iofast.monitor.probe import states
from iofast.monitor.probe.states import Gone, Stat, below, grown, process_table, read_stat
from iofast.monitor.snapshot import Job, SystemFigures

_CGROUPS = Path("/sys/fs/cgroup")  # tests have another folder
_SELDOM_S: Final = 5.0
_USED: Final = {"usage_usec": 1e6, "cpuacct.usage": 1e9}  # parts of a second, in version 2 and in version 1
_THROTTLED: Final = {"throttled_usec": 1e6, "throttled_time": 1e9}
_RECLAIMABLE: Final = {"": "inactive_file", "memory": "total_inactive_file"}  # of memory.stat, by controller
_BUDGET: Final = 0.002  # of one core; a scan of a thousand processes takes 20 to 50 ms
_ALONE: Final = 0.7  # of what others use: if the busiest process uses less, it is named with others
_NAMED: Final = 0.1  # of what others use: if the busiest in sight uses less, as beside a container, none is named


class SystemProbe:
    """Reads counts at the start and at each take. The control groups are the job's, not this process's.

    What others use is known from scans of all processes: every `scan_s` seconds, and less often if that costs more than
    the budget; with 0 at each take. Others are neither the job's, nor its other ranks', nor this monitor's.
    """

    def __init__(self, job: Job, scan_s: float = _SELDOM_S) -> None:
        self.job, self._scan_s = job, scan_s
        self._unified, self._cpu, self._memory = (
            list(control_groups(states.folder(job.pid) / "cgroup", _CGROUPS, name)) for name in ("", "cpu", "memory")
        )
        self._seldom_at = -math.inf
        self._read_seldom()
        self._counts = self._read(self._affinity())
        self._others: float | None = None
        self._busiest = 0, ""  # its pid, and what it is called
        self._table = self._scan()

    def take(self, seconds: float) -> SystemFigures:
        """Figures of the `seconds` since the last take. Others are None before the second scan."""
        self._read_seldom()
        allowed = self._affinity()
        before, self._counts = self._counts, self._read(allowed)
        counts = grown(self._counts, before)
        cores = float(len(allowed))
        idle = min(cores, counts["idle_s"] / seconds)
        if self._quota is not None:
            cores = min(cores, self._quota[0])
            idle = min(idle, max(0.0, self._quota[0] - counts["used_s"] / seconds) if "used_s" in counts else cores)
        self._used_s += seconds * max(0.0, cores - idle)
        self._seconds += seconds
        if time.monotonic() >= self._due_at:
            self._compare(self._used_s, self._seconds, allowed)
        return SystemFigures(
            cores=cores,
            idle_cores=idle,
            throttled_s=counts.get("throttled_s"),
            memory_available=self._available,
            disk_read_bytes=counts.get("disk_bytes"),
            other_cores=self._others,
            busiest=self._named(*self._busiest),
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

    def _read(self, allowed: set[int]) -> dict[str, Any]:
        """Counts: idle time of the job's cores, what its control groups used and lost, and bytes read from disks."""
        times, disks = psutil.cpu_times(percpu=True), psutil.disk_io_counters(nowrap=False)
        # a core that waits for a disk has nothing to do
        idle = sum(each.idle + getattr(each, "iowait", 0.0) for at, each in enumerate(times) if at in allowed)
        throttled = (_seconds(_fields(group / "cpu.stat"), _THROTTLED) for group in (*self._unified, *self._cpu))
        counts = {"idle_s": idle, "throttled_s": max((each for each in throttled if each is not None), default=None)}
        if self._quota is not None:
            group = self._quota[1]
            counts["used_s"] = _seconds(
                _fields(group / "cpu.stat") | {"cpuacct.usage": number(group / "cpuacct.usage")}, _USED
            )
        counts["disk_bytes"] = None if disks is None else disks.read_bytes
        return {name: count for name, count in counts.items() if count is not None}

    def _available_memory(self) -> int:
        """Of the machine, or what the tightest group leaves: its page cache can be reclaimed."""
        left = [psutil.virtual_memory().available]
        for controller, groups in (("", self._unified), ("memory", self._memory)):
            for group in groups:
                limit, usage = memory_of(group, controller)
                if limit is not None and usage is not None:
                    cache = _fields(group / "memory.stat").get(_RECLAIMABLE[controller], 0)
                    left.append(max(0, limit - usage + cache))
        return min(left)

    def _scan(self) -> dict[int, Stat]:
        self._used_s = self._seconds = 0.0  # of the job's cores by all programs, since this scan
        before, table = time.thread_time(), process_table()
        cost = time.thread_time() - before
        self._due_at = time.monotonic() + (max(self._scan_s, cost / _BUDGET) if self._scan_s else 0.0)
        return table

    def _compare(self, used_s: float, seconds: float, allowed: set[int]) -> None:
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

    def _named(self, pid: int, called: str) -> str | None:
        """What the busiest process is called; None if it has ended since the last scan."""
        with contextlib.suppress(Gone):
            if called and read_stat(pid).start_time == self._table[pid].start_time:
                return called
        return None

    def _own(self, table: Mapping[int, Stat]) -> set[int]:
        """The job's processes, those of its launcher if it is one of several ranks, and the monitor's."""
        found = {self.job.pid, os.getpid()} & table.keys()
        if self.job.pid in found and (self.job.world_size or 1) > 1:
            found |= {table[self.job.pid].parent} & table.keys()
        return found | below(table, found)


def _fields(path: Path) -> dict[str, Any]:
    """The numbers of a control group's file, by the names in front of them; {} if it cannot be read."""
    try:
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def _seconds(fields: Mapping[str, Any], units: dict[str, float]) -> float | None:
    """The first field that is there; `units` has the parts of a second."""
    return next((fields[name] / unit for name, unit in units.items() if fields.get(name) is not None), None)


def _with_children(stat: Stat) -> float:
    return stat.cpu_s + stat.ended_cpu_s
