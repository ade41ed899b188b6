"""A monitor that watches one program from outside and keeps its observations, so that they can be judged again.

    python -m benchmarks.verdicts.judge PID SECONDS FILE

A process of its own, because the stand-in NVML is found by its environment. `FILE` gets an `Observation` as JSON, in
which data classes are objects.
"""

import json
import sys
import time
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from iofast.monitor.find import job_of
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.probe.states import Gone
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.watching import Watch

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Observation:
    """Snapshots between two monotonic times (nanoseconds), and the processor time that they took."""

    since: int
    until: int
    snapshots: tuple[Snapshot, ...]
    cpu_s: float


def observe(pid: int, seconds: float) -> Observation:
    """Watch the process `pid` for that long, or until it ends."""
    watch = Watch(job_of(pid), WatchOptions(), NvmlProbe())
    since, used = time.monotonic_ns(), time.process_time()
    until, snapshots = since, []
    try:
        while until < since + 1e9 * seconds:
            snapshots.append(watch.interval())
            until = time.monotonic_ns()
    except Gone:
        pass
    finally:
        watch.close()
    return Observation(since, until, tuple(snapshots), time.process_time() - used)


def plain(value: Any) -> Any:
    """A value for JSON: data classes become objects, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key.value if isinstance(key, Enum) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def read(kind: type[Kind], value: Any) -> Kind:
    """The inverse: an object of the data class `kind`. Raises KeyError or ValueError for a value that does not fit."""
    hints = _hints(kind)
    return kind(**{name: _typed(hints[name], each) for name, each in value.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _typed(hint: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is None or hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _typed(next(each for each in inner if each is not type(None)), value)
    if origin is tuple:
        return tuple(_typed(inner[0], each) for each in value)
    if origin is dict:
        return {_typed(inner[0], key): _typed(inner[1], each) for key, each in value.items()}
    if is_dataclass(hint):
        return read(typing.cast(type, hint), value)
    return hint(value)


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(plain(observe(int(sys.argv[1]), float(sys.argv[2])))))
