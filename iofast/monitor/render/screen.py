"""The live screen: layout.py's lines on the alternate screen, redrawn in place, and the keys that work there."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from iofast.monitor.closed_output import give_up
from iofast.monitor.findings import Severity
from iofast.monitor.render import wording
from iofast.monitor.render.layout import drawn
from iofast.monitor.render.moment import Moment, View

_ENDED = 3  # jobs that ended and are still listed
_LEAST_S = 0.2  # from one drawing to the next
_WORST = (Severity.SEVERE, Severity.BOUND, Severity.NOTICE, Severity.NONE)


class Screen(View):
    """Draws on `out`. With `keys` it reads the terminal's keys too, which a program that we started may want itself."""

    def __init__(self, out: TextIO, *, keys: bool = True) -> None:
        self._out = out
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._moments: dict[tuple[int, int], Moment] = {}
        self._chosen: tuple[int, int] | None = None
        self._message = ""
        self._stale, self._drawn = False, 0.0
        self._keys = _Keys() if keys else None
        self._live = self._start()

    def _start(self) -> Live:
        live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        live.start()
        return live

    def update(self, moment: Moment) -> None:
        """Draw anew, with this job's newest interval."""
        key = (moment.job.pid, moment.job.start_time)
        self._moments.pop(key, None)  # the newest at the end
        self._moments[key] = moment
        for old in [key for key, other in self._moments.items() if other.ended][:-_ENDED]:
            del self._moments[old]
        self._stale = True
        self._redraw_now_and_then()

    def _redraw_now_and_then(self) -> None:
        """Of several jobs each has its news in each interval: they are drawn together."""
        if self._stale and time.monotonic() - self._drawn >= _LEAST_S:
            self.redraw()

    def waiting(self, message: str) -> None:
        """Say what is waited for, where there is nothing else to show."""
        self._message = message
        if not self._moments:
            self.redraw()

    def redraw(self) -> None:
        """Draw what is known at the size that the terminal has now."""
        order = self._order()
        selected = order.index(self._chosen) if self._chosen in order else 0
        shown = [self._moments[key] for key in order]
        lines = drawn(shown, selected, self._console.size, self._message, keys=self._keys is not None)
        self._live.update(Group(*lines), refresh=True)
        self._stale, self._drawn = False, time.monotonic()

    def _order(self) -> list[tuple[int, int]]:
        """Live jobs before ended ones, the worst first; where it comes to the same, by pid, so that nothing dances."""
        rank = {key: (m.ended, _WORST.index(m.verdict.severity), *key) for key, m in self._moments.items()}
        return sorted(self._moments, key=rank.__getitem__)

    def quits(self) -> bool:
        """Draw what is news, follow the keys that were pressed; True for the one that ends it."""
        self._redraw_now_and_then()
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
        """Give the terminal back, as it was: the monitor is being stopped."""
        self._live.stop()
        if self._keys:
            self._keys.close()

    def resume(self) -> None:
        """After `pause`: draw again."""
        self._live = self._start()
        self._keys = _Keys() if self._keys else None
        self.redraw()

    def close(self, moments: Sequence[Moment]) -> None:
        """Leave the screen; what remains is a line for each job."""
        try:
            self.pause()
            for moment in moments:
                self._console.print(Text(f"iofast monitor: {wording.summary(moment)}"), soft_wrap=True)
        except OSError:  # the window was closed
            give_up(self._out)


class _Keys:
    """Keys as they are pressed, without echo; where standard input is a terminal."""

    def __init__(self) -> None:
        self._before: Any = None
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        if self._input >= 0:
            import termios
            import tty

            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)

    def pressed(self) -> str:
        """What was pressed since last time."""
        if self._input < 0 or not select.select([self._input], [], [], 0)[0]:
            return ""
        with contextlib.suppress(OSError):
            return os.read(self._input, 64).decode("ascii", "replace")
        return ""

    def close(self) -> None:
        """Put the terminal back."""
        if self._before is not None:
            import termios

            with contextlib.suppress(termios.error):  # it may be gone: the window was closed
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
