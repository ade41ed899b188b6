"""One worker as the packing process sees it: a process, its pipes, the chunks it was given."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from iofast.errors import WorkerError
from iofast.packing.frames import Frames, Message, encode


def default_command() -> tuple[str, ...]:
    """How a worker is started. -P: a `json.py` in the user's folder must not get into the worker."""
    if not sys.executable:
        raise WorkerError("this Python does not know its own executable, which the workers need")
    return (sys.executable, "-P", "-m", "iofast.packing.worker")


@dataclass(slots=True)
class ChunkJob:
    """A chunk to do: `images` as `sample.Image` rows. `skip` gives a reason for each image that kills workers.

    `suspects` are the positions of images that a worker had announced when it died: who dies on one again blames it.
    """

    chunk: int
    images: Sequence[tuple[object, ...]]
    careful: bool = False
    skip: dict[int, str] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)
    journal: Path = field(default_factory=Path)  # where its block goes: the worker's at the time that it was sent

    def message(self) -> Message:
        return {"chunk": self.chunk, "images": self.images, "careful": self.careful, "skip": self.skip}


class Forked:
    """A process that was forked, with what `Child` needs of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        """End it now; harmless once `wait` has returned."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = math.inf) -> int:
        """Its exit status. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        end, flags = time.monotonic() + timeout, 0 if timeout == math.inf else os.WNOHANG
        while self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # where SIGCHLD is ignored nobody learns the status: `subprocess` says 0, too
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked worker", timeout)
            else:
                time.sleep(0.005)
        return self.returncode


@dataclass(slots=True, eq=False)
class Child:
    """A worker process, its pipes not blocking. `unsent` is what its pipe had no room for."""

    process: subprocess.Popen[bytes] | Forked
    feed: IO[bytes]
    answers: IO[bytes]
    log: IO[bytes]  # its stderr; an unnamed file cannot fill up and block it as a pipe can
    journal: Path = field(default_factory=Path)
    jobs: deque[ChunkJob] = field(default_factory=deque)
    frames: Frames = field(default_factory=Frames)
    unsent: bytearray = field(default_factory=bytearray)
    told: bool = False  # the set-up
    ready: bool = False
    began: int | None = None  # the position it announced last, of a careful chunk
    silent: float = 0.0  # seconds

    def __post_init__(self) -> None:
        os.set_blocking(self.feed.fileno(), False)
        os.set_blocking(self.answers.fileno(), False)

    def send(self, message: Message) -> None:
        """Queue one frame; `flush` writes it."""
        self.unsent += encode(message)

    def flush(self) -> bool:
        """Write what the pipe takes; whether all was written. A broken pipe will show as the end of the answers."""
        try:
            while self.unsent:
                sent = os.write(self.feed.fileno(), self.unsent)
                del self.unsent[:sent]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.unsent.clear()
        return True

    def kill(self) -> None:
        """End it now; harmless if it has ended."""
        with contextlib.suppress(OSError):
            self.process.kill()

    def close(self) -> None:
        """Wait for the end of a killed process and give back what belonged to it."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a read that cannot be interrupted (a dead NFS server)
            self.process.wait(5)
        for stream in (self.feed, self.answers, self.log):
            with contextlib.suppress(OSError):
                stream.close()

    def last_words(self) -> str:
        """The last line it wrote to stderr."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4096))
        lines = self.log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def blame(self, cause: str, *, proven: bool) -> None:
        """It died on its first chunk, which is to be done image by image; one that took two workers is skipped.

        One death alone is not `proven` to be the image's fault: the kernel kills whom it likes when memory runs out.
        """
        job = self.jobs[0]
        job.careful = True
        if self.began is not None and (proven or self.began in job.suspects):
            job.skip[self.began] = f"the worker process died on this image ({cause})"
        elif self.began is not None:
            job.suspects.add(self.began)


def spawn(command: Sequence[str]) -> Child:
    """Start a worker. Raises `WorkerError`."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    try:
        process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            bufsize=0,
        )
    except OSError as error:
        log.close()
        raise WorkerError(f"a worker cannot be started: {error.strerror}: {command[0]}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    return Child(process, process.stdin, process.stdout, log)


def can_fork() -> bool:
    """Whether a copy of this process is as good as a new worker: no other thread holds a lock that it would need.

    Imports what workers need, for all of them, and looks again: libraries may start threads.
    """
    if not _alone():
        return False
    importlib.import_module("iofast.packing.worker")
    return _alone()


def _alone() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # no /proc is mounted
        return False


def fork() -> Child:
    """Start a worker as a copy of this process, which spares it the imports: 0.15 s of CPU. Raises `WorkerError`."""
    from iofast.packing import worker

    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    orders, feed = os.pipe()
    answers, said = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        for fd in (orders, feed, answers, said):
            os.close(fd)
        log.close()
        raise WorkerError(f"a worker cannot be started: {error.strerror}: fork") from error
    if not pid:
        status = 1
        try:
            # first out of the way of what they are to be: a parent without standard streams has pipes in their places
            fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for fd in (orders, said, log.fileno())]
            for place, fd in enumerate(fds):
                os.dup2(fd, place)
            os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))  # the other workers' pipes among them
            status = worker.main(parent)
        except BaseException:  # nothing of the parent's may run here, not even its handlers of errors
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(orders)
    os.close(said)
    return Child(Forked(pid), os.fdopen(feed, "wb", 0), os.fdopen(answers, "rb", 0), log)


def cause_of_death(code: int) -> str:
    """What an exit status of `subprocess` means."""
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    return f"{name}, perhaps for lack of memory" if name == "SIGKILL" else name


def _environment() -> dict[str, str]:
    """Ours, with iofast found where we found it even if that is a checkout and not among installed packages."""
    home = Path(__file__).resolve().parents[2]
    # a worker multiplies no matrices: NumPy's BLAS would start a thread per core only to spin
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **os.environ}
    if home.name not in ("site-packages", "dist-packages"):  # those stay behind the standard library
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
    return environment
