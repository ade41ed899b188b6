"""`iofast doctor`: checks, advice, and broken libraries; the limits of control groups."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

from iofast import machine
from iofast.commands import doctor as checks
from iofast.monitor.probe import stacks


def test_output(iofast: CommandLine) -> None:
    status, text, _ = iofast("doctor")
    assert status == 0
    for word in ("kernel", "numpy", "lmdb", "torch", "cores", "free memory", "/dev/shm", "open files", "ptrace"):
        assert word in text
    facts = iofast("doctor", "--json").facts
    assert facts["version"] == 1
    groups = {"iofast", "libraries", "optional libraries", "GPU", "machine"}
    assert {each["group"] for each in facts["checks"]} == groups
    assert all(each["state"] in ("ok", "note", "missing", "broken") for each in facts["checks"])
    assert all(each["advice"] for each in facts["checks"] if each["state"] in ("missing", "broken"))
    assert iofast("doctor", "--quiet") == (0, "", "")


def test_missing_libraries(monkeypatch: pytest.MonkeyPatch, iofast: CommandLine) -> None:
    version = checks._version
    monkeypatch.setattr(checks, "_version", lambda name: "" if name in ("tqdm", "torch") else version(name))
    status, text, _ = iofast("doctor")
    assert status == 1
    assert "pip install tqdm" in text
    found = {check.name: check for check in checks.checks()}
    assert [found[name].state for name in ("tqdm", "torch", "CUDA")] == ["broken", "missing", "note"]
    assert {"pyarrow", "obstore", "ray", "py-spy"} <= found.keys()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
for statement in ("from iofast import FastLoader", "from iofast.loader import LoaderOptions"):
    try:
        exec(statement)
    except ImportError as error:
        print(error, file=sys.stderr)
from iofast.cli import main
sys.exit(main(["bench", "x"]))
"""


def test_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], stderr=subprocess.PIPE, text=True)
    words = "FastDataset and FastLoader need torch: pip install 'iofast[torch]'"
    assert done.stderr.splitlines() == [words, words, f"iofast bench: error: {words}"]
    assert done.returncode


def test_a_broken_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises
    found = [check for check in checks.checks() if check.name == "torch" and check.group == "GPU"]
    assert [check.state for check in found] == ["broken"]
    assert found[0].advice


def test_a_check_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> int:
        raise RuntimeError("no such\nthing")

    monkeypatch.setattr(machine, "cores", explode)
    broken = [check for check in checks.checks() if check.state == "broken"]
    assert [check.value for check in broken] == ["RuntimeError: no such"]


def test_without_the_native_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from iofast import kernel

    facts = {"backend": "pillow", "simd": "none", "libjpeg-turbo": None, "missing": "no compiler was there"}
    monkeypatch.setattr(kernel, "backend", "pillow")
    monkeypatch.setattr(kernel, "describe", lambda: facts)
    found = {check.name: check for check in checks.checks()}
    assert found["kernel"].state == "missing"
    assert "no compiler was there" in found["kernel"].value
    assert "apt-get install gcc python3-dev libjpeg-dev" in found["kernel"].advice
    assert "libjpeg-turbo" not in found


@pytest.mark.parametrize(
    ("scope", "capabilities", "state"),
    [("0", 0, "ok"), ("1", 0, "missing"), ("1", 1 << 19, "ok"), ("3", 1 << 19, "missing"), ("", 0, "ok")],
)
def test_ptrace(scope: str, capabilities: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "pyspy", lambda: "py-spy")
    monkeypatch.setattr(checks, "_first_line", lambda _: scope)
    monkeypatch.setattr(checks, "_effective_capabilities", lambda: capabilities)
    _, found, advice = checks._ptrace()
    assert found == state
    assert bool(advice) == (state == "missing")
    monkeypatch.setattr(stacks, "pyspy", lambda: None)
    assert "no stacks can be read, because py-spy is absent" in checks._ptrace()[0]


def put(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


class TestControlGroups:
    """The limits of control groups of both versions, from their files."""

    @pytest.fixture
    def tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
        monkeypatch.setattr(machine, "_PROC_CGROUP", tmp_path / "self")
        monkeypatch.setattr(machine, "affinity", lambda: 16)
        (tmp_path / "self").write_text("")
        return tmp_path

    def test_no_groups(self, tree: Path) -> None:
        assert (machine.cpu_quota(), machine.memory_limit(), machine.cores()) == (None, None, 16)
        (tree / "self").unlink()
        assert machine.cores() == 16

    def test_version_2_the_tightest_ancestor_counts(self, tree: Path) -> None:
        (tree / "self").write_text("0::/a/b\n")
        put(tree / "a/b", {"cpu.max": "max 100000", "memory.max": "max\n"})
        put(tree / "a", {"cpu.max": "250000 100000", "memory.max": "2000000000\n", "memory.current": "500000000"})
        put(tree, {"cpu.max": "800000 100000"})
        assert machine.cpu_quota() == 2.5
        assert machine.cores() == 3
        assert machine.memory_limit() == 2_000_000_000
        assert machine.free_memory() <= 1_500_000_000

    def test_version_1(self, tree: Path) -> None:
        (tree / "self").write_text("8:memory:/job\n4:cpu,cpuacct:/job\n0::/\n")
        put(tree / "cpu/job", {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"})
        put(tree / "memory/job", {"memory.limit_in_bytes": "1000000"})
        put(tree / "memory", {"memory.limit_in_bytes": str(1 << 62)})
        assert machine.cores() == 4
        assert machine.memory_limit() == 1_000_000

    @pytest.mark.parametrize("text", ["", "max", "x y", "100000 0"])
    def test_invalid_files(self, tree: Path, text: str) -> None:
        (tree / "self").write_text("0::/\n")
        put(tree, {"cpu.max": text})
        assert machine.cpu_quota() is None
