"""The live screen: the lines of layout.py on the alternate screen, redrawn in place, and its keys."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from iofast.monitor.findings import Severity
from iofast.monitor.render import wording
from iofast.monitor.render.layout import drawn
from iofast.monitor.render.moment import Moment, MomentView

_ENDED = 3  # ended jobs that stay listed
_LEAST_S = 0.2  # between two drawings
_RANK = {severity: -number for number, severity in enumerate(Severity)}


class Screen(MomentView):
    """Draws the `moments` of all jobs on `out`.

    `keys` reads the terminal's keys; not beside a started program, which may read them itself.
    """

    def __init__(self, out: TextIO, moments: Callable[[], Sequence[Moment]], *, keys: bool = True) -> None:
        self._out, self._moments = out, moments
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._chosen: tuple[int, int] | None = None
        self._message = ""
        self._stale, self._drawn = False, 0.0
        self._keys = _Keys() if keys and sys.stdin is not None and sys.stdin.isatty() else None
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def update(self, _moment: Moment) -> None:
        """Have `quits` draw the news; those of several jobs are drawn together."""
        self._stale = True

    def waiting(self, message: str) -> None:
        """Show the message if there is no job."""
        self._message = message
        self.redraw()

    def redraw(self) -> None:
        """Draw everything at the present size of the terminal."""
        shown, selected = self._shown()
        lines = drawn(shown, selected, self._console.size, self._message, keys=self._keys is not None)
        self._live.update(Group(*lines), refresh=True)
        self._stale, self._drawn = False, time.monotonic()

    def _shown(self) -> tuple[list[Moment], int]:
        """Live jobs before ended ones, the worst first, then by pid for a stable order; the place of the chosen one."""
        every = self._moments()
        live = [moment for moment in every if not moment.ended]
        live.sort(key=lambda moment: (_RANK[moment.verdict.severity], moment.job.pid))
        shown = [*live, *[moment for moment in every if moment.ended][-_ENDED:]]
        keys = [(moment.job.pid, moment.job.start_time) for moment in shown]
        return shown, keys.index(self._chosen) if self._chosen in keys else 0

    def quits(self) -> bool:
        """Draw news and handle pressed keys; True if a key ends the monitor."""
        if self._stale and time.monotonic() - self._drawn >= _LEAST_S:
            self.redraw()
        for key in self._keys.pressed() if self._keys else "":
            if key in "qQ":
                return True
            shown, selected = self._shown()
            if key == "\t" and shown:
                job = shown[(selected + 1) % len(shown)].job
                self._chosen = (job.pid, job.start_time)
                self.redraw()
        return False

    def _leave(self) -> None:
        self._live.stop()
        if self._keys:
            self._keys.close()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Restore the terminal, for as long as the monitor is stopped."""
        self._leave()
        yield
        self._live.start()
        self._keys = _Keys() if self._keys else None
        self.redraw()

    def close(self, moments: Sequence[Moment]) -> None:
        """Leave the screen and print a line for each job."""
        try:
            self._leave()
            for moment in moments:
                self._console.print(Text(f"iofast monitor: {wording.summary(moment)}"), soft_wrap=True)
        except OSError:  # the window was closed
            give_up(self._out)


def give_up(stream: IO[str]) -> None:
    """Discard the unwritten text of a `stream` that nobody reads: it would end Python with another exit status."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


class _Keys:
    """Reads pressed keys of the terminal that is standard input, without echo."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)

    def pressed(self) -> str:
        """Keys pressed since the last call."""
        with contextlib.suppress(OSError):
            if select.select([self._input], [], [], 0)[0]:
                return os.read(self._input, 64).decode("ascii", "replace")
        return ""

    def close(self) -> None:
        """Restore the terminal."""
        with contextlib.suppress(termios.error):  # the window may have been closed
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
