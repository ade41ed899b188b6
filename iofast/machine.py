"""The cores and memory that this process may use, by affinity and control groups, and its rank.

Ranks on one machine share its cores, so the variables of launchers are read here too.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from iofast.errors import OptionError

_CGROUPS = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
_MEMORY_FILES = {  # limit and usage, by controller; "" is version 2
    "": ("memory.max", "memory.current"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number near 2^63

# innermost launcher first: srun may start mpirun, which may start torchrun, and all set their variables
RANKS = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
SLURM_RANK = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_LOCAL_RANKS = (  # on one machine
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_SLURM_NO_TASK = 0xFFFFFFF0  # step ids from here on: a batch script, an interactive shell, a pending step


def cores() -> int:
    """Return the cores that this process may keep busy: its affinity, or the smaller quota of a control group."""
    quota = cpu_quota()
    return max(1, min(affinity(), affinity() if quota is None else math.ceil(quota)))


def affinity() -> int:
    """Return the number of cores that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of_rank() -> int:
    """Return the cores for each rank on this machine, at least 1; `cores()` for a single rank.

    Ranks that the launcher pinned apart have their own cores; others share them. All share a control group's quota.
    Raises `OptionError` for an invalid variable of a launcher.
    """
    ranks, variable = _local_ranks()
    if ranks == 1:
        return cores()
    mine = affinity() if _pinned_apart(ranks, variable) else affinity() // ranks
    quota = cpu_quota()
    return max(1, mine if quota is None else min(mine, int(quota / ranks)))


def launcher_rank() -> tuple[int, int] | None:
    """Return (rank, world size) of torchrun, Open MPI, MPICH or srun, None if none of them started this process.

    Raises `OptionError` for variables that are invalid, contradictory or incomplete.
    """
    for rank, size in RANKS:
        if found := _pair(rank, size):
            return found
    found = _pair(SLURM_RANK[0], _slurm_size()) if _slurm_task() else None
    return found if found and found[1] > 1 else None


def local_ranks() -> int:
    """Return the number of ranks on this machine, 1 without a launcher. Raises as `launcher_rank`."""
    return _local_ranks()[0]


def cpu_quota() -> float | None:
    """Return the cores that the tightest control group grants, None without a limit."""
    limits = [quota_v2(group) for group in _own_groups("")]
    limits += [quota_v1(group) for group in _own_groups("cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit() -> int | None:
    """Return the bytes that the tightest control group grants, None without a limit."""
    return min((limit for limit, _ in _memory_limits()), default=None)


def free_memory() -> int:
    """Return the bytes that this process and its children can still use, on the machine and in control groups."""
    import psutil  # 20 ms, which the start of every command would pay

    unused = [max(0, limit - usage) for limit, usage in _memory_limits() if usage is not None]
    try:
        available = int(psutil.virtual_memory().available)
    except OSError:  # no /proc, as in some sandboxes; this counts no memory that caches could give back
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([available, *unused])


def _memory_limits() -> Iterator[tuple[int, int | None]]:
    """Yield limit and usage of each control group with a limit, in bytes."""
    for controller in _MEMORY_FILES:
        for group in _own_groups(controller):
            limit, usage = memory_of(group, controller)
            if limit is not None:
                yield limit, usage


def _pair(rank: str, size: str) -> tuple[int, int] | None:
    present = [name for name in (rank, size) if os.environ.get(name)]
    if not present:
        return None
    if len(present) == 1:
        missing = size if present[0] == rank else rank
        raise OptionError(f"{missing} is not set: expected it beside {present[0]}={os.environ[present[0]]}")
    world, number_of_rank = _whole(size, 1), _whole(rank, 0)
    if number_of_rank >= world:
        raise OptionError(f"{rank} must be below {size}={world}, found {rank}={number_of_rank}")
    return number_of_rank, world


def _whole(name: str, least: int) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise OptionError(f"{name} must be a whole number of at least {least}, found {name}={text!r}")
    return int(text)


def _slurm_task() -> bool:
    """Return whether srun started this as a task. Shells of sbatch, salloc and srun --pty have SLURM_NTASKS too."""
    step = os.environ.get("SLURM_STEP_ID", "")
    if not (step.isascii() and step.isdigit()) or int(step) >= _SLURM_NO_TASK or "SLURM_PTY_PORT" in os.environ:
        return False
    return bool(os.environ.get(SLURM_RANK[0]))


def _slurm_size() -> str:
    """Return the variable with the step's tasks; SLURM_NTASKS may be the whole job's."""
    return SLURM_RANK[1] if os.environ.get(SLURM_RANK[1]) else "SLURM_NTASKS"


def _local_ranks() -> tuple[int, str]:
    """Return the ranks on this machine, and a variable that is set in every rank, but not in the launcher."""
    for rank, size in _LOCAL_RANKS:
        if os.environ.get(size):
            pair = _pair(rank, size) if os.environ.get(rank) else None
            return (pair[1] if pair else _whole(size, 1)), size
    return (_slurm_tasks_here() if _slurm_task() else 1), SLURM_RANK[0]


def _slurm_tasks_here() -> int:
    counts = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE") or "1"
    node = os.environ.get("SLURM_NODEID") or "0"
    nodes: list[int] = []  # "4(x2),3": four on each of two machines, three on the last
    try:
        for part in counts.split(","):
            count, _, times = part.rstrip(")").partition("(x")
            nodes += [int(count)] * int(times or 1)
        return max(1, nodes[int(node)])
    except (ValueError, IndexError):
        raise OptionError(f"expected tasks per node as in 4(x2),3 for SLURM_NODEID={node}, found {counts!r}") from None


def _pinned_apart(ranks: int, variable: str) -> bool:
    """Return whether each rank has cores of its own. No rank sees the others' affinity, but two signs exclude it.

    The rank has the launcher's affinity; or the machine, the container or Slurm's allocation has too few cores for all
    ranks to have as many.
    """
    if not hasattr(os, "sched_getaffinity"):
        return False
    groups = [*_own_groups(""), *_own_groups("cpuset")]
    available = [os.cpu_count() or 1, *(cores for cores in map(_cpuset, groups) if cores)]
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "") if _slurm_task() else ""
    if allocated.isdigit():
        available.append(int(allocated))
    return affinity() * ranks <= min(available) and os.sched_getaffinity(0) != _launcher_affinity(variable)


def _launcher_affinity(variable: str) -> set[int]:
    """Return the affinity of the nearest ancestor without `variable`; wrappers around a rank have it."""
    import psutil

    try:
        for parent in psutil.Process().parents():
            with contextlib.suppress(psutil.AccessDenied):  # another user's process: Slurm's step daemon
                if variable in parent.environ():
                    continue
            return set(os.sched_getaffinity(parent.pid))
    except (psutil.Error, OSError):
        pass
    return set()  # the launcher is outside of this container


def _cpuset(group: Path) -> int | None:
    """Return the number of cores in a control group's cpuset, such as "0-3,8"; None without one."""
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        try:
            spans = [part.partition("-") for part in (group / name).read_text().strip().split(",")]
            return sum(int(last or first) - int(first) + 1 for first, _, last in spans)
        except (OSError, ValueError):
            continue
    return None


def _own_groups(controller: str) -> Iterator[Path]:
    return control_groups(_PROC_CGROUP, _CGROUPS, controller)


def control_groups(file: Path, mount: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of a process's control groups, innermost first, from its `/proc/<pid>/cgroup`.

    `controller` is "" for version 2. Yields nothing for a process outside of this container.
    """
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller not in names.split(","):
            continue
        roots = (mount / "unified", mount) if not controller else (mount / controller, mount / names)
        root = next((root for root in roots if root.is_dir()), None)
        if root is None or ".." in Path(path).parts:
            continue
        inner = root / path.lstrip("/")
        while inner != root and root in inner.parents:
            if inner.is_dir():  # in a container the path may be the host's; then the mount is the container's group
                yield inner
            inner = inner.parent
        yield root


def quota_v2(group: Path) -> float | None:
    """Return the cores that a control group of version 2 may use, None without a limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def quota_v1(group: Path) -> float | None:
    """Return the cores that a control group of version 1 may use, None without a limit."""
    quota, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def memory_of(group: Path, controller: str) -> tuple[int | None, int | None]:
    """Return a control group's limit and usage in bytes, None for those that it does not have."""
    limit, usage = (number(group / name) for name in _MEMORY_FILES[controller])
    return None if limit is None or limit >= _NO_LIMIT else limit, usage


def number(path: Path) -> int | None:
    """Return the whole number in a file, None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
