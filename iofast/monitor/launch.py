"""Start a program and stay beside it: the program keeps its terminal, streams, signals and exit status.

The program runs in our process group, so Ctrl-C and Ctrl-Z in the terminal reach it directly. Signals sent to us
alone (by `kill`, by a batch system) are passed on. A thread takes signals with `sigwaitinfo`, because only that names
the sender: a signal of the terminal has reached the program already and must not reach it twice.
"""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

_PASSED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,  # batch systems send these two before they end a job,
    signal.SIGUSR2,
    signal.SIGXCPU,  # and some this one
)
_FROM_TERMINAL = 0x80  # SI_KERNEL
_PR_SET_PTRACER = 0x59616D61


class Program(subprocess.Popen[bytes]):
    """A running program. Raises OSError when it cannot be started. A context manager, which waits for its end.

    Ctrl-Z stops us within `aside`, which puts a screen away and draws it again.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.aside: Callable[[], AbstractContextManager[None]] = nullcontext
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)  # before the start: no signal gets lost
        # Under Yama's scope 1 a process may trace its descendants alone: py-spy, which we start, is no ancestor of the
        # program. The program may name one more tracer (prctl(2), PR_SET_PTRACER): us, and with us our descendants.
        # That survives its exec, but does not apply to what it forks.
        monitor = os.getpid()
        prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec there are only calls

        def allow() -> None:
            prctl(_PR_SET_PTRACER, ctypes.c_ulong(monitor), 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        try:
            super().__init__(list(arguments), close_fds=False, preexec_fn=allow)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise
        self._signals = threading.Thread(target=self._pass_on, name="iofast-signals", daemon=True)
        self._signals.start()

    def status(self) -> int:
        """Wait for its end: its exit status, or 128 + the number of the signal that ended it."""
        status = self.wait()
        return 128 - status if status < 0 else status

    def _pass_on(self) -> None:
        while True:
            info = signal.sigwaitinfo(_PASSED)
            if self.poll() is not None:
                return
            number = signal.Signals(info.si_signo)
            if info.si_code != _FROM_TERMINAL and info.si_pid != self.pid:
                self._send(number)
            if number is signal.SIGTSTP:
                with self.aside():
                    signal.raise_signal(signal.SIGSTOP)  # os.kill would let this thread run on, and continue it
                    self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with suppress(PermissionError):  # a setuid program
            self.send_signal(number)

    def __exit__(self, *_: object) -> None:
        self.wait()
        if self._signals.is_alive() and self._signals.ident is not None:
            signal.pthread_kill(self._signals.ident, signal.SIGUSR1)  # wakes it
            self._signals.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
