"""The telemetry page of a process: one small JSON file about its loaders (docs/format.md, section 12).

The page is overwritten in one call, which is the cheapest update. A reader that comes at that moment sees a wrong
checksum and reads again. `from_json` checks every member, because another process may have written anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from iofast.meter.counters import STAGES, Stages, StageStats
from iofast.meter.traffic import TrafficStats, traffic

VERSION: Final = 5
MAX_BYTES: Final = 1 << 20  # larger files are ignored
MAX_LOADERS: Final = 64  # in a page; further ones are not published
MAX_PHASES: Final = 16  # of a loader in a page
MAX_NAME: Final = 64  # characters

Kind = Literal["FastLoader", "watched"]
_KINDS: Final = ("FastLoader", "watched")
_LARGEST: Final = (1 << 63) - 1
_CHECK: Final = 9  # bytes: CRC-32 of the rest in hexadecimal digits, and the end of the line


class TornPageError(ValueError):
    """A page that is being written, or other bytes."""


@dataclass(frozen=True)
class LoaderInfo:
    """A description of a loader; 0 means unknown.

    `num_workers` threads or processes, `prefetch` batches ahead, `batch_size` samples; `device` as torch writes it;
    `rank` of `world_size`, None if unknown.
    """

    name: str
    kind: Kind = "watched"
    num_workers: int = 0
    prefetch: int = 0
    batch_size: int = 0
    device: str = "cpu"
    rank: int | None = None
    world_size: int = 0


class Totals(NamedTuple):
    """Totals since the loader was made, except `epoch`, `batch` (of this epoch) and `updated_ns` (CLOCK_MONOTONIC).

    A step lasts from one batch to the next. The times to the first batch of an epoch and of its last next() are in
    `epoch_start_ns` instead. `device_stall_ns` and `device_step_ns` are by the device's clock, if there is one.
    """

    epoch: int = 0
    batch: int = 0
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
    stages: dict[str, StageStats]
    phases: dict[str, PhaseTotals] = field(default_factory=dict)
    phases_on_device: bool = False
    traffic: TrafficStats | None = None


class PageHeader(NamedTuple):
    """The process of a page. `rank` is from its environment, for loaders that do not know theirs."""

    pid: int
    start_time: int  # clock ticks since boot
    pid_namespace: int
    boot: str  # the kernel's boot id
    rank: int | None = None

    @property
    def place(self) -> tuple[int, str]:
        """Where the pid is valid: namespace and boot id."""
        return self.pid_namespace, self.boot


def loader_members(info: LoaderInfo, serial: int) -> dict[str, object]:
    """Return the members of a loader that seldom change."""
    return {"serial": serial, **vars(info), "name": printable(info.name)}


def figure_members(
    figures: Totals, stages: Stages | None, phases: Sequence[tuple[str, PhaseTotals]], *, on_device: bool
) -> dict[str, object]:
    """Return the members of a loader that change with each batch."""
    sums = {} if stages is None else {name: counter.sums() for name, counter in stages.counters().items()}
    named: dict[str, list[int]] = {}
    for name, totals in phases[:MAX_PHASES]:  # phases with the same printable name are added up
        own = named.setdefault(printable(name) or "?", [0, 0, 0])
        own[:] = [min(before + more, _LARGEST) for before, more in zip(own, totals, strict=True)]
    stored = traffic.stats() if stages is not None and stages.is_remote else None
    asked = stored and [*stored.counts, *(each and round(1e9 * each) for each in (stored.median_s, stored.p99_s))]
    return {"totals": figures, "stages": sums, "phases": named, "phases_on_device": on_device, "traffic": asked}


def to_json(header: PageHeader, loaders: Sequence[Mapping[str, object]], size: int = 0) -> bytes:
    """Return the bytes of a page, at least `size` of them: a page never becomes shorter."""
    members = {"iofast_telemetry": VERSION, **header._asdict(), "loaders": loaders}
    text = json.dumps(members, separators=(",", ":")).encode().ljust(size - _CHECK)
    return b"%08x\n%b" % (crc32(text), text)


def from_json(page: bytes) -> tuple[PageHeader, tuple[LoaderReport, ...]]:
    """Parse a page. Raises `TornPageError` for a wrong checksum; ValueError, KeyError, TypeError, IndexError or
    AttributeError for invalid members.
    """
    text = page[_CHECK:]
    if b"%08x\n" % crc32(text) != page[:_CHECK]:
        raise TornPageError
    members = json.loads(text)
    if members["iofast_telemetry"] != VERSION:
        raise ValueError("another version")
    own = {name: _count(members[name]) for name in ("pid", "start_time", "pid_namespace")}
    rank = members["rank"]
    header = PageHeader(**own, boot=_text(members["boot"]), rank=None if rank is None else _count(rank))
    if not header.pid:
        raise ValueError("no process has the number 0")
    loaders = [_report(each) for each in members["loaders"][:MAX_LOADERS]]
    return header, tuple(sorted(loaders, key=lambda report: report.serial))


def _report(members: Any) -> LoaderReport:
    kind, rank = members["kind"], members["rank"]
    if kind not in _KINDS:
        raise ValueError("an unknown kind of loader")
    counts = {name: _count(members[name]) for name in ("num_workers", "prefetch", "batch_size", "world_size")}
    rank = None if rank is None else _count(rank)
    info = LoaderInfo(_text(members["name"]), kind, device=_text(members["device"]), rank=rank, **counts)
    totals = Totals(*map(_count, members["totals"]))
    stages = {name: _stage(sums) for name, sums in members["stages"].items() if name in STAGES}
    phases = {_text(name): PhaseTotals(*map(_count, each)) for name, each in members["phases"].items()}
    own = members["traffic"]  # of the process
    asked = None if own is None else _traffic(own)
    on_device = members["phases_on_device"] is True
    return LoaderReport(_count(members["serial"]), info, totals, stages, phases, on_device, asked)


def _traffic(sums: Any) -> TrafficStats:
    gets, nbytes, retries, read = map(_count, sums[:4])
    median, late = (None if each is None else _count(each) / 1e9 for each in sums[4:6])
    return TrafficStats(gets, nbytes, retries, read, median, late)


def _stage(sums: Any) -> StageStats:
    items, failed, nbytes, work, wait = map(_count, sums[:5])
    full = None if sums[5] is None else float(sums[5])
    if full is not None and not 0.0 <= full <= 1.0:
        raise ValueError("an occupancy above 1")
    return StageStats(items, failed, nbytes, work / 1e9, wait / 1e9, full)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError("a figure that is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.isprintable():
        raise ValueError("a name that is not printable")
    return value


def printable(name: str) -> str:
    """Return `name` without unprintable characters, cut to `MAX_NAME` characters."""
    return "".join(each for each in str(name)[: 4 * MAX_NAME] if each.isprintable())[:MAX_NAME]
