"""The guard among others: whoever has a handler for SIGBUS, and whatever else raises it, fares as without the guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_images import native
from places import SUPPORT

pytestmark = pytest.mark.skipif(
    native is None or sys.platform != "linux", reason="only the native kernel maps, on Linux"
)

OWN = """
import faulthandler, mmap, os, signal, sys, threading
import numpy as np
from test_kernel_guard import ROWS, SIZE, images, looked_at
from kernel_images import native
from raw_images import raw_batch, run, whole
from iofast.kernel.contract import Kind

payloads, caught = images(Kind.RGB), []
fd = os.memfd_create("own")
os.write(fd, b"".join(payloads))
source = raw_batch(Kind.RGB, payloads, [SIZE] * ROWS).source
source = (np.full(ROWS, fd, np.int32), np.cumsum(source[2]) - source[2], *source[2:])

def map():
    return native.map_file(fd, os.fstat(fd).st_size)

def decode():
    status, pixels = run(native, source, [whole(*SIZE)] * ROWS)
    for row in range(ROWS):
        wanted = np.frombuffer(payloads[row], np.uint8) * (status[row] == 0)
        assert (pixels[row].reshape(-1) == wanted).all()
    return "".join(str(each) for each in status)

def cut():
    os.ftruncate(fd, os.fstat(fd).st_size // 2)
    return decode()

def show(*what):
    print(*what, flush=True)

def die():
    other = os.memfd_create("other")
    os.ftruncate(other, 4096)
    seen = mmap.mmap(other, 4096, prot=mmap.PROT_READ)
    os.ftruncate(other, 0)
    seen[0]

def note(*_):
    caught.append(1)

def send():
    os.kill(os.getpid(), signal.SIGBUS)
"""

LOOKED = "kept = map(); show(decode(), looked_at(fd) > 0, cut());"
READ = "show(decode(), looked_at(fd) > 0, cut());"
SEEN, UNSEEN, KILLED = "00000000 True 00002222\n", "00000000 False 00002222\n", -signal.SIGBUS
CASES = {  # what a process does, how it ends, what it prints, and what it says as it dies
    "a fault elsewhere": (LOOKED + "die()", KILLED, SEEN, ""),
    "a signal that was sent": (LOOKED + "send(); show('alive')", KILLED, SEEN, ""),
    "a fault elsewhere, with faulthandler": ("faulthandler.enable();" + LOOKED + "die()", KILLED, SEEN, "Bus error"),
    "a fault elsewhere, ignored": ("signal.signal(7, signal.SIG_IGN);" + LOOKED + "send(); die()", KILLED, SEEN, ""),
    "an earlier handler": ("signal.signal(7, note);" + LOOKED + "send(); show(caught)", 0, SEEN + "[1]\n", ""),
    "a later handler": (
        "kept = map(); signal.signal(7, note);" + READ + "send(); show(caught)",
        0,
        UNSEEN + "[1]\n",
        "",
    ),
    "a later faulthandler": ("kept = map(); faulthandler.enable();" + READ + "die()", KILLED, UNSEEN, "Bus error"),
    "a later handler that has gone": (
        "kept = map(); faulthandler.enable(); faulthandler.disable();" + READ,
        0,
        SEEN,
        "",
    ),
    "a blocked signal": ("kept = map(); signal.pthread_sigmask(signal.SIG_BLOCK, [7]);" + READ, 0, UNSEEN, ""),
    "another thread": (
        "kept = map(); t = threading.Thread(target=lambda: exec(READ)); t.start(); t.join()",
        0,
        SEEN,
        "",
    ),
    "a map of a handler that has gone": (
        "kept = map(); signal.signal(7, signal.SIG_DFL); show(map())",
        0,
        "None\n",
        "",
    ),
    "a fork": (
        "kept = map(); show(decode()); child = os.fork()\n"
        "if not child:\n    show(looked_at(fd) >= 0, cut()); os._exit(0)\n"
        "show(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), decode(), looked_at(fd))",
        0,
        "00000000\nTrue 00002222\n0 00002222 0\n",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_whoever_else_has_to_do_with_the_signal(name: str) -> None:
    what, ends, prints, says = CASES[name]
    done = _run(f"{OWN}\nREAD = {READ!r}\n{what}")
    assert (done.returncode, done.stdout) == (ends, prints), done.stderr
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A sanitizer's own handler would report the signal, and is as good as any: it is told not to."""
    paths = [str(SUPPORT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | own)


CUT = """
def use(checked, end):
    crcs = raw_batch(Kind.RGB, payloads, [SIZE] * ROWS, checked=True).source[3] if checked else None
    strips = np.array([strips_of(Kind.RGB, data, *SIZE) for data in payloads]) if checked else None
    own = (*source[:3], crcs, *source[4:6], strips)
    while True:
        status, pixels = run(native, own, [whole(*SIZE)] * ROWS)
        for row in range(ROWS):
            wanted = np.frombuffer(payloads[row], np.uint8) * (status[row] == 0)
            assert status[row] in (0, 2) and (pixels[row].reshape(-1) == wanted).all(), (row, status)
        if any(status):
            break
    ended.append("".join(str(each) for each in status))

from raw_images import strips_of
from threading import Thread
ended, size, chance = [], os.fstat(fd).st_size, np.random.default_rng(0)
for left in chance.integers(0, size, 60).tolist() + list(range(0, size, 4096)):
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"".join(payloads), 0)
    kept = map()
    assert kept is not None
    threads = [Thread(target=use, args=(checked, ended)) for checked in (False, True, False)]
    for thread in threads:
        thread.start()
    threading.Event().wait(chance.random() * 0.002)
    os.ftruncate(fd, left)
    for thread in threads:
        thread.join()
    whole_rows = left // len(payloads[0])
    good = "0" * whole_rows + "2" * (ROWS - whole_rows)
    again = decode()
    assert again == good, (left, again)
print(len(ended))
"""


def test_a_file_that_is_cut_off_under_reading_threads() -> None:
    """Neither a signal nor a row of zeros: what a thread is given is the image, or that the file ends inside it."""
    done = _run(OWN + CUT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "234\n", "")
