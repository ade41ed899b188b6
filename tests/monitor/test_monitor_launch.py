"""`iofast monitor -- PROGRAM`: the program has its terminal, streams, signals and status as it would without us."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from proc_folder import read_until

from iofast.monitor.launch import Program

# Runs a program beside itself as the command does, and ends as it does.
BESIDE = """
import os, sys
from iofast.monitor import launch
if "RECORD" in os.environ: os.kill = lambda pid, number: print("passed on", number, flush=True)
with launch.Program(sys.argv[1:]) as program:
    status = program.status()
if "NAMES" in os.environ: print("beside", os.getpid(), program.pid, flush=True)  # after the program's own lines
sys.exit(status)
"""
PYTHON = (sys.executable, "-S", "-c")
COUNTS = """
import os, signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
    signal.signal(number, lambda n, _: seen.append(n))
print("ready", os.getpid(), flush=True)
end = time.monotonic() + 10
while not seen and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.3)
print("seen", *map(int, seen), flush=True)
"""
# In the place of prctl: each call becomes a line, with the process that may be traced and its tracer.
PRCTL = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int prctl(int option, unsigned long tracer) {
  FILE *file = fopen(getenv("PRCTL_CALLS"), "a");
  if (file != NULL) { fprintf(file, "%x %ld allows %ld\\n", option, (long)getpid(), (long)tracer); fclose(file); }
  return 0;
}
"""


def beside(*program: str, **options: Any) -> subprocess.Popen[str]:
    """A process that runs `program` beside itself."""
    command = [sys.executable, "-c", BESIDE, *program]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **options)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(10)


def wait_for(pid: int, states: str) -> None:
    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    end = time.monotonic() + 5
    while state() not in states and time.monotonic() < end:
        time.sleep(0.01)
    assert state() in states


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", 143),
    ],
)
def test_its_exit_status_is_ours(code: str, status: int) -> None:
    with Program([*PYTHON, code]) as program:
        assert program.status() == status
    assert not Path(f"/proc/{program.pid}").exists()  # no zombie


def test_signals_and_group_are_as_without_us() -> None:
    code = (
        "import os; print(os.getpgrp(), *[l for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn'))])"
    )
    bare = subprocess.run([*PYTHON, code], capture_output=True, text=True, timeout=20, check=True).stdout.split()
    ours = beside(*PYTHON, code).communicate(timeout=20)[0].split()
    assert ours == bare


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_signal_for_us_is_passed_on_once(name: str) -> None:
    number = getattr(signal, name)
    process = beside(*PYTHON, COUNTS)
    assert line(process).startswith("ready")
    process.send_signal(number)
    assert line(process) == f"seen {int(number)}\n"
    assert ended(process) == 0


def test_ctrl_c_in_the_terminal_reaches_it_once() -> None:
    pid, leader = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", BESIDE, *PYTHON, COUNTS], os.environ | {"RECORD": "1"})
    seen = read_until(leader, b"ready")
    os.write(leader, b"\x03")
    seen = read_until(leader, b"seen 2\r\n", seen)
    assert b"passed on" not in seen
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(leader)


def test_stop_and_continue() -> None:
    """As a shell does it with a job in a process group of its own."""
    process = beside(*PYTHON, COUNTS, process_group=0)
    child = int(line(process).split()[1])
    for number, states in ((signal.SIGTSTP, "T"), (signal.SIGCONT, "SR")):
        process.send_signal(number)
        wait_for(process.pid, states)
        wait_for(child, states)
    process.terminate()
    assert line(process) == "seen 15\n"
    assert ended(process) == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in is compiled, and there is no cc")
def test_the_program_allows_us_to_look(tmp_path: Path) -> None:
    """It names us before it becomes the program: a right that survives an exec, but not a fork."""
    (tmp_path / "calls").touch()
    (tmp_path / "prctl.c").write_text(PRCTL)
    library = str(tmp_path / "prctl.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "prctl.c")], check=True)
    code = "import os; print('mine', os.getpid()); raise SystemExit(7)"
    environment = os.environ | {"LD_PRELOAD": library, "PRCTL_CALLS": str(tmp_path / "calls"), "NAMES": "1"}
    process = beside(*PYTHON, code, env=environment)
    mine, program, _, monitor, started = process.communicate(timeout=20)[0].split()
    assert (process.returncode, mine, program) == (7, "mine", started)
    calls = [each for each in (tmp_path / "calls").read_text().splitlines() if each.startswith("59616d61 ")]
    assert calls == [f"59616d61 {program} allows {monitor}"]
