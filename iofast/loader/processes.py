"""Processes that answer requests, one at a time each; they end with whoever asks, however that ends.

Not a ProcessPoolExecutor: there one process that dies takes the others along, so does an exception that cannot be
unpickled, and an interpreter that exits waits for whatever its processes are doing.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from multiprocessing import get_context, parent_process, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import LifoQueue
from typing import Any, NamedTuple

from iofast.errors import WorkerError, because

Bytes = bytes | memoryview
Answer = Callable[[bytes, bytes], tuple[Bytes, Bytes]]  # (what every process was given, request) -> reply

_ATTEMPTS = 2  # a process may have been the victim of the kernel's hunt for memory; what kills two is the request
_HAD = b"had"  # what a process says when it has read a request
_LOOK_S = 1.0  # how often a process looks whether its parent is still there
_REAP_S = 1.0  # a killed process is gone at once, or stuck in the kernel for good

_pools: weakref.WeakSet[MapPool] = weakref.WeakSet()
_ended_with: set[int] = set()  # process ids whose exit ends their pools


class _Worker(NamedTuple):
    process: SpawnProcess
    connection: Connection


class _Life:
    """What a pool leaves to its finalizer."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ended = False
        self.running: set[SpawnProcess] = set()


class MapPool:
    """Up to `processes` processes that call `answer(given, request)`; they are spawned when they are first needed.

    `answer` must be a function of a module, and is called again for the same request where its process died.
    """

    def __init__(self, processes: int, answer: Answer, given: bytes) -> None:
        self._answer, self._given = answer, given
        self._idle: LifoQueue[_Worker | None] = LifoQueue()  # last one first: none is started before it is needed
        for _ in range(processes):
            self._idle.put(None)
        self._starting = threading.Lock()
        self._answered = False
        self._life = _Life()
        weakref.finalize(self, _end, self._life)
        _end_with_process()
        _pools.add(self)

    def ask(self, request: Bytes) -> tuple[bytes, bytes]:
        """The answer to a request, from any thread; waits until a process is free.

        Raises `WorkerError` where two processes died over it, one after the other, or the pool was closed.
        """
        fate, deaths = "", 0
        while deaths < _ATTEMPTS:
            worker = self._idle.get()
            used, had, reply = worker is not None, False, None
            try:
                worker = worker or self._start()
                had, reply = _asked(worker, request)
            finally:
                if reply is None and worker is not None:  # dead, or a half-finished exchange would be the next reply
                    fate, worker = self._discarded(worker), None
                self._idle.put(worker)
            if reply is not None:
                self._answered = True
                return reply
            # one that was killed while it had nothing to do, or has not come to read this, says nothing of the request
            deaths += had or not used
        guard = 'before its first result (a script needs `if __name__ == "__main__":` around what it runs)'
        when = "before its work was done" if self._answered else guard
        raise WorkerError(f"a process that ran map_sample was killed or crashed {when}: {fate}, {_ATTEMPTS} times")

    def close(self) -> None:
        """Kill the processes; requests under way end in `WorkerError`."""
        _end(self._life)

    def _start(self) -> _Worker:
        spawn = get_context("spawn")
        with self._starting:
            if self._life.ended:
                raise WorkerError("the processes of map_sample were ended while there was work for them")
            try:
                own, theirs = spawn.Pipe()
                with theirs:  # closed here, so that the end of the process is the end of the connection
                    process = spawn.Process(target=_serve, args=(theirs, self._answer, self._given), name="iofast-map")
                    process.start()
            except OSError as error:  # no descriptors, processes or memory left
                reason = because(error)
                raise WorkerError(f"a process for map_sample cannot be started: {reason}; see map_processes=") from None
            self._life.running.add(process)
        if self._life.ended:  # meanwhile, and it may not have been seen
            process.kill()
        return _Worker(process, own)

    def _discarded(self, worker: _Worker) -> str:
        """What a process ended with, which is no more."""
        process = worker.process
        worker.connection.close()
        process.join(_REAP_S)  # one that ended by itself says how
        if (code := process.exitcode) is None:
            process.kill()
            process.join(_REAP_S)
        self._life.running.discard(process)
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _asked(worker: _Worker, request: Bytes) -> tuple[bool, tuple[bytes, bytes] | None]:
    """Whether the process had the request, and its reply; None where it is dead."""
    had = False
    try:
        worker.connection.send_bytes(request)
        had = worker.connection.recv_bytes() == _HAD
        return had, (worker.connection.recv_bytes(), worker.connection.recv_bytes())
    except (EOFError, OSError):
        return had, None


def _end(life: _Life) -> None:
    life.ended = True
    if os.getpid() != life.pid:  # they are the children of the process that this one was forked from
        return
    running = list(life.running)
    for process in running:
        process.kill()
    for process in running:
        process.join(_REAP_S)


def _end_with_process() -> None:
    """Have all pools of this process closed when it exits.

    Before weakref's finalizers, which were registered earlier: a `Prefetch` there waits for threads that wait for us.
    Processes of `multiprocessing` run no atexit functions, but wait for their children without an end.
    """
    if os.getpid() not in _ended_with:
        _ended_with.add(os.getpid())
        atexit.register(_end_all)
        util.Finalize(None, _end_all, exitpriority=100)


def _end_all() -> None:
    for pool in list(_pools):
        pool.close()


def _serve(connection: Connection, answer: Answer, given: bytes) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which may go on
    threading.Thread(target=_end_with_parent, name="iofast-parent", daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
            connection.send_bytes(_HAD)
            for part in answer(given, request):
                connection.send_bytes(part)
        except (EOFError, OSError):  # the parent is gone
            return


def _end_with_parent() -> None:
    parent: Any = parent_process()
    # The sentinel is a pipe, which processes that the parent forked hold open too
    while not wait([parent.sentinel], _LOOK_S) and os.getppid() == parent.pid:
        pass
    os._exit(1)
