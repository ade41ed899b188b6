"""JSON: one object per interval of a job, on one line. docs/monitor.md has the schema."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, TextIO

from iofast.monitor.render import wording
from iofast.monitor.render.escape import plain
from iofast.monitor.render.moment import Moment, MomentView

SCHEMA = 2  # a new field keeps the number; a field removed or redefined raises it


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
        print_object(moment, self._out)


def print_object(moment: Moment, out: TextIO) -> None:
    """Print the moment as one line of JSON, and flush it."""
    text = json.dumps(to_json(moment), allow_nan=False)
    print(text, file=out, flush=True)
