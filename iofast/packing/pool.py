"""The worker processes of a packing run. Dead workers are replaced.

`WorkerPool.results` always ends, with every chunk done or with an error. When a worker dies on a chunk, another worker
repeats the chunk image by image. If two workers die on the same image, or one is stuck on it, that image counts as
failed.
"""

import os
import selectors
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from iofast.errors import IofastError, OptionError, SourceError, StorageError, WorkerError
from iofast.packing.child import PIPE, Child, ChunkJob, can_fork, cause_of_death, default_command, start_worker
from iofast.packing.messages import Message, PackedRecord, records_of

MAX_WORKERS = 1024
AHEAD = 2  # chunks per worker: one in progress and one queued
WINDOW = 8  # chunks per worker that may be finished before an earlier one is: they are held in memory
SILENCE = 300.0  # seconds without a message after which an image counts as stuck; the largest images take ten
_TICK = 1.0  # seconds: the longest wait for events, and the most that one wait adds to silence
_STILLBORN = 3  # workers in a row that die before they are ready: then the run fails
_FRUITLESS = 8  # deaths per worker without an announced image or a finished chunk: with more, the run fails
_READ = PIPE
_FATAL: dict[object, type[IofastError]] = {"source": SourceError, "storage": StorageError}  # by `of` in the message


class Done(NamedTuple):
    """A finished chunk of `images`: its records, (position, reason) of failures, and the bytes of its files.

    `left_out`: the number of images that `min_size` and `max_aspect` do not admit.
    """

    chunk: int
    images: int
    records: Sequence[PackedRecord]
    failed: tuple[tuple[int, str], ...]
    bytes_in: int
    left_out: int


class WorkerPool:
    """`count` workers, which run during a `with` block: from its begin, or if `idle` from when there is work.

    With `fork` they are forks of this process if it has no threads; replacements of dead workers are new processes.
    This module imports little: workers start before the rest of packing is imported, so that both imports overlap.
    """

    def __init__(
        self,
        count: int,
        command: Sequence[str] | None = None,
        *,
        silence: float = SILENCE,
        fork: bool = False,
        idle: bool = False,
    ) -> None:
        if not 1 <= count <= MAX_WORKERS:
            raise OptionError(f"workers must be 1 to {MAX_WORKERS}, found {count}")
        self.count, self._command, self._silence = count, tuple(command or default_command()), silence
        self._fork, self._idle = fork, idle
        self._workers: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._again: deque[ChunkJob] = deque()
        self._setup: Mapping[str, object] = {}
        self._order: deque[int] = deque()  # chunks that were handed out and are not yielded yet
        self._held: dict[int, Done] = {}  # those of them that are finished
        self._stillborn = self._fruitless = 0

    def start(self) -> None:
        """Start the processes. They import while this process scans the source; `results` gives them chunks."""
        forks = self._fork and can_fork()
        for _ in range(self.count):
            self._join(start_worker(None if forks else self._command))

    def results(self, setup: Mapping[str, object], jobs: Iterator[ChunkJob]) -> Iterator[Done]:
        """Do all `jobs`; yield each chunk in their order. `setup` is the set-up message of `worker.Worker`.

        Raises `WorkerError` if workers cannot be started, `SourceError` if a container can no longer be read,
        `StorageError` if an object store fails.
        """
        self._setup = setup
        self._order.clear()
        self._held.clear()
        for worker in self._workers:  # workers of an earlier call need perhaps another set-up
            worker.has_setup = False
        if not self._workers:
            self.start()
        while True:
            self._hand_out(jobs)
            if not any(worker.jobs for worker in self._workers):
                return
            for worker, mask in self._wait():
                if worker not in self._workers:  # it was replaced; the event is stale
                    continue
                if mask & selectors.EVENT_WRITE:
                    self._flush(worker)
                if mask & selectors.EVENT_READ:
                    self._listen(worker)
            while self._order and self._order[0] in self._held:
                yield self._held.pop(self._order.popleft())

    def close(self) -> None:
        """Kill the processes."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.close()
        self._workers = []
        self._selector.close()

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

    def _join(self, worker: Child) -> None:
        """Add a started worker to those that get chunks."""
        self._workers.append(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _hand_out(self, jobs: Iterator[ChunkJob]) -> None:
        """Fill every worker's queue, one round at a time so that few chunks spread over all."""
        for depth in range(1, AHEAD + 1):
            for worker in self._workers:
                if len(worker.jobs) < depth and (job := self._next(jobs)):
                    if not worker.has_setup:
                        worker.send({"setup": self._setup})
                        worker.has_setup = True
                    worker.jobs.append(job)
                    worker.send(job.message())
                    self._flush(worker)

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

    def _flush(self, worker: Child) -> None:
        """Write as much as the pipe takes, and the rest when the selector reports room."""
        waiting, known = not worker.flush(), worker.feed in self._selector.get_map()
        if waiting and not known:
            self._selector.register(worker.feed, selectors.EVENT_WRITE, worker)
        elif known and not waiting:
            self._selector.unregister(worker.feed)

    def _wait(self) -> list[tuple[Child, int]]:
        """Wait for events of workers. Kill a worker that was silent for too long."""
        start = time.monotonic()
        events = [(key.data, mask) for key, mask in self._selector.select(_TICK)]
        passed = min(time.monotonic() - start, _TICK)  # a stopped or sleeping machine is not a silent worker
        heard = {worker for worker, mask in events if mask & selectors.EVENT_READ}
        for worker in self._workers:
            worker.silent = 0.0 if worker in heard or not worker.jobs else worker.silent + passed
            if worker.silent > self._silence:
                worker.kill()
        return events

    def _listen(self, worker: Child) -> None:
        try:
            data = os.read(worker.answers.fileno(), _READ)
        except BlockingIOError:
            return
        try:
            for message, payloads in worker.frames.feed(data):
                self._understand(worker, message, payloads)
        except IofastError:  # a ValueError, too: what the worker said
            raise
        except ValueError as error:
            raise WorkerError(f"a worker's answer cannot be read: {error}") from error
        if not data:
            self._replace(worker)

    def _understand(self, worker: Child, message: Message, payloads: memoryview) -> None:
        if "fatal" in message:
            raise _FATAL.get(message.get("of"), WorkerError)(message["fatal"])
        if "ready" in message:
            worker.ready, self._stillborn = True, 0
        if "begin" in message:
            worker.began = message["begin"]
        if "done" not in message:
            return
        job = worker.jobs.popleft()
        worker.began, self._fruitless = None, 0
        if message["done"] != job.chunk:
            raise WorkerError(f"a worker answered for chunk {message['done']}, expected {job.chunk}")
        failed = tuple((position, reason) for position, reason in message["failed"])
        records = records_of(message["records"], payloads)
        self._held[job.chunk] = Done(
            job.chunk, len(job.images), records, failed, message["bytes_in"], message["left_out"]
        )

    def _replace(self, worker: Child) -> None:
        """Replace a dead worker. Its chunks are repeated, the one in progress image by image."""
        worker.kill()  # its pipe is closed, but it may still run
        code = worker.wait() or 0
        for stream in (worker.answers, worker.feed):
            if stream in self._selector.get_map():
                self._selector.unregister(stream)
        self._workers.remove(worker)
        self._stillborn += not worker.ready
        self._fruitless += worker.began is None
        cause, line = cause_of_death(code), worker.last_line()
        if worker.ready and worker.jobs:
            stuck = worker.silent > self._silence
            worker.blame("it was stuck" if stuck else cause, proven=stuck)
        self._again.extend(worker.jobs)
        worker.close()
        if self._stillborn >= _STILLBORN or self._fruitless > _FRUITLESS * self.count:
            raise WorkerError(f"workers die without doing anything: {cause}{f': {line}' if line else ''}")
        self._join(start_worker(self._command))
