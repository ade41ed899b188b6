"""JSON: one object per interval of a job, on one line. docs/monitor.md has the schema."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, TextIO

from iofast.monitor.render.escape import plain
from iofast.monitor.render.moment import Moment, MomentView

SCHEMA = 2  # a new field keeps the number; a field removed or redefined raises it


def to_json(moment: Moment) -> dict[str, Any]:
    """A moment as plain data: dictionaries, lists, strings, numbers, None."""
    job, snapshot, verdict = moment.job, moment.snapshot, moment.verdict
    return {
        "schema": SCHEMA,
        "time": time.time(),
        "pid": job.pid,
        "command": plain(job.command),
        "rank": job.rank,
        "world_size": job.world_size,
        "verdict": verdict.bound.value,
        "cause": None if verdict.cause is None else verdict.cause.value,
        "severity": verdict.severity.value,
        "stall": None if verdict.stall is None else _data(asdict(verdict.stall)),
        "tier": verdict.tier.value,
        "reason": plain(verdict.reason),
        "waits": None if verdict.waits is None else _data(asdict(verdict.waits)),
        "evidence": [_data(asdict(evidence)) for evidence in verdict.evidence],
        "advice": [_data(asdict(advice)) for advice in verdict.advice],
        "phases": _data(verdict.phases),
        "seconds": verdict.seconds,
        "steps": verdict.steps,
        "interval": snapshot.seconds,
        "figures": _data(asdict(moment.figures)),
        "system": _data(asdict(snapshot.system)),
        "devices": [_data(asdict(device)) for device in snapshot.devices],
        "loaders": [_data(asdict(loader)) for loader in snapshot.loaders],
        "notes": [plain(note) for note in snapshot.notes],
    }


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
