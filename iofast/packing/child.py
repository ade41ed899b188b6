"""A worker process, its pipes and its chunks, as the packing process sees them."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from iofast.errors import WorkerError
from iofast.packing.messages import ChunkJob

_PIPE = 1 << 20  # bytes that a worker's pipe holds, so that it seldom waits for the packing process


def default_command() -> tuple[str, ...]:
    """The command of a worker. -P keeps modules in the user's folder, such as `json.py`, from being imported."""
    if not sys.executable:
        raise WorkerError("workers cannot be started: sys.executable is empty")
    return (sys.executable, "-P", "-m", "iofast.packing.worker")


@dataclass(slots=True, eq=False)
class Child:
    """A worker process and the chunks that it was given."""

    process: subprocess.Popen[bytes]
    orders: "Connection[Any, Any]"
    answers: "Connection[Any, Any]"
    log: IO[bytes]  # its stderr; unlike a pipe, a file cannot fill up and block the worker
    jobs: deque[ChunkJob] = field(default_factory=deque)
    ready: bool = False
    began: int | None = None  # the position that it announced last, in a careful chunk
    silent: float = 0.0  # seconds

    def send(self, kind: str, value: object) -> None:
        """Send a message; nothing if the worker has died, which its `answers` tell. It always reads, so this ends."""
        with contextlib.suppress(BrokenPipeError):
            self.orders.send((kind, value))

    def end(self) -> tuple[str, str]:
        """Kill the process and close its files; returns how it ended, and the last line that it wrote to stderr."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)  # not longer: a read from a dead NFS server cannot be interrupted
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4096))
        lines = [line.strip() for line in self.log.read().decode(errors="replace").split("\n")]
        for each in (self.orders, self.answers, self.log):
            each.close()
        return _cause(self.process.returncode or 0), next(filter(None, reversed(lines)), "")

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


def start_worker(command: Sequence[str]) -> Child:
    """Start a worker. Raises `WorkerError`."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    (stdin, orders), (answers, stdout) = Pipe(duplex=False), Pipe(duplex=False)
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or beyond a user's limit
        fcntl.fcntl(answers.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
    try:
        with stdin, stdout:
            words, environment = [*command, str(os.getpid())], _environment()
            process = subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=log, env=environment)  # type: ignore[call-overload]
    except OSError as error:
        for each in (orders, answers, log):
            each.close()
        raise WorkerError(f"a worker cannot be started: {error.strerror}: {command[0]}") from error
    return Child(process, orders, answers, log)


def _cause(code: int) -> str:
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
