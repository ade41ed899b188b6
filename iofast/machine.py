"""What this process may use of the machine: cores and memory, after affinity and control groups had their say."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number near 2^63


def cores() -> int:
    """Cores this process may keep busy: its affinity, or less where a control group has a smaller quota."""
    quota = cpu_quota()
    return max(1, min(affinity(), affinity() if quota is None else math.ceil(quota)))


def affinity() -> int:
    """Cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Cores' worth of time the tightest control group grants; None = no limit."""
    limits = [_quota(group / "cpu.max") for group in _groups("")]
    limits += [_quota_v1(group) for group in _groups("cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit() -> int | None:
    """Bytes the tightest control group grants; None = no limit."""
    files = [group / "memory.max" for group in _groups("")]
    files += [group / "memory.limit_in_bytes" for group in _groups("memory")]
    limits = (_number(path) for path in files)
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def free_memory() -> int:
    """Bytes this process and its children can still take: the machine's, or what is left of a control group's limit."""
    import psutil  # 20 ms, which the start of every command would pay

    free = int(psutil.virtual_memory().available)
    pairs = [(group / "memory.max", group / "memory.current") for group in _groups("")]
    pairs += [(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes") for group in _groups("memory")]
    for limit_file, usage_file in pairs:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            free = min(free, max(0, limit - usage))
    return free


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups this process is in, innermost first; `controller` is "" for version 2."""
    try:
        lines = _PROC_CGROUP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller not in names.split(","):
            continue
        mount = _CGROUPS / controller
        # inside a container the path can be the host's; what is mounted is then the container's own group as the root
        inner = mount / path.lstrip("/")
        while inner != mount and mount in inner.parents:
            yield inner
            inner = inner.parent
        yield mount


def _quota(path: Path) -> float | None:
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
