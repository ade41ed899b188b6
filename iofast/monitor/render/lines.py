"""Plain lines, for output that is no terminal: a log file, a pipe."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TextIO

from iofast.monitor.findings import Bound, Cause, Severity, Verdict
from iofast.monitor.render import wording
from iofast.monitor.render.escape import plain
from iofast.monitor.render.moment import Moment, MomentView

EVERY_S = 30.0  # between lines about a job whose verdict does not change
_ENDED = 64  # jobs whose end was printed
_ADVICE = 3


class Lines(MomentView):
    """Prints a line when a verdict changes, every `every` seconds, and at the end of each job or of the monitor."""

    def __init__(self, out: TextIO, every: float = EVERY_S) -> None:
        self._out, self._every = out, every
        self._printed: dict[tuple[int, int], tuple[float, Bound, Cause | None]] = {}
        self._ended: deque[tuple[int, int]] = deque(maxlen=_ENDED)
        self._message = ""

    def update(self, moment: Moment) -> None:
        """Print the job's verdict if it is new or old enough."""
        key, now = (moment.job.pid, moment.job.start_time), moment.snapshot.time_s
        judged = (moment.verdict.bound, moment.verdict.cause)
        if moment.ended:
            self._printed.pop(key, None)
            self._end(moment)
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
        """Print the last verdict of each job."""
        for moment in moments:
            if moment.ended:
                self._end(moment)
            else:
                self._print(f"last: {wording.summary(moment)}")

    def _end(self, moment: Moment) -> None:
        key = (moment.job.pid, moment.job.start_time)
        if key not in self._ended:
            self._ended.append(key)
            self._print(f"ended: {wording.summary(moment)}")

    def _print(self, line: str) -> None:
        print(f"iofast monitor: {line}", file=self._out, flush=True)


def paragraphs(moment: Moment) -> list[str]:
    """A verdict in full, for `--once`."""
    verdict, snapshot = moment.verdict, moment.snapshot
    lines = [wording.name(moment.job, 200), f"  {wording.headline(verdict).upper()}  {_severity(verdict)}".rstrip()]
    lines.append(f"  {wording.explanation(verdict)}")
    lines += [f"  {text}" for text in (wording.stall_text(verdict.stall), wording.beside(verdict)) if text]
    lines.append(f"  {wording.basis(verdict)}")
    known = [f"{row.name} {row.now}" for row in wording.rows(moment) if row.now != wording.NONE]
    if known:
        lines.append(f"  in the last {snapshot.seconds:.3g} s: {', '.join(known)}")
    if verdict.evidence:
        lines += ["", "  evidence", *(f"    {plain(evidence.text)}" for evidence in verdict.evidence)]
    if verdict.advice:
        lines += ["", "  advice"]
    for number, advice in enumerate(verdict.advice[:_ADVICE], 1):
        promise = wording.gain(advice)
        lines.append(f"    {number}. {plain(advice.text)}" + (f" ({promise})" if promise else ""))
        lines += [f"       {line}" for line in wording.change(advice)]
    if verdict.what_if:
        lines += ["", "  what if", *(f"    {plain(wording.prediction(one))}" for one in verdict.what_if)]
    if phases := wording.phases(verdict):
        lines += ["", f"  phases: {phases}"]
    if step := wording.step(snapshot):
        lines += ["", f"  a step in the last {snapshot.seconds:.3g} s: {step}"]
    lines += [f"  note: {plain(note)}" for note in snapshot.notes]
    return lines


def _severity(verdict: Verdict) -> str:
    judged = verdict.bound.sure and verdict.severity is not Severity.NONE
    return f"({verdict.severity.value})" if judged else ""
