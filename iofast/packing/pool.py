"""The worker processes of a packing run. Dead workers are replaced.

`WorkerPool.results` always ends, with every chunk done or with an error. When a worker dies on a chunk, another worker
repeats the chunk image by image. If two workers die on the same image, or one is stuck on it, that image counts as
failed.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any, Self

from iofast.errors import IofastError, OptionError, SourceError, StorageError, WorkerError
from iofast.packing.messages import MOST_BYTES, ChunkJob, Done, decode, done_of, encode

MAX_WORKERS = 1024
AHEAD = 2  # chunks per worker: one in progress and one queued
WINDOW = 8  # chunks per worker that may be finished before an earlier one is: they are held in memory
SILENCE = 300.0  # seconds without a message after which an image counts as stuck; the largest images take ten
_TICK = 1.0  # seconds: the longest wait for events, and the most that one wait adds to silence
_STILLBORN = 3  # workers in a row that die before they are ready: then the run fails
_FRUITLESS = 8  # deaths per worker without an announced image or a finished chunk: with more, the run fails
_FATAL: dict[str, type[IofastError]] = {each.__name__: each for each in (SourceError, StorageError)}
_PIPE = 1 << 20  # bytes that a worker's pipe holds, so that it seldom waits for the packing process


@dataclass(slots=True, eq=False)
class Child:
    """A worker process and the chunks that it was given."""

    process: subprocess.Popen[bytes]
    orders: "Connection[Any, Any]"
    answers: "Connection[Any, Any]"
    log: IO[bytes]  # what it prints; unlike a pipe, a file cannot fill up and block the worker
    jobs: deque[ChunkJob] = field(default_factory=deque)
    ready: bool = False
    began: int | None = None  # the position that it announced last, in a careful chunk
    silent: float = 0.0  # seconds

    def send(self, kind: str, value: object) -> None:
        """Send a message; nothing if the worker has died, which its `answers` tell.

        A thread of the worker reads, unless C code keeps the GIL: then the pipe has room for a message of 1 MiB.
        """
        with contextlib.suppress(BrokenPipeError):
            self.orders.send_bytes(encode(kind, value))

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


class WorkerPool:
    """`count` workers, which run during a `with` block: from its begin, or if `idle` from when there is work.

    This module imports little: workers start before the rest of packing is imported, so that both imports overlap.
    """

    def __init__(
        self, count: int, command: Sequence[str] | None = None, *, silence: float = SILENCE, idle: bool = False
    ) -> None:
        if not 1 <= count <= MAX_WORKERS:
            raise OptionError(f"workers must be 1 to {MAX_WORKERS}, found {count}")
        self.count, self._command, self._silence = count, tuple(command or _command()), silence
        self._idle = idle
        self._workers: list[Child] = []
        self._again: deque[ChunkJob] = deque()
        self._setup: object = None
        self._order: deque[int] = deque()  # chunks that were handed out and are not yielded yet
        self._held: dict[int, Done] = {}  # those of them that are finished
        self._stillborn = self._fruitless = 0

    def start(self) -> None:
        """Start the processes. They import while this process scans the source; `results` gives them chunks."""
        for _ in range(self.count):
            self._workers.append(_start(self._command))

    def results(self, setup: object, jobs: Iterator[ChunkJob]) -> Iterator[Done]:
        """Do all `jobs`; yield each chunk in their order. `setup`: what every worker needs (`PackWork.setup`).

        Raises `WorkerError` if workers cannot be started, `SourceError` if a container can no longer be read,
        `StorageError` if an object store fails.
        """
        self._setup = setup
        self._order.clear()
        self._held.clear()
        if not self._workers:
            self.start()
        for worker in self._workers:
            worker.send("setup", setup)
        while True:
            self._hand_out(jobs)
            if not any(worker.jobs for worker in self._workers):
                return
            self._listen()
            while self._order and self._order[0] in self._held:
                yield self._held.pop(self._order.popleft())

    def close(self) -> None:
        """Kill the processes."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.end()
        self._workers = []

    def __enter__(self) -> Self:
        try:
            if not self._idle:
                self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_out(self, jobs: Iterator[ChunkJob]) -> None:
        """Fill every worker's queue, one round at a time so that few chunks spread over all."""
        for depth in range(1, AHEAD + 1):
            for worker in self._workers:
                if len(worker.jobs) < depth and (job := self._next(jobs)):
                    worker.jobs.append(job)
                    worker.send("chunk", job.value)

    def _next(self, jobs: Iterator[ChunkJob]) -> ChunkJob | None:
        """The next job; none while too many chunks wait for an earlier one."""
        if self._again:
            return self._again.popleft()
        if len(self._order) >= WINDOW * self.count:
            return None
        job = next(jobs, None)
        if job is not None:
            self._order.append(job.chunk)
        return job

    def _listen(self) -> None:
        """Wait for messages of workers, and take one of each. Kill a worker that was silent for too long."""
        start = time.monotonic()
        heard = set(wait([worker.answers for worker in self._workers], _TICK))
        passed = min(time.monotonic() - start, _TICK)  # a stopped or sleeping machine is not a silent worker
        for worker in [*self._workers]:
            worker.silent = 0.0 if worker.answers in heard or not worker.jobs else worker.silent + passed
            if worker.answers in heard:
                self._receive(worker)
            elif worker.silent > self._silence:
                self._replace(worker)

    def _receive(self, worker: Child) -> None:
        try:
            kind, value, payloads = decode(worker.answers.recv_bytes(MOST_BYTES))
        except (EOFError, OSError, ValueError, TypeError):  # the last two: this is no message
            self._replace(worker)
            return
        if kind == "fatal":
            raise _FATAL[value[0]](value[1])
        if kind == "ready":
            worker.ready, self._stillborn = True, 0
        elif kind == "begin":
            worker.began = value
        elif kind == "done":
            worker.jobs.popleft()
            worker.began, self._fruitless = None, 0
            done = done_of(value, payloads)
            self._held[done.chunk] = done

    def _replace(self, worker: Child) -> None:
        """Replace a dead or stuck worker. Its chunks are repeated, the one in progress image by image."""
        cause, line = worker.end()
        self._workers.remove(worker)
        self._stillborn += not worker.ready
        self._fruitless += worker.began is None
        if worker.ready and worker.jobs:
            stuck = worker.silent > self._silence
            worker.blame("it was stuck" if stuck else cause, proven=stuck)
        self._again.extend(worker.jobs)
        if self._stillborn >= _STILLBORN or self._fruitless > _FRUITLESS * self.count:
            raise WorkerError(f"workers die without doing anything: {cause}{f': {line}' if line else ''}")
        self._workers.append(_start(self._command))
        self._workers[-1].send("setup", self._setup)


def _command() -> tuple[str, ...]:
    """The command of a worker. -P keeps modules in the user's folder, such as `json.py`, from being imported."""
    if not sys.executable:
        raise WorkerError("workers cannot be started: sys.executable is empty")
    return (sys.executable, "-P", "-m", "iofast.packing.worker")


def _start(command: Sequence[str]) -> Child:
    """Start a worker. Raises `WorkerError`."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    (stdin, orders), (answers, stdout) = Pipe(duplex=False), Pipe(duplex=False)
    for end in (orders, answers):
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or beyond a user's limit
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
    try:
        with stdin, stdout:  # answers have a descriptor of their own: anything may print in a new interpreter
            to = stdout.fileno()
            streams: dict[str, Any] = {"stdin": stdin, "stdout": log, "stderr": log, "pass_fds": (to,)}
            process = subprocess.Popen([*command, str(os.getpid()), str(to)], env=_environment(), **streams)
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
