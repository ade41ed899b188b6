"""Object stores in forked and new processes, interrupts, and what is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from at_once import eventually, in_child
from object_store import Bucket, Fault, FaultProxy
from test_pack_remote import photos, write
from todays import todays

from iofast.errors import StateError
from iofast.remote.store import Store

PROGRAM = """
import multiprocessing, sys
from iofast.remote.store import Store

def read(_=None):
    return Store.of(sys.argv[1]).get("x")

if __name__ == "__main__":
    read()
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        print(pool.map(read, range(2))[0].decode())
"""


@pytest.mark.parametrize("method", todays(["spawn", "forkserver"]))
def test_new_processes(bucket: Bucket, tmp_path: Path, method: str) -> None:
    bucket.put("p/x", b"hello")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), f"s3://{bucket.name}/p", method]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "hello\n"


def test_a_fork_of_a_process_that_has_used_stores_says_so(bucket: Bucket) -> None:
    """It would wait for ever."""
    bucket.put("p/x", b"hello")
    store = Store.of(f"s3://{bucket.name}/p")
    assert store.get("x") == b"hello"

    def refused() -> bool:
        with pytest.raises(StateError, match="object stores cannot be used in a fork of a process that has used them"):
            store.get("x")
        return True

    assert in_child(refused) == 0


def test_the_exit_waits_for_threads_that_deliver_answers(bucket: Bucket) -> None:
    """Such a thread, unknown to `threading`, aborts the process if it wants to go on after the interpreter's end."""
    bucket.put("p/x", b"hello")
    program = (
        "import _thread, sys, time\n"
        "from iofast.remote import requests\n"
        "from iofast.remote.store import Store\n"
        "store = Store.of(sys.argv[1])\n"
        "store.get('x')\n"
        "open_requests = [requests.start(store.fetch('x')) for _ in range(50)]\n"
        "def deliver():\n"
        "    time.sleep(0.3)\n"
        "    print('delivered')\n"
        "_thread.start_new_thread(deliver, ())\n"
    )
    command = [sys.executable, "-c", program, f"s3://{bucket.name}/p"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "delivered\n", "")


def _pack(url: str, target: Path, before: str = "") -> subprocess.Popen[str]:
    program = f"{before}\nimport sys\nfrom iofast.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "pack", url, str(target), "--resize", "24", "--workers", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("used", [False, True])
def test_the_command_forks_before_stores_are_used(bucket: Bucket, tmp_path: Path, used: bool) -> None:
    """Where they were used before, it has threads, and its workers are new processes."""
    url = bucket.upload(write(tmp_path / "images", photos(70)), "p")
    before = f"from iofast.remote.store import Store\nStore.of({url!r}).get('000.jpg')" if used else ""
    run = _pack(url, tmp_path / "out.lmdb", before)
    out, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    assert "packed 70 images" in out


@pytest.mark.parametrize("during", ["listing", "reading"])
def test_an_interrupt_ends_a_wait(bucket: Bucket, proxy: FaultProxy, tmp_path: Path, during: str) -> None:
    url = bucket.upload(write(tmp_path / "images", photos(70)), "p")
    proxy.plan = lambda request: Fault(delay=300) if during == "listing" or "/p/03" in request.path else None
    run = _pack(url, tmp_path / "out.lmdb")
    part = "list-type" if during == "listing" else "/p/03"
    assert eventually(lambda: proxy.count("GET", part) > 0, 60)
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)  # long before the answer
    assert run.returncode == 130
    assert "Traceback" not in errors


def test_without_obstore(tmp_path: Path) -> None:
    program = "import sys\nsys.modules['obstore'] = None\nfrom iofast.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "pack", "s3://bucket/p", str(tmp_path / "out.lmdb")]
    run = forked.run(command)
    assert run.returncode == 2
    assert "s3://bucket needs obstore: pip install 'iofast[remote]'" in run.stderr
