"""Processes that answer requests, one at a time each. They end with the process that started them, however it ends.

Not a ProcessPoolExecutor: one process that dies would take the others along, as would an exception that cannot be
unpickled, and an interpreter that exits would wait for the processes.
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
Answer = Callable[[bytes, bytes], tuple[Bytes, Bytes]]  # (the pool's payload, a request) -> reply

_ATTEMPTS = 2  # the kernel may have killed one process for its memory; if two die, the request is the cause
_RECEIVED = b"received"
_CHECK_S = 1.0  # how often a process checks that its parent lives
_REAP_S = 1.0  # a killed process is gone at once, or stuck in the kernel

_pools: weakref.WeakSet[MapPool] = weakref.WeakSet()
_closed_at_exit: set[int] = set()  # process ids whose exit closes their pools


class _Worker(NamedTuple):
    process: SpawnProcess
    connection: Connection


class _Life:
    """The part of a pool that its finalizer needs."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ended = False
        self.running: set[SpawnProcess] = set()


class MapPool:
    """Up to `processes` processes that call `answer(payload, request)`, spawned when they are first needed.

    `answer` must be a function of a module. It is called again for the same request if its process has died.
    """

    def __init__(self, processes: int, answer: Answer, payload: bytes) -> None:
        self._answer, self._payload = answer, payload
        self._idle: LifoQueue[_Worker | None] = LifoQueue()  # last in, first out: starts only as many as are needed
        for _ in range(processes):
            self._idle.put(None)
        self._starting = threading.Lock()
        self._answered = False
        self._life = _Life()
        weakref.finalize(self, _end, self._life)
        _close_at_exit()
        _pools.add(self)

    def ask(self, request: Bytes) -> tuple[bytes, bytes]:
        """The answer to a request, from any thread; waits until a process is free.

        Raises `WorkerError` if two processes in a row died over it, or the pool was closed.
        """
        fate, deaths = "", 0
        while deaths < _ATTEMPTS:
            worker = self._idle.get()
            used, received, reply = worker is not None, False, None
            try:
                worker = worker or self._start()
                received, reply = _exchange(worker, request)
            finally:
                if reply is None and worker is not None:  # dead, or the rest of this reply would be read as the next
                    fate, worker = self._discard(worker), None
                self._idle.put(worker)
            if reply is not None:
                self._answered = True
                return reply
            # no evidence against the request: a used process that was killed before it received it
            deaths += received or not used
        guard = 'before its first result (a script needs `if __name__ == "__main__":` around what it runs)'
        when = "before its work was done" if self._answered else guard
        raise WorkerError(f"a process that ran map_sample was killed or crashed {when}: {fate}, {_ATTEMPTS} times")

    def close(self) -> None:
        """Kill the processes. Requests under way raise `WorkerError`."""
        _end(self._life)

    def _start(self) -> _Worker:
        spawn = get_context("spawn")
        with self._starting:
            if self._life.ended:
                raise WorkerError("the processes of map_sample were ended while there was work for them")
            try:
                own, theirs = spawn.Pipe()
                with theirs:  # closed here, so that the end of the process ends the connection
                    process = spawn.Process(
                        target=_serve, args=(theirs, self._answer, self._payload), name="iofast-map"
                    )
                    process.start()
            except OSError as error:  # no descriptors, processes or memory left
                reason = because(error)
                raise WorkerError(f"a process for map_sample cannot be started: {reason}; see map_processes=") from None
            self._life.running.add(process)
        if self._life.ended:  # meanwhile, perhaps too early to see this process
            process.kill()
        return _Worker(process, own)

    def _discard(self, worker: _Worker) -> str:
        """Remove a dead process, and describe how it ended."""
        process = worker.process
        worker.connection.close()
        process.join(_REAP_S)  # one that ended by itself has an exit code
        if (code := process.exitcode) is None:
            process.kill()
            process.join(_REAP_S)
        self._life.running.discard(process)
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _exchange(worker: _Worker, request: Bytes) -> tuple[bool, tuple[bytes, bytes] | None]:
    """Whether the process received the request, and its reply, None if it is dead."""
    received = False
    try:
        worker.connection.send_bytes(request)
        received = worker.connection.recv_bytes() == _RECEIVED
        return received, (worker.connection.recv_bytes(), worker.connection.recv_bytes())
    except (EOFError, OSError):
        return received, None


def _end(life: _Life) -> None:
    life.ended = True
    if os.getpid() != life.pid:  # in a fork: the processes are children of its parent
        return
    running = list(life.running)
    for process in running:
        process.kill()
    for process in running:
        process.join(_REAP_S)


def _close_at_exit() -> None:
    """Close all pools when this process exits.

    That comes before weakref's finalizers, which were registered earlier: a `Prefetch` among them waits for threads
    that wait for these pools. Processes of `multiprocessing` run no atexit functions, but wait for their children.
    """
    if os.getpid() not in _closed_at_exit:
        _closed_at_exit.add(os.getpid())
        atexit.register(_close_all)
        util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _serve(connection: Connection, answer: Answer, payload: bytes) -> None:
    """The main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which may continue
    threading.Thread(target=_end_with_parent, name="iofast-parent", daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
            connection.send_bytes(_RECEIVED)
            for part in answer(payload, request):
                connection.send_bytes(part)
        except (EOFError, OSError):  # the parent is gone
            return


def _end_with_parent() -> None:
    parent: Any = parent_process()
    # The sentinel is a pipe that other children forked from the parent keep open too
    while not wait([parent.sentinel], _CHECK_S) and os.getppid() == parent.pid:
        pass
    os._exit(1)
