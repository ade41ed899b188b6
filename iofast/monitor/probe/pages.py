"""Loaders that report from inside: differences of a job's telemetry page, and the pages of its other ranks."""

import contextlib
import os
from dataclasses import replace
from typing import Final

from iofast.meter import LoaderReport, PhaseTotals, StageStats, Totals, TrafficStats, page_of, pages
from iofast.monitor.probe import states
from iofast.monitor.probe.states import folder
from iofast.monitor.snapshot import Job, LoaderFigures

_NO_STAGE: Final = StageStats()
_NO_PHASE: Final = PhaseTotals(0, 0, 0)
_NEVER_FALL: Final = ("batches", "steps", "step_ns", "wait_ns", "epoch_start_ns", "device_step_ns", "updated_ns")


class PagesProbe:
    """What the loaders of a job did between two takes. `note` says why nothing can be known, or is empty."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.note = _why_unreadable(job.pid)
        self.rank, self.world_size = job.rank, job.world_size
        self._live: frozenset[int] = frozenset()  # serials of the loaders that advanced last
        self._peers: dict[int, dict[int, LoaderReport]] = {}  # by process
        self._reports = self._read()

    def take(self) -> tuple[LoaderFigures, ...]:
        """The current loaders. `live` are those that advanced; if none did, those that advanced last."""
        before, self._reports = self._reports, self._read()
        figures, traffic = {}, next((each.traffic for each in before.values() if each.traffic is not None), None)
        for serial, report in self._reports.items():
            then = before.get(serial) or replace(_beginning(report), traffic=traffic)
            if any(getattr(report.figures, name) < getattr(then.figures, name) for name in _NEVER_FALL):
                then = report  # an exec made another loader of the same number
            figures[serial] = difference(then, report)
        self._live = frozenset(serial for serial, each in figures.items() if each.batches) or self._live
        live = self._live & figures.keys() or figures.keys()
        return tuple(replace(figures[serial], live=serial in live) for serial in sorted(figures))

    def peers(self) -> dict[int, float]:
        """Share of their step time that other ranks of this job waited since the last call, by rank."""
        shares: dict[int, float] = {}
        if self.world_size is None or self.world_size < 2:
            return shares
        before, self._peers = self._peers, {}
        for page in pages():
            if page.pid == self.job.pid or page.rank is None or page.world_size != self.world_size:
                continue
            self._peers[page.pid] = {report.serial: report for report in page.loaders}
            if page.pid not in before:
                continue
            waited = stepped = 0
            for report in page.loaders:
                then = before[page.pid].get(report.serial, _beginning(report)).figures
                waited += max(0, report.figures.wait_ns - then.wait_ns)
                stepped += max(0, report.figures.step_ns - then.step_ns)
            if stepped:
                shares[page.rank] = min(1.0, waited / stepped)
        return shares

    def _read(self) -> dict[int, LoaderReport]:
        """The reports of the job's page, by serial."""
        page = page_of(self.job.pid, self.job.start_time)
        if page is None:
            return {}
        if page.rank is not None:
            self.rank, self.world_size = page.rank, page.world_size or self.world_size
        return {report.serial: report for report in page.loaders}


def difference(before: LoaderReport, now: LoaderReport) -> LoaderFigures:
    """What a loader did between two reports."""
    info, then, figures = now.info, before.figures, now.figures

    def grown(name: str) -> int:
        return max(0, int(getattr(figures, name)) - int(getattr(then, name)))

    steps, device_ns = grown("steps"), grown("device_step_ns")
    transfer_s = None
    if device_ns and (copied := now.stages.get("transfer")) is not None:
        # not its time at work: copies beside a step of the device cost the step nothing
        transfer_s = max(0.0, copied.wait_s - before.stages.get("transfer", _NO_STAGE).wait_s)
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
        transfer_s=transfer_s,
        phases=_phases(before, now),
        phases_on_device=now.phases_on_device,
        stages={
            name: max(0.0, stats.work_s - before.stages.get(name, _NO_STAGE).work_s)
            for name, stats in now.stages.items()
        },
        failed=max(0, _failed(now) - _failed(before)),
        live=True,
        steps=steps,
        device_step_s=device_ns / 1e9 if device_ns else None,
        epoch_start_s=grown("epoch_start_ns") / 1e9,
        traffic=now.traffic and now.traffic.since(before.traffic or TrafficStats()),
    )


def _beginning(report: LoaderReport) -> LoaderReport:
    """The report of a loader before it did anything: it was made since the last take."""
    return LoaderReport(report.serial, report.info, Totals(), {})


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


def _failed(report: LoaderReport) -> int:
    return sum(stats.failed for stats in report.stages.values())


def _why_unreadable(pid: int) -> str:
    """Pages name processes by the numbers of their own pid namespace, so pages of another one are not searched."""
    with contextlib.suppress(OSError):
        if not os.path.samestat(os.stat(folder(pid) / "ns/pid"), os.stat(states.PROC / "self" / "ns/pid")):
            return (
                "the job runs in a container of its own: what its loaders report can be read from inside of that only"
            )
    return ""
