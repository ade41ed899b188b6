"""A folder like /proc, for states that a test cannot produce in a kernel, and live programs for the others."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from iofast.monitor.snapshot import Job

TRAIN = b"python\0train.py\0"


class ProcFolder:
    """Writes the files of processes like the kernel; an open file sees later changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def process(
        self,
        pid: int,
        name: str = "python",
        parent: int = 1,
        *,
        line: bytes = TRAIN,
        start: int = 100,
        state: str = "S",
    ) -> Path:
        folder = self.path / str(pid)
        (folder / "task").mkdir(parents=True, exist_ok=True)
        (folder / "cmdline").write_bytes(line)
        (folder / "io").write_text("rchar: 0\nwchar: 0\nread_bytes: 0\nwrite_bytes: 0\n")
        self.stat(folder, pid, name, parent, start=start, state=state)
        self.thread(pid, pid, name, parent, start=start, state=state)
        above = self.path / str(parent) / "task" / str(parent) / "children"
        if above.exists() and str(pid) not in above.read_text().split():
            above.write_text(above.read_text() + f"{pid} ")
        return folder

    def tree(self, *processes: tuple[int, str, int, bytes]) -> None:
        """Add processes by pid, name, parent and command line, parents first."""
        for pid, name, parent, line in processes:
            self.process(pid, name, parent, line=line)

    def thread(
        self, pid: int, tid: int, name: str, parent: int = 1, *, wchan: str = "0", start: int = 100, state: str = "S"
    ) -> Path:
        folder = self.path / str(pid) / "task" / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text(name + "\n")
        (folder / "wchan").write_text(wchan)
        (folder / "schedstat").write_text("0 0 0\n")
        (folder / "children").touch()
        self.stat(folder, tid, name, parent, start=start, state=state)
        return folder

    def stat(
        self, folder: Path, pid: int, name: str, parent: int = 1, *, start: int = 100, state: str = "S", ticks: int = 0
    ) -> None:
        fields = [state, parent, *[0] * 7, 0, 0, ticks, 0, 0, 0, 20, 0, 1, 0, start, *[0] * 30]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")

    def state(self, pid: int, state: str, wchan: str = "0") -> None:
        """Change the state of the process's main thread."""
        folder = self.path / str(pid) / "task" / str(pid)
        self.stat(folder, pid, "python", state=state)
        (folder / "wchan").write_text(wchan)

    def end_thread(self, pid: int, tid: int) -> None:
        (self.path / str(pid) / "task" / str(tid) / "stat").write_text("")
        shutil.rmtree(self.path / str(pid) / "task" / str(tid))

    def end(self, pid: int) -> None:
        """Remove the process; open files become empty."""
        for file in (self.path / str(pid)).rglob("stat"):
            file.write_text("")
        shutil.rmtree(self.path / str(pid))


def job(pid: int, start_time: int = 100) -> Job:
    return Job(pid, start_time, "python train.py")


@contextlib.contextmanager
def running(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A live Python program that has printed its first line; it is killed at the end, with its process group."""
    command = [sys.executable, "-c", textwrap.dedent(program), *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline(), "it ended before it said anything"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stdin.close()


def read_until(terminal: int, words: bytes, seen: bytes = b"") -> bytes:
    """Read a pseudo-terminal until `words` were on it; `seen` is what was read before."""
    end = time.monotonic() + 15
    while words not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
    assert words in seen
    return seen
