"""The machine as a job has it: cores, quotas, pressure, disks, memory. What cannot be read is None."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from iofast.machine import control_groups, memory_of, number, quota_v1, quota_v2
from iofast.monitor.probe import states
from iofast.monitor.probe.neighbours import Neighbours
from iofast.monitor.snapshot import Job, SystemFigures

_CGROUPS = Path("/sys/fs/cgroup")  # tests have other folders
_BLOCKS = Path("/sys/block")
_SECTOR: Final = 512  # of /proc/diskstats, whatever the disk's own
_NOT_DISKS: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # no disks, or made of others that count already
_SELDOM_S: Final = 5.0
_USED: Final = {"usage_usec": 1e6}
_THROTTLED: Final = {"throttled_usec": 1e6, "throttled_time": 1e9}  # in version 2 and in version 1
_RECLAIMABLE: Final = {"": "inactive_file", "memory": "total_inactive_file"}  # of memory.stat, by controller


class _SystemTotals(NamedTuple):
    """Counts whose differences are an interval's figures."""

    idle_s: float | None  # of all cores of the job
    used_s: float | None  # by its control group with the smallest quota
    throttled_s: float | None
    pressure_cpu_s: float | None
    pressure_io_s: float | None
    disks: dict[str, tuple[int, float]]  # sectors read, seconds busy


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
        idle = _rate(now.idle_s, before.idle_s, seconds)
        if idle is not None:
            idle = min(idle, cores)
        if self._quota is not None:
            cores = min(cores, self._quota[0])
            used = _rate(now.used_s, before.used_s, seconds)
            if idle is not None:
                idle = min(idle, cores if used is None else max(0.0, self._quota[0] - used))
        reads, busy = _disks(now.disks, before.disks, seconds)
        others, busiest = self._neighbours.take(seconds, cores, idle, allowed)
        return SystemFigures(
            cores=cores,
            idle_cores=idle,
            throttled_s=_rate(now.throttled_s, before.throttled_s, 1.0),
            pressure_cpu=_share(_rate(now.pressure_cpu_s, before.pressure_cpu_s, seconds)),
            pressure_io=_share(_rate(now.pressure_io_s, before.pressure_io_s, seconds)),
            memory_available=self._available,
            page_cache=self._page_cache,
            disk_read_bytes=reads,
            disk_busy=busy,
            numa_nodes=len(set(numa_nodes().values())) or None,
            other_cores=others,
            busiest=busiest,
        )

    def _read_seldom(self) -> None:
        """Read what changes slowly, every five seconds: it would be half of the price of a take."""
        if time.monotonic() - self._seldom_at < _SELDOM_S:
            return
        self._seldom_at = time.monotonic()
        self._quota = self._smallest_quota()
        self._page_cache = self._meminfo("Cached:")
        self._available = self._available_memory()

    def _affinity(self) -> set[int]:
        try:
            return set(os.sched_getaffinity(self.job.pid))
        except OSError:
            return set(range(os.cpu_count() or 1))

    def _read(self, allowed: set[int]) -> _SystemTotals:
        throttled = [_cpu_stat(group, _THROTTLED) for group in (*self._unified, *self._cpu)]
        return _SystemTotals(
            idle_s=self._idle(allowed),
            used_s=None if self._quota is None else _used(self._quota[1]),
            throttled_s=max((seconds for seconds in throttled if seconds is not None), default=None),
            pressure_cpu_s=self._pressure("cpu"),
            pressure_io_s=self._pressure("io"),
            disks=self._diskstats(),
        )

    def _idle(self, allowed: set[int]) -> float | None:
        """Seconds in which the cores of the job had nothing to do, waiting for a disk included."""
        names = {f"cpu{core}" for core in allowed}
        lines = (line.split() for line in _text(states.PROC / "stat").splitlines() if line.startswith("cpu"))
        ticks = [int(fields[4]) + int(fields[5]) for fields in lines if fields[0] in names]
        return sum(ticks) / states.TICKS if ticks else None

    def _smallest_quota(self) -> tuple[float, Path] | None:
        """The smallest of the job's quotas, in cores, and its control group."""
        limits = [(quota_v2(group), group) for group in self._unified]
        limits += [(quota_v1(group), group) for group in self._cpu]
        return min(((limit, group) for limit, group in limits if limit is not None), default=None)

    def _pressure(self, kind: str) -> float | None:
        """Seconds of "some": of the job's own group where that keeps account, else of the machine."""
        for path in (*(group / f"{kind}.pressure" for group in self._unified[:1]), states.PROC / "pressure" / kind):
            for line in _text(path).splitlines():
                if line.startswith("some "):
                    with contextlib.suppress(ValueError):
                        return int(line.rpartition("total=")[2]) / 1e6
        return None

    def _diskstats(self) -> dict[str, tuple[int, float]]:
        disks = {}
        for line in _text(states.PROC / "diskstats").splitlines():
            fields = line.split()
            if len(fields) > 12 and not fields[2].startswith(_NOT_DISKS) and (_BLOCKS / fields[2]).exists():
                disks[fields[2]] = int(fields[5]), int(fields[12]) / 1e3
        return disks

    def _meminfo(self, name: str) -> int | None:
        kibibytes = _field(states.PROC / "meminfo", name)
        return None if kibibytes is None else kibibytes * 1024

    def _available_memory(self) -> int | None:
        """Of the machine, or what the tightest group leaves: its page cache can be reclaimed."""
        machine = self._meminfo("MemAvailable:")
        left = [] if machine is None else [machine]
        for controller, groups in (("", self._unified), ("memory", self._memory)):
            for group in groups:
                limit, usage = memory_of(group, controller)
                if limit is not None and usage is not None:
                    cache = _field(group / "memory.stat", _RECLAIMABLE[controller]) or 0
                    left.append(max(0, limit - usage + cache))
        return min(left, default=None)


@functools.cache
def numa_nodes(nodes: Path = Path("/sys/devices/system/node")) -> dict[int, int]:
    """The node of each processor; empty where the kernel does not list them."""
    found: dict[int, int] = {}
    for folder in sorted(nodes.glob("node[0-9]*")):
        for part in _text(folder / "cpulist").strip().split(","):
            first, _, last = part.partition("-")
            if first.isdigit():
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(folder.name[4:])))
    return found


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


def _disks(
    now: dict[str, tuple[int, float]], before: dict[str, tuple[int, float]], seconds: float
) -> tuple[int | None, float | None]:
    """Bytes read from all disks, and how busy the busiest was."""
    both = now.keys() & before.keys()
    if not both:
        return None, None
    sectors = sum(max(0, now[name][0] - before[name][0]) for name in both)
    busiest = max(max(0.0, now[name][1] - before[name][1]) for name in both)
    return sectors * _SECTOR, min(1.0, busiest / seconds)


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    return None if now is None or before is None else max(0.0, now - before) / seconds


def _share(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)


def _field(path: Path, name: str) -> int | None:
    """The number behind a name at the beginning of a line."""
    for line in _text(path).splitlines():
        fields = line.split()
        if len(fields) > 1 and fields[0] == name and fields[1].isdigit():
            return int(fields[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
