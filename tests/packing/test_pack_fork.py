"""Workers that are copies of the packing process: the same work, the same deaths, and nothing of the parent's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from folder_images import few

from iofast.packing.child import Forked, can_fork
from iofast.packing.pool import WorkerPool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are always new processes")

PACKING = """
import json, os, signal, sys
from pathlib import Path
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing import PackOptions, worker
from iofast.packing.run import run

source, target, deaths, behaviour = sys.argv[1:]
real = worker.make_record
def make_record(sample, *rest):
    image = sample.image
    if image.position == 3 and behaviour == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if image.position == 3 and behaviour == "raises":
        print("a library prints")
        raise SystemExit("out of the loop")
    return real(sample, *rest)
worker.make_record = make_record

class Noting(PackProgress):
    def step(self, *_):
        seen.update({each.process.pid: type(each.process).__name__ for each in pool._workers})

seen = {}
with open(deaths, "w") as file, WorkerPool(2, fork=True) as pool:
    started = [type(each.process).__name__ for each in pool._spare]
    report = run(source, target, PackOptions(max_errors=0), Noting(), pool)
    print(json.dumps([started, sorted(set(seen.values())), report.packed, report.failed]))
"""


def packing(tmp_path: Path, behaviour: str, **environment: str) -> tuple[list[object], str]:
    """What a run says in a process of its own: the processes at its start and later, and what became of the images."""
    source = few(tmp_path / "images", good=12)
    command = [
        sys.executable,
        "-c",
        PACKING,
        str(source),
        str(tmp_path / "out.lmdb"),
        str(tmp_path / "deaths"),
        behaviour,
    ]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=alone)
    return json.loads(ended.stdout), ended.stderr


def test_workers_are_copies_and_do_the_same(tmp_path: Path) -> None:
    assert packing(tmp_path, "works") == ([["Forked", "Forked"], ["Forked"], 12, 0], "")


@pytest.mark.parametrize("behaviour", ["dies", "raises"])
def test_one_that_dies_is_replaced_by_a_new_process(tmp_path: Path, behaviour: str) -> None:
    """Which does not know of what the copies were made to do; what they wrote is not the parent's output."""
    (started, seen, packed, failed), errors = packing(tmp_path, behaviour)
    assert started == ["Forked", "Forked"]
    assert "Popen" in seen  # type: ignore[operator]
    assert (packed, failed, errors) == (12, 0, "")


def test_the_command_forks(tmp_path: Path) -> None:
    """Its workers have its own command line; started anew they would have the worker's."""
    source = few(tmp_path / "images", good=3)
    program = "import sys; from iofast.packing import pool; from iofast.cli import main\n"
    program += "real = pool.WorkerPool.start\n"
    program += "def start(self): real(self); print([type(each.process).__name__ for each in self._spare])\n"
    program += "pool.WorkerPool.start = start; sys.exit(main())"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [
        sys.executable,
        "-c",
        program,
        "pack",
        str(source),
        str(tmp_path / "a.lmdb"),
        "--workers",
        "3",
        "--quiet",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert ended.stdout == "['Forked', 'Forked', 'Forked']\n"


def test_beside_another_thread_they_are_new_processes() -> None:
    """It may hold a lock that no copy would ever get."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with WorkerPool(1, fork=True) as pool:
            assert isinstance(pool._spare[0].process, subprocess.Popen)
    finally:
        end.set()
        thread.join()


def test_without_proc_they_are_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr("iofast.packing.child.os.listdir", missing)
    assert not can_fork()


def test_a_parent_without_standard_streams(tmp_path: Path) -> None:
    """As a daemon is: its first pipes are descriptors 0, 1 and 2."""
    source = few(tmp_path / "images", good=3)
    command = [
        sys.executable,
        "-m",
        "iofast",
        "pack",
        str(source),
        str(tmp_path / "a.lmdb"),
        "--workers",
        "2",
        "--quiet",
    ]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    subprocess.run(closed, timeout=120, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})


def copy_of(program: str) -> Forked:
    """Some child of this process: by os.fork it would be one with pytest's threads missing."""
    return Forked(os.posix_spawn(sys.executable, [sys.executable, "-c", program], dict(os.environ)))


@pytest.mark.parametrize("code", [0, 7, -signal.SIGSEGV])
def test_a_copy_says_how_it_ended(code: int) -> None:
    copy = copy_of(f"import os; os.kill(os.getpid(), {-code}) if {code} < 0 else os._exit({code})")
    assert copy.wait() == copy.wait(1) == code
    copy.kill()


def test_waiting_for_a_copy_ends() -> None:
    copy = copy_of("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        copy.wait(0.01)
    copy.kill()
    assert copy.wait(60) == -signal.SIGKILL
