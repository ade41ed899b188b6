"""Start a program and stand beside it: it keeps its terminal, its streams, its signals and its exit status.

The program runs in our process group, so that Ctrl-C and Ctrl-Z in the terminal reach it as they would without us. What
is sent to us alone (by `kill`, by a batch system) is passed on. Signals are taken by a thread in `sigwaitinfo`, because
only that tells who sent them: what the terminal sent has reached the program already and must not reach it twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

_PASSED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,  # batch systems warn with these two before they end a job
    signal.SIGUSR2,
    signal.SIGXCPU,  # and some with this one
)
_FROM_TERMINAL = 0x80  # SI_KERNEL
_IGNORED_BY_PYTHON = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
)  # what it ignores for itself, a program it starts would ignore too
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61


class Program:
    """A running program. Raises OSError where it cannot be started. A context manager: leaving waits for its end.

    `stopping`, where it is set, is called before Ctrl-Z stops us, and gives what is to be called when we go on: a
    screen is put away and drawn again.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.stopping: Callable[[], Callable[[], None]] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._status = 0
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)  # before it starts: none gets lost in between
        try:
            self.pid = self._started(arguments)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise
        self._signals = threading.Thread(target=self._pass_on, name="iofast-signals", daemon=True)
        self._end = threading.Thread(target=self._await, name="iofast-wait", daemon=True)
        self._signals.start()
        self._end.start()

    def _started(self, arguments: Sequence[str]) -> int:
        if not _must_allow_us():
            return os.posix_spawnp(
                arguments[0], list(arguments), os.environ, setsigmask=self._mask, setsigdef=_IGNORED_BY_PYTHON
            )
        import ctypes
        import subprocess

        monitor = os.getpid()
        prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec there are only calls

        def allow() -> None:
            prctl(_PR_SET_PTRACER, ctypes.c_ulong(monitor), 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        program = subprocess.Popen(list(arguments), close_fds=False, preexec_fn=allow)
        program.returncode = 0  # subprocess has nothing more to do with it: who waits for its end is _await
        return program.pid

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit status, 128 + the signal's number where one ended it; None while it runs after `timeout` seconds."""
        return self._status if self._ended.wait(timeout) else None

    def _await(self) -> None:
        os.waitid(
            os.P_PID, self.pid, os.WEXITED | os.WNOWAIT
        )  # its pid is not given away while a signal may be on its way
        with self._lock:
            _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
            if self._status < 0:
                self._status = 128 - self._status
            self._ended.set()

    def _pass_on(self) -> None:
        while True:
            found = signal.sigwaitinfo(_PASSED)
            if self._ended.is_set():
                return
            number = signal.Signals(found.si_signo)
            if found.si_code != _FROM_TERMINAL and found.si_pid != self.pid:
                self._send(number)
            if number is signal.SIGTSTP:
                again = self.stopping() if self.stopping is not None else None
                signal.raise_signal(signal.SIGSTOP)  # by os.kill this thread would run on for a moment, and continue it
                self._send(signal.SIGCONT)
                if again is not None:
                    again()

    def _send(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._ended.is_set():
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user
                    os.kill(self.pid, number)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.wait()
        self._end.join()
        if self._signals.is_alive() and self._signals.ident is not None:
            signal.pthread_kill(self._signals.ident, signal.SIGUSR1)  # only to wake it: it sees that all is over
            self._signals.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _must_allow_us() -> bool:
    """Whether the kernel lets a process look into its descendants alone: py-spy, which we run, is beside the program.

    The program may name one that may look all the same (prctl(2), PR_SET_PTRACER): us, and with us what we run. That
    holds across its exec, and not for what it forks.
    """
    with contextlib.suppress(OSError):
        return _PTRACE_SCOPE.read_text().strip() == "1"
    return False
