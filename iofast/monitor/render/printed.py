"""What is printed for an output that is no terminal: plain lines, or JSON with an object for each interval of a job.

docs/monitor.md has the schema of the objects.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, TextIO

from iofast.monitor.findings import Bound, Cause
from iofast.monitor.render import wording
from iofast.monitor.render.moment import Moment, MomentView
from iofast.monitor.render.wording import plain

EVERY_S = 30.0  # between lines about a job whose verdict does not change
SCHEMA = 2  # a new field keeps the number; a field removed or redefined raises it


class PlainLines(MomentView):
    """Prints a line when a verdict changes, now and then, and at the end of each job or of the monitor."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
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
        if last is not None and last[1:] == judged and now - last[0] < EVERY_S:
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


def to_json(moment: Moment) -> dict[str, Any]:
    """A moment as plain data: dictionaries, lists, strings, numbers, None."""
    job, snapshot, verdict = moment.job, moment.snapshot, moment.verdict
    judged = asdict(verdict)
    found = {
        "schema": SCHEMA,
        "time": time.time(),
        "pid": job.pid,
        "command": job.command,
        "rank": job.rank,
        "world_size": job.world_size,
        "verdict": judged.pop("bound"),
        **judged,
        "run": None if moment.history.sums is None else asdict(moment.history.sums),
        "interval": snapshot.seconds,
        "figures": asdict(moment.figures),
        "system": asdict(snapshot.system),
        "devices": [asdict(device) for device in snapshot.devices],
        "loaders": [asdict(loader) for loader in snapshot.loaders],
        "notes": snapshot.notes,
    }
    data = {name: _data(value) for name, value in found.items()}
    for advice, printed in zip(verdict.advice, data["advice"], strict=True):
        printed["change"] = "\n".join(wording.change(advice))  # lines to paste, each made plain
    return data


def _data(value: Any) -> Any:
    """`value` as JSON data, with texts made plain: `jq -r` prints them on a terminal as they are."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {_data(key): _data(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_data(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None  # JSON has no infinity and no NaN
    return value


class JsonLines(MomentView):
    """One object per line and interval."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def update(self, moment: Moment) -> None:
        """Print one object."""
        print(json.dumps(to_json(moment), allow_nan=False), file=self._out, flush=True)
