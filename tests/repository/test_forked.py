"""Programs in forked processes end as in new interpreters: `tests/support/forked.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest

PROGRAMS = {
    "prints": ("print(input(), __name__, __import__('sys').argv)", 0),
    "exits": ("raise SystemExit(7)", 7),
    "says why": ("raise SystemExit('no')", 1),
    "fails": ("1 / 0", 1),
    "warns": ("import warnings; warnings.warn('once')", 1),
    "interrupted": ("raise KeyboardInterrupt", -signal.SIGINT),
    "killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "late": ("import atexit; atexit.register(print, 'late')", 0),
    "threads": ("import threading; threading.Timer(0.1, print, ['waited for']).start()", 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_new_interpreter(name: str, tmp_path: Path) -> None:
    program, status = PROGRAMS[name]
    command = [sys.executable, "-W", "error", "-c", program, "word"]
    ours = forked.run(command, input="given\n", cwd=tmp_path)
    theirs = subprocess.run(command, input="given\n", cwd=tmp_path, capture_output=True, text=True)
    assert ours.returncode == theirs.returncode == status
    assert ours.stdout == theirs.stdout
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:] or name == "interrupted"


def test_surroundings(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import beside, os, sys\nprint(os.getcwd(), os.environ['A'], beside.NAME, sys.argv[1])\n"
    )
    ended = forked.run([sys.executable, tmp_path / "script.py", "x"], env={**os.environ, "A": "b"}, cwd="/", check=True)
    assert ended.stdout == "/ b beside x\n"


def test_a_program_without_end() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "while True: pass"], timeout=0.2)
    assert forked.run([sys.executable, "-m", "iofast", "--version"]).stdout
