"""The worker processes of a packing run. Dead workers are replaced.

`WorkerPool.results` always ends, with every chunk done or with an error. When a worker dies on a chunk, another worker
repeats the chunk image by image. If two workers die on the same image, or one is stuck on it, that image counts as
failed.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from typing import Self

from iofast.errors import OptionError, WorkerError
from iofast.packing.child import Child, default_command, start_worker
from iofast.packing.messages import ChunkJob, Done

MAX_WORKERS = 1024
AHEAD = 2  # chunks per worker: one in progress and one queued
WINDOW = 8  # chunks per worker that may be finished before an earlier one is: they are held in memory
SILENCE = 300.0  # seconds without a message after which an image counts as stuck; the largest images take ten
_TICK = 1.0  # seconds: the longest wait for events, and the most that one wait adds to silence
_STILLBORN = 3  # workers in a row that die before they are ready: then the run fails
_FRUITLESS = 8  # deaths per worker without an announced image or a finished chunk: with more, the run fails


class WorkerPool:
    """`count` workers, which run during a `with` block: from its begin, or if `idle` from when there is work.

    This module imports little: workers start before the rest of packing is imported, so that both imports overlap.
    """

    def __init__(
        self, count: int, command: Sequence[str] | None = None, *, silence: float = SILENCE, idle: bool = False
    ) -> None:
        if not 1 <= count <= MAX_WORKERS:
            raise OptionError(f"workers must be 1 to {MAX_WORKERS}, found {count}")
        self.count, self._command, self._silence = count, tuple(command or default_command()), silence
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
            self._workers.append(start_worker(self._command))

    def results(self, setup: object, jobs: Iterator[ChunkJob]) -> Iterator[Done]:
        """Do all `jobs`; yield each chunk in their order. `setup`: the origin and the recipe of `worker.Worker`.

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
                    worker.send("chunk", job)

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
            kind, value = worker.answers.recv()
        except (EOFError, ConnectionError):
            self._replace(worker)
            return
        if kind == "fatal":
            raise value
        if kind == "ready":
            worker.ready, self._stillborn = True, 0
        elif kind == "begin":
            worker.began = value
        elif kind == "done":
            worker.jobs.popleft()
            worker.began, self._fruitless = None, 0
            self._held[value.chunk] = value

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
        self._workers.append(start_worker(self._command))
        self._workers[-1].send("setup", self._setup)
