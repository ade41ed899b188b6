"""Loaders that report from inside: differences of the telemetry page of a job, and what its other ranks' pages say."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from iofast.meter import LoaderReport, Page, PhaseTotals, StageStats, Totals, pages, read_page
from iofast.monitor.probe.states import PROC
from iofast.monitor.snapshot import Job, LoaderFigures

_SEARCH_S: Final = 2.0  # between looks for a page that was not there
_NOTHING: Final = StageStats()
_NO_PHASE: Final = PhaseTotals(0, 0, 0)


class PagesProbe:
    """What the loaders of a job did between two takes. `note`: why nothing can be known, where that is so."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.note: str | None = _other_place(job.pid)
        self.rank, self.world_size = job.rank, job.world_size
        self._path: Path | None = None
        self._searched_at = -_SEARCH_S
        self._seen: dict[int, LoaderReport] = {}  # by serial
        self._last_live: frozenset[int] = frozenset()
        self._peers: dict[int, dict[int, LoaderReport]] = {}  # by process
        page = self._page()
        if page is not None:
            self._seen = {report.serial: report for report in page.loaders}

    def take(self) -> tuple[LoaderFigures, ...]:
        """The loaders that are there now. Those that advanced are `live`; where none did, those that did last."""
        return self._compare(self._page())

    def peers(self) -> dict[int, float]:
        """Share of their step time that other ranks of this job waited since the last call, by rank."""
        found: dict[int, float] = {}
        seen: dict[int, dict[int, LoaderReport]] = {}
        if self.world_size is None or self.world_size < 2:
            return found
        for page in pages():
            if page.pid == self.job.pid or page.rank is None or page.world_size != self.world_size:
                continue
            before = self._peers.get(page.pid)
            seen[page.pid] = {report.serial: report for report in page.loaders}
            if before is None:
                continue
            waited = stepped = 0
            for serial, report in seen[page.pid].items():
                figures, then = report.figures, before[serial].figures if serial in before else Totals()
                waited += max(0, figures.wait_ns - then.wait_ns)
                stepped += max(0, figures.step_ns - then.step_ns)
            if stepped:
                found[page.rank] = min(1.0, waited / stepped)
        self._peers = seen
        return found

    def _page(self) -> Page | None:
        """The job's page; found anew where it was made later, or again by an exec."""
        page = None if self._path is None else read_page(self._path)
        if page is None and (self._path is not None or time.monotonic() - self._searched_at >= _SEARCH_S):
            self._searched_at = time.monotonic()
            with contextlib.suppress(OSError):
                page = next((each for each in pages() if each.pid == self.job.pid), None)
        if page is not None and page.start_time != self.job.start_time:
            page = None
        self._path = None if page is None else page.path
        if page is not None and page.rank is not None:
            self.rank, self.world_size = page.rank, page.world_size or self.world_size
        return page

    def _compare(self, page: Page | None) -> tuple[LoaderFigures, ...]:
        reports = {} if page is None else {report.serial: report for report in page.loaders}
        figures = {}
        for serial, report in reports.items():
            before = self._seen.get(serial)
            if before is None:  # made since the last take, so that all its totals are of this interval
                before = LoaderReport(report.serial, report.info, Totals(), {})
            elif _fell(before.figures, report.figures):  # an exec made another loader of the same number
                before = report
            figures[serial] = difference(before, report)
        self._seen = reports
        advanced = frozenset(serial for serial, each in figures.items() if each.batches)
        if advanced:
            self._last_live = advanced
        live = self._last_live & figures.keys() or figures.keys()
        return tuple(replace(figures[serial], live=serial in live) for serial in sorted(figures))


def difference(before: LoaderReport, now: LoaderReport) -> LoaderFigures:
    """What a loader did between two reports."""
    then, figures = before.figures, now.figures
    steps = max(0, figures.steps - then.steps)
    step_ns = max(0, figures.step_ns - then.step_ns)
    device_ns = max(0, figures.device_step_ns - then.device_step_ns)
    images = max(0, figures.images - then.images)
    stages = {name: _stage(before.stages.get(name, _NOTHING), stats) for name, stats in now.stages.items()}
    info, copied = now.info, now.stages.get("transfer")
    waited = None if copied is None else copied.wait_s - before.stages.get("transfer", _NOTHING).wait_s
    return LoaderFigures(
        name=info.name,
        kind=info.kind if info.kind == "FastLoader" else info.name,
        num_workers=info.num_workers,
        prefetch=info.prefetch or None,
        batch_size=info.batch_size or None,
        device=info.device,
        epoch=figures.epoch,
        batches=steps + _first_batches(then, figures),
        images=images or (None if not figures.images else 0),
        step_s=step_ns / steps / 1e9 if steps else None,
        wait_s=max(0, figures.wait_ns - then.wait_ns) / 1e9,
        exposed_s=max(0, figures.device_stall_ns - then.device_stall_ns) / 1e9 if device_ns else None,
        # not its time at work: copies that the device makes beside its step cost the step nothing
        transfer_s=max(0.0, waited) if device_ns and waited is not None else None,
        phases=_phases(before, now),
        phases_on_device=now.phases_on_device,
        stages=stages,
        failed=max(0, sum(_failed(now)) - sum(_failed(before))),
        live=True,
        steps=steps,
        device_step_s=device_ns / 1e9 if device_ns else None,
        epoch_start_s=max(0, figures.epoch_start_ns - then.epoch_start_ns) / 1e9,
    )


def _first_batches(then: Totals, now: Totals) -> int:
    """Batches that ended no step: the first one of each epoch."""
    if not now.batch or then == now:
        return 0
    if not then.batch:
        return 1
    if now.epoch > then.epoch:
        return now.epoch - then.epoch
    # the same number again, or a smaller one: a loader whose epoch is set by its user
    return int(now.epoch < then.epoch or now.batch < then.batch)


def _phases(before: LoaderReport, now: LoaderReport) -> dict[str, float]:
    """Seconds by name of the phases that were entered since.

    A device tells times some steps later: how often a phase was entered counts, and how long it took where it was timed
    since, or on average until now.
    """
    found = {}
    for name, totals in now.phases.items():
        then = before.phases.get(name, _NO_PHASE)
        entered, timed, ns = (value - value_then for value, value_then in zip(totals, then, strict=True))
        if timed <= 0 or ns < 0:
            timed, ns = totals.timed, totals.ns
        if entered > 0 and timed:
            found[name] = entered * ns / timed / 1e9
    return found


def _stage(before: StageStats, now: StageStats) -> float:
    return max(0.0, now.work_s - before.work_s)


def _failed(report: LoaderReport) -> list[int]:
    return [stats.failed for stats in report.stages.values()]


def _fell(before: Totals, now: Totals) -> bool:
    """Totals never fall, within one loader."""
    totals = ("images", "steps", "step_ns", "wait_ns", "epoch_start_ns", "device_step_ns", "updated_ns")
    return any(getattr(now, name) < getattr(before, name) for name in totals)


def _other_place(pid: int) -> str | None:
    """Pages name processes as their own pid namespace counts, so that of another one is not looked for."""
    try:
        if os.stat(PROC / str(pid) / "ns" / "pid").st_ino != os.stat(PROC / "self" / "ns" / "pid").st_ino:
            return (
                "the job runs in a container of its own: what its loaders report can be read from inside of that only"
            )
    except OSError:
        pass
    return None
