"""The machine as a job has it: cores, quotas, pressure, disks, memory. What cannot be read is None."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from iofast.machine import control_groups, number, quota_v1, quota_v2
from iofast.monitor.probe.states import PROC, TICKS
from iofast.monitor.snapshot import Job, SystemFigures

_CGROUPS: Final = Path("/sys/fs/cgroup")
_BLOCKS: Final = Path("/sys/block")
_SECTOR: Final = 512  # of /proc/diskstats, whatever the disk's own
_NOT_DISKS: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # no disks, or made of others that count already
_SELDOM_S: Final = 5.0
_NO_LIMIT: Final = 1 << 60


class _Counters(NamedTuple):
    """Totals, whose differences are an interval's figures."""

    idle_s: float | None  # of all cores of the job
    used_s: float | None  # by its control group with the smallest quota
    throttled_s: float | None
    pressure_cpu_s: float | None
    pressure_io_s: float | None
    disks: dict[str, tuple[int, float]] | None  # sectors read, seconds busy


class SystemProbe:
    """Reads totals at the start and at each take. The control groups are the job's, not ours."""

    def __init__(self, job: Job, proc: Path = PROC, cgroups: Path = _CGROUPS, blocks: Path = _BLOCKS) -> None:
        self.job = job
        self._proc = proc
        self._blocks = blocks
        self._unified, self._cpu, self._memory = (
            list(control_groups(proc / str(job.pid) / "cgroup", cgroups, name)) for name in ("", "cpu", "memory")
        )
        self._seldom_at = -math.inf
        self._quota: tuple[float, Path] | None = None
        self._memory_now: tuple[int | None, int | None] = None, None
        self._look_seldom()
        self._before = self._read(self._affinity())

    def take(self, seconds: float) -> SystemFigures:
        """The `seconds` since the last take."""
        self._look_seldom()
        allowed, quota = self._affinity(), self._quota
        now, then = self._read(allowed), self._before
        self._before = now
        count = len(allowed) or os.cpu_count() or 1
        cores = float(count) if quota is None else min(float(count), quota[0])
        idle = _rate(now.idle_s, then.idle_s, seconds)
        used = _rate(now.used_s, then.used_s, seconds)
        if idle is not None:
            idle = min(idle, float(count), cores if used is None or quota is None else max(0.0, quota[0] - used))
        throttled = _rate(now.throttled_s, then.throttled_s, 1.0)
        reads, busy = _disks(now.disks, then.disks, seconds)
        return SystemFigures(
            cores=cores,
            idle_cores=idle,
            throttled_s=throttled,
            pressure_cpu=_share(_rate(now.pressure_cpu_s, then.pressure_cpu_s, seconds)),
            pressure_io=_share(_rate(now.pressure_io_s, then.pressure_io_s, seconds)),
            memory_available=self._memory_now[0],
            page_cache=self._memory_now[1],
            disk_read_bytes=reads,
            disk_busy=busy,
            numa_nodes=len(set(numa_nodes().values())) or None,
        )

    def _look_seldom(self) -> None:
        """What changes slowly is read every five seconds: it is half of the price of a take."""
        now = time.monotonic()
        if now - self._seldom_at >= _SELDOM_S:
            self._seldom_at, self._quota, memory = now, self._smallest_quota(), self._meminfo()
            self._memory_now = self._available(memory.get("MemAvailable")), memory.get("Cached")

    def _affinity(self) -> set[int]:
        try:
            return set(os.sched_getaffinity(self.job.pid))
        except OSError:
            return set(range(os.cpu_count() or 1))

    def _read(self, allowed: set[int]) -> _Counters:
        quota = self._quota
        return _Counters(
            idle_s=self._idle(allowed),
            used_s=None if quota is None else _used(quota[1]),
            throttled_s=max(
                (found for group in (*self._unified, *self._cpu) if (found := _throttled(group)) is not None),
                default=None,
            ),
            pressure_cpu_s=self._pressure("cpu"),
            pressure_io_s=self._pressure("io"),
            disks=self._diskstats(),
        )

    def _idle(self, allowed: set[int]) -> float | None:
        """Seconds that the cores of the job had nothing to do, waiting for a disk included."""
        total, found = 0, False
        for line in _text(self._proc / "stat").splitlines():
            name, _, rest = line.partition(" ")
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
                fields = rest.split()
                total, found = total + int(fields[3]) + int(fields[4]), True
        return total / TICKS if found else None

    def _smallest_quota(self) -> tuple[float, Path] | None:
        """The smallest of the job's quotas, in cores, and whose it is."""
        limits = [(limit, group) for group in self._unified if (limit := quota_v2(group)) is not None]
        limits += [(limit, group) for group in self._cpu if (limit := quota_v1(group)) is not None]
        return min(limits, key=lambda each: each[0], default=None)

    def _pressure(self, kind: str) -> float | None:
        """Seconds of "some": the job's own group's where that keeps account, else the machine's."""
        for path in (*(group / f"{kind}.pressure" for group in self._unified[:1]), self._proc / "pressure" / kind):
            for line in _text(path).splitlines():
                if line.startswith("some "):
                    with contextlib.suppress(ValueError):
                        return int(line.rpartition("total=")[2]) / 1e6
        return None

    def _diskstats(self) -> dict[str, tuple[int, float]] | None:
        disks = {}
        for line in _text(self._proc / "diskstats").splitlines():
            fields = line.split()
            if len(fields) > 12 and not fields[2].startswith(_NOT_DISKS) and (self._blocks / fields[2]).exists():
                disks[fields[2]] = int(fields[5]), int(fields[12]) / 1e3
        return disks or None

    def _meminfo(self) -> dict[str, int]:
        lines = (line.split() for line in _text(self._proc / "meminfo").splitlines())
        return {
            fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if len(fields) > 1 and fields[1].isdigit()
        }

    def _available(self, machine: int | None) -> int | None:
        """Of the machine, or what the tightest group leaves: its page cache can be taken back."""
        left = [] if machine is None else [machine]
        names = (
            ("memory.max", "memory.current", "inactive_file"),
            (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ),
        )
        for groups, (limit_file, usage_file, cache) in zip((self._unified, self._memory), names, strict=True):
            for group in groups:
                limit, usage = number(group / limit_file), number(group / usage_file)
                if limit is not None and usage is not None and limit < _NO_LIMIT:
                    left.append(max(0, limit - usage + (_field(group / "memory.stat", cache) or 0)))
        return min(left, default=None)


@functools.cache
def numa_nodes(nodes: Path = Path("/sys/devices/system/node")) -> dict[int, int]:
    """The node of each processor; empty where the kernel does not say."""
    found: dict[int, int] = {}
    for folder in sorted(nodes.glob("node[0-9]*")):
        for part in _text(folder / "cpulist").strip().split(","):
            first, _, last = part.partition("-")
            if first.isdigit():
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(folder.name[4:])))
    return found


def _used(group: Path) -> float | None:
    microseconds = _field(group / "cpu.stat", "usage_usec")
    if microseconds is not None:
        return microseconds / 1e6
    nanoseconds = number(group / "cpuacct.usage")
    return None if nanoseconds is None else nanoseconds / 1e9


def _throttled(group: Path) -> float | None:
    """Seconds that threads of the group waited for its quota: microseconds in version 2, nanoseconds in 1."""
    microseconds, nanoseconds = (
        _field(group / "cpu.stat", "throttled_usec"),
        _field(group / "cpu.stat", "throttled_time"),
    )
    if microseconds is not None:
        return microseconds / 1e6
    return None if nanoseconds is None else nanoseconds / 1e9


def _disks(
    now: dict[str, tuple[int, float]] | None, then: dict[str, tuple[int, float]] | None, seconds: float
) -> tuple[int | None, float | None]:
    """Bytes read from all disks, and how busy the busiest was."""
    if now is None or then is None or not now.keys() & then.keys():
        return None, None
    both = now.keys() & then.keys()
    sectors = sum(max(0, now[name][0] - then[name][0]) for name in both)
    busiest = max(max(0.0, now[name][1] - then[name][1]) for name in both)
    return sectors * _SECTOR, min(1.0, busiest / seconds) if seconds > 0 else None


def _rate(now: float | None, then: float | None, seconds: float) -> float | None:
    if now is None or then is None or seconds <= 0 or not math.isfinite(now - then):
        return None
    return max(0.0, now - then) / seconds


def _share(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)


def _field(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        word, _, value = line.partition(" ")
        if word == name and value.isdigit():
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
