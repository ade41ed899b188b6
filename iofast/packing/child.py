"""A worker process, its pipes and its chunks, as the packing process sees them."""

import contextlib
import fcntl
import importlib
import math
import os
import signal
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
from iofast.packing.messages import Frames, Message, encode

PIPE = 1 << 20  # bytes that a worker's pipe holds


def default_command() -> tuple[str, ...]:
    """The command of a worker. -P keeps modules in the user's folder, such as `json.py`, from being imported."""
    if not sys.executable:
        raise WorkerError("workers cannot be started: sys.executable is empty")
    return (sys.executable, "-P", "-m", "iofast.packing.worker")


@dataclass(slots=True)
class ChunkJob:
    """A chunk of work: `images` as rows of `sample.Image`. `skip` maps images that kill workers to reasons.

    `suspects` are images that a worker had announced when it died; a second death proves the fault. Both by position.
    """

    chunk: int
    images: Sequence[tuple[object, ...]]
    careful: bool = False
    skip: dict[int, str] = field(default_factory=dict)
    suspects: set[int] = field(default_factory=set)

    def message(self) -> Message:
        return {"chunk": self.chunk, "images": self.images, "careful": self.careful, "skip": self.skip}


@dataclass(slots=True, eq=False)
class Child:
    """A worker process with non-blocking pipes. `unsent`: bytes for which its pipe had no room."""

    pid: int
    is_fork: bool
    feed: IO[bytes]
    answers: IO[bytes]
    log: IO[bytes]  # its stderr; unlike a pipe, a file cannot fill up and block the worker
    jobs: deque[ChunkJob] = field(default_factory=deque)
    frames: Frames = field(default_factory=Frames)
    unsent: bytearray = field(default_factory=bytearray)
    has_setup: bool = False
    ready: bool = False
    began: int | None = None  # the position that it announced last, in a careful chunk
    silent: float = 0.0  # seconds
    status: int | None = None  # its exit status, as `subprocess` gives it

    def __post_init__(self) -> None:
        os.set_blocking(self.feed.fileno(), False)
        os.set_blocking(self.answers.fileno(), False)
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or beyond a user's limit
            fcntl.fcntl(self.answers.fileno(), fcntl.F_SETPIPE_SZ, PIPE)

    def send(self, message: Message) -> None:
        """Queue one frame; `flush` writes it."""
        self.unsent += encode(message)

    def flush(self) -> bool:
        """Write as much as the pipe takes; return whether that was all. `answers` end when the pipe is broken."""
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
        """Kill the process, if it has not ended."""
        if self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = math.inf) -> int | None:
        """Wait for its exit status; None if it still runs after `timeout` seconds."""
        end, flags = time.monotonic() + timeout, 0 if timeout == math.inf else os.WNOHANG
        while self.status is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # SIGCHLD is ignored, so the status is unknown; `subprocess` returns 0, too
                pid, status = self.pid, 0
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                break
            else:
                time.sleep(0.005)
        return self.status

    def close(self) -> None:
        """Wait for a killed process and close its files."""
        self.wait(5)  # not longer: a read from a dead NFS server cannot be interrupted
        for stream in (self.feed, self.answers, self.log):
            with contextlib.suppress(OSError):
                stream.close()

    def last_line(self) -> str:
        """The last line that the worker wrote to stderr."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4096))
        lines = self.log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def blame(self, cause: str, *, proven: bool) -> None:
        """Prepare to repeat the chunk on which the worker died, image by image. Skip an image that killed two workers.

        One death alone proves nothing: when memory runs out, the kernel may kill any process.
        """
        job = self.jobs[0]
        job.careful = True
        if self.began is not None and (proven or self.began in job.suspects):
            job.skip[self.began] = f"the worker process died on this image ({cause})"
        elif self.began is not None:
            job.suspects.add(self.began)


def start_worker(command: Sequence[str] | None) -> Child:
    """Start a worker by a command, or for None by a fork, which saves the time of imports. Raises `WorkerError`."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    (orders, feed), (answers, results) = os.pipe(), os.pipe()
    # duplicates above 2: in a parent without standard streams the originals may be 0, 1 or 2
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (orders, results, log.fileno())]
    try:
        if command is None:
            pid = _fork(fds)
        else:
            streams = [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(fds)]
            pid = os.posix_spawn(command[0], [*command, str(os.getpid())], _environment(), file_actions=streams)
    except OSError as error:
        for fd in (feed, answers):
            os.close(fd)
        log.close()
        what = "fork" if command is None else command[0]
        raise WorkerError(f"a worker cannot be started: {error.strerror}: {what}") from error
    finally:
        for fd in (orders, results, *fds):
            os.close(fd)
    return Child(pid, command is None, os.fdopen(feed, "wb", 0), os.fdopen(answers, "rb", 0), log)


def can_fork() -> bool:
    """Whether this process may be forked: it has no other thread that could hold a lock.

    Import what workers need, once for all of them, and check again: libraries may start threads.
    """
    if not _has_one_thread():
        return False
    importlib.import_module("iofast.packing.worker")
    return _has_one_thread()


def _has_one_thread() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # no /proc is mounted
        return False


def _fork(fds: Sequence[int]) -> int:
    """Fork a worker whose standard streams are `fds`; returns its pid."""
    from iofast.packing import worker

    parent, status = os.getpid(), 1
    if pid := os.fork():
        return pid
    try:
        for place, fd in enumerate(fds):
            os.dup2(fd, place)
        os.closerange(3, 1 + max(map(int, os.listdir("/proc/self/fd"))))  # such as the other workers' pipes
        status = worker.main(parent)
    except BaseException:  # no code of the parent may run here, not even its error handlers
        traceback.print_exc()
    finally:
        os._exit(status)


def cause_of_death(code: int) -> str:
    """Describe an exit status."""
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    return f"{name}, perhaps for lack of memory" if name == "SIGKILL" else name


def _environment() -> dict[str, str]:
    """The environment of a worker: this one, with the location of this iofast, which may be a checkout."""
    home = Path(__file__).resolve().parents[2]
    # otherwise NumPy's BLAS would start a spinning thread per core
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **os.environ}
    if home.name not in ("site-packages", "dist-packages"):  # these are searched anyway, after the standard library
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
    return environment
