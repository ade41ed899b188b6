"""Run functions in threads at the same time, or in a forked process; wait for what another thread does."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable


def at_once(*functions: Callable[[], object]) -> None:
    """Call each function in a thread of its own, and wait for all threads."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_child(function: Callable[[], bool]) -> int:
    """The exit status of a forked process: 0 if `function` is true; -9 after a hang of 60 s."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if function() else 2
        except BaseException as error:
            print(repr(error), file=sys.stderr)  # noqa: T201  no other output is left
        finally:
            os._exit(code)
    alarm = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    alarm.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        alarm.cancel()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` becomes true within `seconds`; it is checked often, so success takes little time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        if gc.isenabled():
            gc.collect()
        time.sleep(0.002)
    return True
