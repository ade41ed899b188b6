"""The live screen: the lines of layout.py on the alternate screen, redrawn in place, and its keys."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from typing import IO, Any, TextIO

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
    """Draws on `out`. `keys` reads the terminal's keys; not beside a started program, which may read them itself."""

    def __init__(self, out: TextIO, *, keys: bool = True) -> None:
        self._out = out
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._moments: dict[tuple[int, int], Moment] = {}
        self._chosen: tuple[int, int] | None = None
        self._message = ""
        self._stale, self._drawn = False, 0.0
        self._keys = _Keys() if keys else None
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def update(self, moment: Moment) -> None:
        """Take this job's newest interval, which `quits` draws."""
        key = (moment.job.pid, moment.job.start_time)
        self._moments.pop(key, None)  # newest last
        self._moments[key] = moment
        for old in [key for key, other in self._moments.items() if other.ended][:-_ENDED]:
            del self._moments[old]
        self._stale = True  # the news of several jobs are drawn together

    def waiting(self, message: str) -> None:
        """Show the message if there is no job."""
        self._message = message
        if not self._moments:
            self.redraw()

    def redraw(self) -> None:
        """Draw everything at the present size of the terminal."""
        order = self._order()
        selected = order.index(self._chosen) if self._chosen in order else 0
        shown = [self._moments[key] for key in order]
        lines = drawn(shown, selected, self._console.size, self._message, keys=self._keys is not None)
        self._live.update(Group(*lines), refresh=True)
        self._stale, self._drawn = False, time.monotonic()

    def _order(self) -> list[tuple[int, int]]:
        """Live jobs before ended ones, the worst first, then by pid to keep the order stable."""
        moments = self._moments
        return sorted(moments, key=lambda key: (moments[key].ended, _RANK[moments[key].verdict.severity], *key))

    def quits(self) -> bool:
        """Draw news and handle pressed keys; True if a key ends the monitor."""
        if self._stale and time.monotonic() - self._drawn >= _LEAST_S:
            self.redraw()
        for key in self._keys.pressed() if self._keys else "":
            if key in "qQ":
                return True
            if key == "\t" and self._moments:
                order = self._order()
                at = order.index(self._chosen) if self._chosen in order else 0
                self._chosen = order[(at + 1) % len(order)]
                self.redraw()
        return False

    def pause(self) -> None:
        """Restore the terminal while the monitor is stopped."""
        self._live.stop()
        if self._keys:
            self._keys.close()

    def resume(self) -> None:
        """Draw again after `pause`."""
        self._live.start()
        self._keys = _Keys() if self._keys else None
        self.redraw()

    def close(self, moments: Sequence[Moment]) -> None:
        """Leave the screen and print a line for each job."""
        try:
            self.pause()
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
    """Reads pressed keys without echo, if standard input is a terminal."""

    def __init__(self) -> None:
        self._before: Any = None
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        if self._input >= 0:
            import termios
            import tty

            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)

    def pressed(self) -> str:
        """Keys pressed since the last call."""
        if self._input < 0 or not select.select([self._input], [], [], 0)[0]:
            return ""
        with contextlib.suppress(OSError):
            return os.read(self._input, 64).decode("ascii", "replace")
        return ""

    def close(self) -> None:
        """Restore the terminal."""
        if self._before is not None:
            import termios

            with contextlib.suppress(termios.error):  # the window may have been closed
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
