"""What this process may use of the machine: cores and memory, after affinity and control groups had their say.

Several ranks on one machine share it, so this is also where the variables of launchers are read: who am I, of how many.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from iofast.errors import OptionError

_CGROUPS = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
_PROC = Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number near 2^63

# innermost first: srun may start mpirun, and mpirun torchrun, and the variables of all are there
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_LOCAL_RANKS = (  # of one machine
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_SLURM_NO_TASK = 0xFFFFFFF0  # from here on: a batch script, an interactive shell, a step that is yet to start


def cores() -> int:
    """Cores this process may keep busy: its affinity, or less where a control group has a smaller quota."""
    quota = cpu_quota()
    return max(1, min(affinity(), affinity() if quota is None else math.ceil(quota)))


def affinity() -> int:
    """Cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of_rank() -> int:
    """Cores for each of the ranks on this machine, 1 at least; all of `cores()` where there is one.

    Ranks that the launcher pinned apart have their own; those that may run on the same cores share them. A control
    group's quota is always shared. Raises `OptionError` for a variable of a launcher that makes no sense.
    """
    ranks, variable = _local_ranks()
    if ranks == 1:
        return cores()
    mine = affinity() if _pinned_apart(ranks, variable) else affinity() // ranks
    quota = cpu_quota()
    return max(1, mine if quota is None else min(mine, int(quota / ranks)))


def launcher_rank() -> tuple[int, int] | None:
    """(rank, world size) as torchrun, Open MPI, MPICH or srun say in the environment; None = none of them started this.

    Raises `OptionError` for values that are no numbers, contradict each other, or of which one is missing.
    """
    for rank, size in _RANKS:
        if found := _pair(rank, size):
            return found
    found = _pair("SLURM_PROCID", _slurm_size()) if _slurm_task() else None
    return found if found and found[1] > 1 else None


def local_ranks() -> int:
    """Ranks on this machine, this one among them; 1 where no launcher started it. Raises as `launcher_rank` does."""
    return _local_ranks()[0]


def cpu_quota() -> float | None:
    """Cores' worth of time the tightest control group grants; None = no limit."""
    limits = [quota_v2(group) for group in _own_groups("")]
    limits += [quota_v1(group) for group in _own_groups("cpu")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit() -> int | None:
    """Bytes the tightest control group grants; None = no limit."""
    files = [group / "memory.max" for group in _own_groups("")]
    files += [group / "memory.limit_in_bytes" for group in _own_groups("memory")]
    limits = (number(path) for path in files)
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def free_memory() -> int:
    """Bytes this process and its children can still take: the machine's, or what is left of a control group's limit."""
    import psutil  # 20 ms, which the start of every command would pay

    free = int(psutil.virtual_memory().available)
    pairs = [(group / "memory.max", group / "memory.current") for group in _own_groups("")]
    pairs += [(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes") for group in _own_groups("memory")]
    for limit_file, usage_file in pairs:
        limit, usage = number(limit_file), number(usage_file)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            free = min(free, max(0, limit - usage))
    return free


def _pair(rank: str, size: str) -> tuple[int, int] | None:
    given = [name for name in (rank, size) if os.environ.get(name)]
    if not given:
        return None
    if len(given) == 1:
        missing = size if given[0] == rank else rank
        raise OptionError(f"{given[0]}={os.environ[given[0]]} is set and {missing} is not: they go together")
    world, found = _whole(size, 1), _whole(rank, 0)
    if found >= world:
        raise OptionError(f"{rank} must be below {size}={world}, found {rank}={found}")
    return found, world


def _whole(name: str, least: int) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise OptionError(f"{name} must be a whole number from {least} on, found {name}={text!r}")
    return int(text)


def _slurm_task() -> bool:
    """Whether srun started this as a task. A shell of sbatch, salloc, srun --pty has SLURM_NTASKS too, and is none."""
    step = os.environ.get("SLURM_STEP_ID", "")
    if not (step.isascii() and step.isdigit()) or int(step) >= _SLURM_NO_TASK or "SLURM_PTY_PORT" in os.environ:
        return False
    return bool(os.environ.get("SLURM_PROCID"))


def _slurm_size() -> str:
    """The step's tasks; SLURM_NTASKS can still be the whole job's."""
    return "SLURM_STEP_NUM_TASKS" if os.environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"


def _local_ranks() -> tuple[int, str]:
    """Ranks on this machine, and the variable that every one of them has and their launcher has not."""
    for rank, size in _LOCAL_RANKS:
        if os.environ.get(size):
            pair = _pair(rank, size) if os.environ.get(rank) else None
            return (pair[1] if pair else _whole(size, 1)), size
    return (_slurm_tasks_here() if _slurm_task() else 1), "SLURM_PROCID"


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
    """Whether each rank has cores of its own. No rank sees the others', but two signs say that it has not.

    The cores are those of the program that started the ranks, so nobody chose them for this one; or so many that the
    machine, the container or Slurm's allocation has not enough for all the ranks.
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
    """Of the nearest process above this one without `variable`: wrappers between a rank and its launcher have it."""
    pid = os.getppid()
    try:
        while any(word.startswith(f"{variable}=".encode()) for word in _proc(pid, "environ").split(b"\0")):
            pid = int(_proc(pid, "stat").rpartition(b")")[2].split()[1])
    except PermissionError:
        pass  # another user's, so no rank: Slurm's own step daemon
    except OSError:
        return set()  # outside of this container
    try:
        return set(os.sched_getaffinity(pid))
    except OSError:
        return set()


def _proc(pid: int, name: str) -> bytes:
    return (_PROC / str(pid) / name).read_bytes()


def _cpuset(group: Path) -> int | None:
    """Cores of a control group's set, such as "0-3,8"; None where it has none."""
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
    """Folders of a process's control groups, innermost first, by its `/proc/<pid>/cgroup`.

    `controller` is "" for version 2. Nothing where the process lies outside of what this container sees.
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
            if inner.is_dir():  # in a container the path can be the host's; the mount is then the container's own group
                yield inner
            inner = inner.parent
        yield root


def quota_v2(group: Path) -> float | None:
    """Cores that a control group of version 2 may use; None without a limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def quota_v1(group: Path) -> float | None:
    """The same of version 1."""
    quota, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def number(path: Path) -> int | None:
    """The whole number in a file; None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
