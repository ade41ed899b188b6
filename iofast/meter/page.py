"""The telemetry page of a process: one small JSON file about its loaders (docs/format.md, section 12)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from iofast.meter.counters import StageStats
from iofast.meter.traffic import TrafficStats

VERSION: Final = 7
MAX_LOADERS: Final = 64  # in a page; further ones are not published
MAX_NAME: Final = 64  # characters


@dataclass(frozen=True)
class LoaderInfo:
    """A description of a loader; 0 means unknown.

    `num_workers` threads or processes, `prefetch` batches ahead, `batch_size` samples; `device` as torch writes it;
    `rank` of `world_size`, None if unknown.
    """

    name: str
    kind: Literal["FastLoader", "watched"] = "watched"
    num_workers: int = 0
    prefetch: int = 0
    batch_size: int = 0
    device: str = "cpu"
    rank: int | None = None
    world_size: int = 0


class Totals(NamedTuple):
    """Totals since the loader was made, except `epoch` and `updated_ns` (CLOCK_MONOTONIC).

    A step lasts from one batch to the next. The times to the first batch of an epoch and of its last next() are in
    `epoch_start_ns` instead. `device_stall_ns` and `device_step_ns` are by the device's clock, if there is one.
    """

    epoch: int = 0
    batches: int = 0
    images: int = 0
    steps: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    epoch_start_ns: int = 0
    device_stall_ns: int = 0
    device_step_ns: int = 0
    updated_ns: int = 0


class PhaseTotals(NamedTuple):
    """A phase of a loader's steps: entered `entered` times, of which `timed` took `ns` nanoseconds in total.

    A device's clock reports a phase some steps later, or not at all, so `timed` may be less than `entered`.
    """

    entered: int
    timed: int
    ns: int


@dataclass(frozen=True)
class LoaderReport:
    """One loader of a page. `serial` numbers the loaders of a process.

    `phases` by name, in the order of their first use; `phases_on_device`: timed by a CUDA device's clock. `traffic`:
    requests of the process to object stores, None if the loader reads from none.
    """

    serial: int
    info: LoaderInfo
    figures: Totals
    stages: Mapping[str, StageStats]
    phases: Mapping[str, PhaseTotals] = field(default_factory=dict)
    phases_on_device: bool = False
    traffic: TrafficStats | None = None


@dataclass(frozen=True)
class Page:
    """A process and its loaders that have returned a batch.

    start_time  of the process, in clock ticks since boot
    machine     the scope of the pid: the kernel's boot id, and the inode of the pid namespace
    rank        of `world_size`, as a loader knows it; None and 0 = unknown
    """

    pid: int
    start_time: int
    machine: str
    rank: int | None = None
    world_size: int = 0
    loaders: tuple[LoaderReport, ...] = ()


def to_json(page: Page) -> str:
    """Return the text of a page."""
    return json.dumps({"version": VERSION, **vars(page)}, default=vars, separators=(",", ":"))


def from_json(text: str) -> Page | None:
    """Return the page in `text`, None for another version.

    The folder of pages is the user's own, so the members are not checked further: text that `to_json` did not write
    raises any of ValueError, KeyError, TypeError and AttributeError.
    """
    members = json.loads(text)
    if members.pop("version") != VERSION:
        return None
    return Page(**members | {"loaders": tuple(map(_report, members["loaders"]))})


def _report(members: dict[str, Any]) -> LoaderReport:
    made = {
        "info": LoaderInfo(**members["info"]),
        "figures": Totals(*members["figures"]),
        "stages": {name: StageStats(**stats) for name, stats in members["stages"].items()},
        "phases": {name: PhaseTotals(*totals) for name, totals in members["phases"].items()},
        "traffic": members["traffic"] and TrafficStats(**members["traffic"]),
    }
    return LoaderReport(**members | made)


def printable(name: object) -> str:
    """Return `name` without unprintable characters, cut to `MAX_NAME` characters."""
    return "".join(each for each in str(name)[: 4 * MAX_NAME] if each.isprintable())[:MAX_NAME]
