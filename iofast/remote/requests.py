"""Run requests in one thread with an event loop, so that many are in flight and Ctrl-C ends a wait at once.

`obstore` has threads of its own, which a fork does not copy: requests in a fork would wait for ever. So a fork of a
process that has sent requests raises `StateError` instead. If one of these threads still delivers an answer when the
interpreter ends, it aborts the process; therefore the exit waits for them.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from iofast.errors import StateError

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_TICK = 0.02  # seconds between calls of `waiting`
_EXIT = 1.0  # most seconds that the exit waits for open requests, and again for obstore's threads
_lock = threading.Lock()
_ended = False
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None  # with the process that runs it


def start(work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
    """Start work in the loop of this process. Raises `StateError` in a fork of a process that has sent requests."""
    global _loop
    with _lock:
        if _ended:
            work.close()
            raise StateError("object stores cannot be used while the interpreter exits")
        if _loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="iofast-requests", daemon=True).start()
            atexit.register(_end, loop, os.getpid())
            _loop = (os.getpid(), loop)
        owner, loop = _loop
    if owner != os.getpid():
        work.close()
        raise StateError(
            "object stores cannot be used in a fork of a process that has used them: start processes with the method "
            f"spawn or forkserver, or fork before the first request (process {owner}, fork {os.getpid()})"
        )
    return asyncio.run_coroutine_threadsafe(work, loop)


def finish(future: concurrent.futures.Future[_T], waiting: Callable[[], object] | None = None) -> _T:
    """Wait for started work, calling `waiting` now and then. An interrupt cancels the work."""
    try:
        while waiting is not None:
            done, _ = concurrent.futures.wait((future,), _TICK)
            if done:
                break
            waiting()
        return future.result()
    except BaseException:
        future.cancel()
        raise


def run(work: Coroutine[Any, Any, _T], waiting: Callable[[], object] | None = None) -> _T:
    """Start work and wait for it."""
    return finish(start(work), waiting)


async def each(work: Callable[[_Item], Coroutine[Any, Any, _T]], items: Sequence[_Item], most: int) -> list[_T]:
    """The results of `work` for all items, at most `most` of them at once. The first error ends the others."""
    room = asyncio.Semaphore(most)

    async def one(item: _Item) -> _T:
        async with room:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _end(loop: asyncio.AbstractEventLoop, owner: int) -> None:
    """Cancel what is open, and wait until no thread of obstore was seen to run Python code for a while.

    Without it 17 of 150 short programs aborted on a loaded machine, with it none of 200.
    """
    if os.getpid() != owner:
        return

    global _ended
    with _lock:
        _ended = True  # threads of a loader go on until later

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    with contextlib.suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(_EXIT)
    deadline, quiet = time.monotonic() + _EXIT, 0
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(_TICK)  # threads that wait for the interpreter get it now
        ours = {thread.ident for thread in threading.enumerate()}
        quiet = quiet + 1 if sys._current_frames().keys() <= ours else 0
