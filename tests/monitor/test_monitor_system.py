"""The machine as a job has it: cores, quotas of both kinds of control groups, disks, memory; open files."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proc_folder import ProcFolder, job

from iofast.monitor.probe import machine_facts
from iofast.monitor.probe.data_folders import DataFolders
from iofast.monitor.probe.machine_facts import SystemProbe
from iofast.monitor.snapshot import Job


def put(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


class Machine:
    """A folder like /proc, one like /sys/fs/cgroup, and what psutil tells; the job is this process."""

    times: list[Any]
    disks: Any

    def __init__(self, proc: ProcFolder, folder: Path) -> None:
        self.pid = os.getpid()
        self.proc, self.groups = proc, folder / "cgroup"
        self.proc.process(self.pid)
        self.groups.mkdir()
        self.cores = sorted(os.sched_getaffinity(0))
        self.set()

    def set(self, *, idle: float = 0.0, read: int = 0) -> None:
        """`idle`: seconds of each core, a quarter of them waiting for a disk; `read`: bytes."""
        self.times = [SimpleNamespace(idle=0.75 * idle, iowait=0.25 * idle) for _ in range(max(self.cores) + 2)]
        self.disks = SimpleNamespace(read_bytes=read)

    def group(self, line: str, folder: str, **files: str) -> Path:
        """Put the job into a group whose folder has these files."""
        with (self.proc.path / str(self.pid) / "cgroup").open("a") as file:
            file.write(line + "\n")
        put(self.groups / folder, files)
        return self.groups / folder

    def probe(self) -> SystemProbe:
        return SystemProbe(job(self.pid))


@pytest.fixture
def machine(proc: ProcFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(machine_facts, "_CGROUPS", tmp_path / "cgroup")
    made = Machine(proc, tmp_path)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: made.times)
    monkeypatch.setattr("psutil.disk_io_counters", lambda nowrap: made.disks)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=50 << 10))
    return made


def test_differences(machine: Machine) -> None:
    probe, count = machine.probe(), len(machine.cores)
    machine.set(idle=1.0, read=2000)
    figures = probe.take(2.0)
    assert figures.cores == count
    assert figures.idle_cores == pytest.approx(count / 2)
    assert (figures.disk_read_bytes, figures.memory_available) == (2000, 50 << 10)
    assert (probe.take(2.0).idle_cores, probe.take(2.0).disk_read_bytes) == (0, 0)
    machine.disks = None  # in some containers
    assert probe.take(2.0).disk_read_bytes is None


def test_quota_of_version_2(machine: Machine) -> None:
    """The job's own group, and those above it; not this process's."""
    memory = {"memory.max": "20480\n", "memory.current": "16384\n", "memory.stat": "anon 1\ninactive_file 4096\n"}
    group = machine.group("0::/user/job", "user/job", **memory, **{"cpu.max": "max 100000\n"})
    stat = "usage_usec {}\nnr_throttled 7\nthrottled_usec {}\n"
    above = {"cpu.max": "50000 100000\n", "cpu.stat": stat.format(0, 1_000_000)}
    put(group.parent, above)
    probe = machine.probe()
    (group.parent / "cpu.stat").write_text(stat.format(300_000, 1_700_000))
    machine.set(idle=1_000_000)
    figures = probe.take(1.0)
    assert figures.cores == 0.5
    assert figures.idle_cores == pytest.approx(0.2)  # what the quota leaves, however idle the machine is
    assert figures.throttled_s == pytest.approx(0.7)
    assert figures.memory_available == 8192


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_quota_of_version_1(machine: Machine, mount: str) -> None:
    used = {"cpu.stat": "nr_throttled 0\nthrottled_time 0\n", "cpuacct.usage": "0"}
    quota = {"cpu.cfs_quota_us": "75000", "cpu.cfs_period_us": "100000"}
    group = machine.group("4:cpu,cpuacct:/job", f"{mount}/job", **quota, **used)
    put(group.parent, quota | {"cpu.cfs_quota_us": "-1"})
    memory = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "1"}
    machine.group("5:memory:/job", "memory/job", **memory)
    probe = machine.probe()
    put(group, {"cpu.stat": "nr_throttled 3\nthrottled_time 250000000\n", "cpuacct.usage": "500000000"})
    machine.set(idle=1_000_000)
    figures = probe.take(1.0)
    assert (figures.cores, figures.throttled_s) == (0.75, 0.25)
    assert figures.idle_cores == pytest.approx(0.25)
    assert figures.memory_available == 50 << 10


def test_a_group_that_is_the_hosts(machine: Machine) -> None:
    """In a container the path names nothing; what is mounted is the container's own group."""
    machine.group("0::/kubepods/pod1/abc", "", **{"cpu.max": "150000 100000"})
    machine.group("3:cpu:/../../elsewhere", "cpu")
    assert machine.probe().take(1.0).cores == min(1.5, len(machine.cores))


def test_other_programs(machine: Machine) -> None:
    """They use what neither idles nor is the job's, its ended children's included, or the monitor's."""
    proc, ticks = machine.proc, os.sysconf("SC_CLK_TCK")
    count, job_pid = len(machine.cores), machine.pid
    proc.process(job_pid, parent=5)
    for pid, parent in ((5, 1), (6, 5), (11, job_pid), (20, 1), (21, 1)):
        proc.process(pid, parent=parent)
    both = {of: SystemProbe(Job(job_pid, 100, "", *of), scan_s=0.0) for of in ((), (0, 2))}
    used_by = ((11, "worker", job_pid, 20), (6, "rank", 5, 10), (20, "cc1", 1, 50), (21, "ls", 1, 1))
    for pid, name, parent, used in used_by:
        proc.stat(proc.path / str(pid), pid, name, parent, ticks=used * ticks // 100)
    of_job, of_rank = (probe.take(1.0) for probe in both.values())
    assert of_job.other_cores == pytest.approx(count - 0.2)
    assert of_rank.other_cores == pytest.approx(count - 0.3)
    assert of_job.busiest == (None if count > 2 else "pid 20, cc1, and others")
    before_a_scan = both[0, 2]
    before_a_scan._due_at = float("inf")
    proc.stat(proc.path / "20", 20, "cc1", state="Z")
    assert before_a_scan.take(1.0).busiest is None, "it has ended"
    machine.set(idle=100)
    assert both[()].take(1.0).other_cores == 0


# --- where the data lies


def open_in(proc: ProcFolder, pid: int, number: int, path: Path) -> None:
    descriptors = proc.path / str(pid) / "fd"
    descriptors.mkdir(exist_ok=True)
    (descriptors / str(number)).symlink_to(path)


def data(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


@pytest.fixture
def files(proc: ProcFolder) -> DataFolders:
    """Of process 10, which has the machine's files."""
    (proc.process(10) / "root").symlink_to("/")
    return DataFolders()


def test_open_files(proc: ProcFolder, tmp_path: Path) -> None:
    proc.process(10)
    proc.process(11)
    open_in(proc, 10, 3, data(tmp_path / "data" / "train.lmdb" / "data.mdb"))
    open_in(proc, 10, 4, data(tmp_path / "site-packages" / "x" / "a.bin"))
    open_in(proc, 10, 5, tmp_path / "data")
    open_in(proc, 10, 6, Path("socket:[123]"))
    open_in(proc, 10, 7, data(tmp_path / "train.log"))
    open_in(proc, 10, 8, tmp_path / "gone.jpg (deleted)")
    for number, name in enumerate(("cat", "dog", "eel")):
        open_in(proc, 11, number, data(tmp_path / "images" / name / "1.jpg", 100 * (number + 1)))
    files = DataFolders()
    assert files.folder is None
    files.glimpse([10])
    assert files.folder == str(tmp_path / "data" / "train.lmdb")
    for _ in range(4):
        files.glimpse([10, 11])
    for _ in range(9):
        files._turn = 0
        files.glimpse([10])  # its container is seen more often; what can be packed comes first
    assert files.folder in {str(tmp_path / "images" / name) for name in ("cat", "dog", "eel")}
    assert files.image_bytes == 200
    files.glimpse([])
    files.glimpse([999])


def test_the_folder_of_all_images(proc: ProcFolder, files: DataFolders, tmp_path: Path) -> None:
    """Source or command name it: one image of one class was seen open, and a class would lose the others."""
    root, runs = str(tmp_path / "images"), str(tmp_path / "runs")
    image = data(tmp_path / "images" / "n03" / "3.JPEG")
    open_in(proc, 10, 3, image)
    files.glimpse([10])
    assert files.image_root(root) == files.image_root(runs, [root]) == files.image_root("", ["/", root, runs]) == root
    assert files.image_root("") is files.image_root(runs) is None


@pytest.mark.parametrize("depth", ["images", "images/train"])
def test_the_root_where_no_image_was_seen_open(
    proc: ProcFolder, files: DataFolders, tmp_path: Path, depth: str
) -> None:
    """A file may be open for a millisecond; what source or command name, and has classes or splits, is the root."""
    for name in ("train/cat", "train/dog", "val/cat", "val/dog"):
        data(tmp_path / "images" / name / "1.JPEG")
    data(tmp_path / "runs" / "samples" / "1.png")
    root, runs = str(tmp_path / depth), str(tmp_path / "runs")
    files.glimpse([10])
    assert files.image_root(root, [runs]) == files.image_root("", [runs, root, "/nowhere"]) == root
    assert files.image_root(runs, [root]) is None
    assert files.image_root("", [root, str(tmp_path / "images" / "val")]) is None  # either may be meant
    open_in(proc, 10, 3, data(tmp_path / "train.lmdb"))
    files.glimpse([10])
    assert files.image_root(root) is None  # a container is read


def test_open_files_stay_few(
    proc: ProcFolder, files: DataFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iofast.monitor.probe.data_folders._FOLDERS", 4)
    for number in range(9):
        open_in(proc, 10, number, data(tmp_path / str(number) / "1.jpg"))
    files.glimpse([10])
    assert len(files._seen) <= 4
