"""Plain lines, for output that is no terminal: a log file, a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from iofast.monitor.findings import Bound, Cause
from iofast.monitor.render import wording
from iofast.monitor.render.escape import plain
from iofast.monitor.render.moment import Moment, MomentView

EVERY_S = 30.0  # between lines about a job whose verdict does not change


class Lines(MomentView):
    """Prints a line when a verdict changes, every `every` seconds, and at the end of each job or of the monitor."""

    def __init__(self, out: TextIO, every: float = EVERY_S) -> None:
        self._out, self._every = out, every
        self._printed: dict[tuple[int, int], tuple[float, Bound, Cause | None]] = {}
        self._message = ""

    def update(self, moment: Moment) -> None:
        """Print the job's verdict if it is new or old enough."""
        key, now = (moment.job.pid, moment.job.start_time), moment.snapshot.time_s
        judged = (moment.verdict.bound, moment.verdict.cause)
        if moment.ended:
            self._printed.pop(key, None)
            self._print(f"ended: {wording.summary(moment)}")
            return
        last = self._printed.get(key)
        if last is not None and last[1:] == judged and now - last[0] < self._every:
            return
        self._message = ""
        self._printed[key] = (now, *judged)
        for note in moment.snapshot.notes if last is None else ():
            self._print(f"note: {plain(note)}")
        self._print(wording.summary(moment))

    def waiting(self, message: str) -> None:
        """Print the message once until a job is watched."""
        if message != self._message:
            self._message = message
            self._print(plain(message))

    def close(self, moments: Sequence[Moment]) -> None:
        """Print the last verdict of each job that goes on."""
        for moment in moments:
            if not moment.ended:
                self._print(f"last: {wording.summary(moment)}")

    def _print(self, line: str) -> None:
        print(f"iofast monitor: {line}", file=self._out, flush=True)
