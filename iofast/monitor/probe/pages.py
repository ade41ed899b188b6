"""Loaders that report from inside: differences of a job's telemetry page, and the pages of its other ranks."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from iofast.meter import LoaderReport, Page, PhaseTotals, StageStats, Totals, TrafficStats, pages
from iofast.monitor.probe import states
from iofast.monitor.probe.states import folder
from iofast.monitor.snapshot import Job, LoaderFigures

_NO_PHASE: Final = PhaseTotals(0, 0, 0)


class PagesProbe:
    """What the loaders of a job did between two takes.

    `note` says why nothing can be known, or is empty; `peers` has the share of their step time that other ranks of this
    job waited, by rank.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.note = _why_unreadable(job.pid)
        self.rank, self.world_size = job.rank, job.world_size
        self.peers: dict[int, float] = {}
        self._live: frozenset[int] = frozenset()  # serials of the loaders that advanced last
        self._pages = self._read()

    def take(self) -> tuple[LoaderFigures, ...]:
        """The current loaders. `live` are those that advanced; if none did, those that advanced last."""
        before, self._pages = self._pages, self._read()
        own = before.get(self.job.pid)
        figures = _differences(own.loaders if own else (), self._pages.get(self.job.pid))
        self._live = frozenset(serial for serial, each in figures.items() if each.batches) or self._live
        live = self._live & figures.keys() or figures.keys()
        self.peers = {}
        for pid, page in self._pages.items():
            if pid != self.job.pid and pid in before and page.rank is not None:
                since = _differences(before[pid].loaders, page).values()
                if stepped := sum(each.steps * (each.step_s or 0.0) for each in since):
                    self.peers[page.rank] = min(1.0, sum(each.wait_s for each in since) / stepped)
        return tuple(replace(figures[serial], live=serial in live) for serial in sorted(figures))

    def _read(self) -> dict[int, Page]:
        """The pages of the job and of its other ranks, by process."""
        found = {page.pid: page for page in pages()}
        own = found.get(self.job.pid)
        if own is not None and own.start_time != self.job.start_time:
            del found[self.job.pid]
        elif own is not None and own.rank is not None:
            self.rank, self.world_size = own.rank, own.world_size or self.world_size
        ranks = self.world_size if (self.world_size or 0) > 1 else None
        return {pid: page for pid, page in found.items() if pid == self.job.pid or page.world_size == ranks}


def _differences(before: Iterable[LoaderReport], page: Page | None) -> dict[int, LoaderFigures]:
    """What the loaders of a page did since these reports, by serial."""
    then = {report.serial: report for report in before}
    traffic = next((each.traffic for each in then.values() if each.traffic is not None), None)
    figures = {}
    for now in page.loaders if page is not None else ():
        beginning = LoaderReport(now.serial, now.info, Totals(), {}, traffic=traffic)  # made since
        since = then.get(now.serial, beginning)
        if now.figures.steps < since.figures.steps:  # an exec made another loader of the same number
            since = now
        figures[now.serial] = difference(since, now)
    return figures


def difference(before: LoaderReport, now: LoaderReport) -> LoaderFigures:
    """What a loader did between two reports."""
    info, then, figures = now.info, before.figures, now.figures

    def grown(name: str) -> int:
        return max(0, int(getattr(figures, name)) - int(getattr(then, name)))

    steps, device_ns = grown("steps"), grown("device_step_ns")
    stages = [(name, stats, before.stages.get(name, StageStats())) for name, stats in now.stages.items()]
    # not its time at work: copies beside a step of the device cost the step nothing
    waits = (max(0.0, stats.wait_s - since.wait_s) for name, stats, since in stages if name == "transfer")
    return LoaderFigures(
        name=info.name,
        kind=info.kind if info.kind == "FastLoader" else info.name,
        num_workers=info.num_workers,
        prefetch=info.prefetch or None,
        batch_size=info.batch_size or None,
        device=info.device,
        epoch=figures.epoch,
        batches=grown("batches"),
        images=grown("images") if figures.images else None,
        step_s=grown("step_ns") / steps / 1e9 if steps else None,
        wait_s=grown("wait_ns") / 1e9,
        exposed_s=grown("device_stall_ns") / 1e9 if device_ns else None,
        transfer_s=next(waits, None) if device_ns else None,
        phases=_phases(before, now),
        phases_on_device=now.phases_on_device,
        stages={name: max(0.0, stats.work_s - since.work_s) for name, stats, since in stages},
        failed=sum(max(0, stats.failed - since.failed) for _, stats, since in stages),
        steps=steps,
        device_step_s=device_ns / 1e9 if device_ns else None,
        epoch_start_s=grown("epoch_start_ns") / 1e9,
        traffic=now.traffic and now.traffic.since(before.traffic or TrafficStats()),
    )


def _phases(before: LoaderReport, now: LoaderReport) -> dict[str, float]:
    """Seconds by name of the phases that were entered since.

    A device reports times some steps later. So the number of entries counts, times the mean duration of those that were
    timed since; if none was, of all.
    """
    seconds = {}
    for name, totals in now.phases.items():
        then = before.phases.get(name, _NO_PHASE)
        entered, timed, ns = (value - value_then for value, value_then in zip(totals, then, strict=True))
        if timed <= 0 or ns < 0:
            timed, ns = totals.timed, totals.ns
        if entered > 0 and timed:
            seconds[name] = entered * ns / timed / 1e9
    return seconds


def _why_unreadable(pid: int) -> str:
    """Pages name processes by the numbers of their own pid namespace, so pages of another one are not searched."""
    with contextlib.suppress(OSError):
        if not os.path.samestat(os.stat(folder(pid) / "ns/pid"), os.stat(states.PROC / "self" / "ns/pid")):
            return (
                "the job runs in a container of its own: what its loaders report can be read from inside of that only"
            )
    return ""
