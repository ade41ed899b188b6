"""Workers that are forks of the packing process."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import forked
import pytest
from folder_images import few

from iofast.packing.child import can_fork, start_worker
from iofast.packing.pool import WorkerPool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are always new processes")

ALONE = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # without threads of NumPy, so that the process may fork
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
    if image.position == 3 and behaviour == "ends":
        os.kill(os.getpid(), signal.SIGSEGV)
    if image.position == 7 and behaviour == "ends":
        print("a library prints")
        raise SystemExit("out of the loop")
    return real(sample, *rest)
worker.make_record = make_record

class Noting(PackProgress):
    def step(self, *_):
        seen.update({each.pid: each.is_fork for each in pool._workers})

seen = {}
with open(deaths, "w") as file, WorkerPool(2, fork=True) as pool:
    started = [each.is_fork for each in pool._workers]
    report = run(source, target, PackOptions(max_errors=0), Noting(), pool)
    print(json.dumps([started, sorted(set(seen.values())), report.packed, report.failed]))
"""


def packing(tmp_path: Path, behaviour: str) -> tuple[list[object], str]:
    """Run in a process of its own. Return its workers at the start and later, images packed and failed, and stderr."""
    source = few(tmp_path / "images", good=12)
    files = source, tmp_path / "out.lmdb", tmp_path / "deaths"
    ended = forked.run([sys.executable, "-c", PACKING, *map(str, files), behaviour], timeout=120, check=True)
    return json.loads(ended.stdout), ended.stderr


def test_workers_are_forks_and_do_the_same(tmp_path: Path) -> None:
    assert packing(tmp_path, "works") == ([[True, True], [True], 12, 0], "")


def test_a_dead_fork_is_replaced_by_a_new_process(tmp_path: Path) -> None:
    """One is killed, another leaves its loop. A new process lacks the patch of this program, and what forks print is
    not the parent's output."""
    (started, seen, packed, failed), errors = packing(tmp_path, "ends")
    assert started == [True, True]
    assert False in seen  # type: ignore[operator]
    assert (packed, failed, errors) == (12, 0, "")


def test_the_command_forks(tmp_path: Path) -> None:
    program = (
        "import sys; from iofast.packing import pool; from iofast.cli import main; real = pool.WorkerPool.start\n"
        "def start(self): real(self); print([each.is_fork for each in self._workers])\n"
        "pool.WorkerPool.start = start; sys.exit(main())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    words = ["pack", str(few(tmp_path / "images", good=3)), str(tmp_path / "a.lmdb"), "--workers=2", "--quiet"]
    assert subprocess.check_output([sys.executable, "-c", program, *words], env=environment) == b"[True, True]\n"


def test_beside_another_thread_they_are_new_processes() -> None:
    """The thread may hold a lock, which would stay locked in a fork."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with WorkerPool(1, fork=True) as pool:
            assert not pool._workers[0].is_fork
    finally:
        end.set()
        thread.join()


def test_without_proc_they_are_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr("iofast.packing.child.os.listdir", missing)
    assert not can_fork()


def test_a_parent_without_standard_streams(tmp_path: Path) -> None:
    """A daemon: its first pipes are descriptors 0, 1 and 2."""
    source = few(tmp_path / "images", good=3)
    command = [sys.executable, "-m", "iofast", "pack", str(source), str(tmp_path / "a.lmdb"), "--workers=2", "--quiet"]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], timeout=120, check=True, env=ALONE)


def test_wait_ends_after_its_timeout() -> None:
    process = start_worker((sys.executable, "-c", "import time; time.sleep(60)"))
    assert process.wait(0.01) is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.close()
