"""One HTML page about all watched jobs: no network, no scripts, light and dark, printable."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from iofast import owned
from iofast.errors import TargetError, because
from iofast.monitor.findings import Verdict
from iofast.monitor.render import chart, wording
from iofast.monitor.render.escape import page
from iofast.monitor.render.figures import NAMES
from iofast.monitor.render.history import History
from iofast.monitor.render.moment import Moment, MomentView
from iofast.monitor.render.style import CSS
from iofast.monitor.training import Training

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # the browser loads and runs nothing
_SPANS = 40  # rows of the table of verdicts


class PageReport(MomentView):
    """Writes the page when watching ends. Raises TargetError at the start if the path is not writable."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        folder = self._path.parent
        if self._path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise TargetError(f"--report cannot write {path}: expected a file in a writable folder")

    def close(self, moments: Sequence[Moment]) -> None:
        """Write the page to a temporary name and rename it."""
        try:
            with owned.writing(self._path) as file:
                file.write(html(moments, datetime.now(UTC)).encode())
        except OSError as error:
            raise TargetError(f"--report cannot write {self._path}: {because(error)}") from error


def html(moments: Sequence[Moment], when: datetime) -> str:
    """The page."""
    jobs = "".join(_job(moment) for moment in moments) or '<p class="soft">No training process was seen.</p>'
    date = when.strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>iofast monitor, {date}</title><style>{CSS}</style></head><body>"
        f"<header><h1>Is this training waiting for its data?</h1><p>iofast monitor, {date}</p></header>"
        f"{jobs}</body></html>\n"
    )


def _job(moment: Moment) -> str:
    job, history, verdict = moment.job, moment.history, moment.verdict
    size = "" if job.world_size is None else f" of {job.world_size}"
    rank = "" if job.rank is None else f", rank {job.rank}{size}"
    ended = "; the program has ended" if moment.ended else ""
    watched = f"watched for {wording.clock(history.seconds)} in {history.intervals:,} intervals{ended}"
    notes = "".join(f"<li>{page(note)}</li>" for note in moment.snapshot.notes)
    parts = [
        f'<section class="job"><p class="soft">pid {job.pid}{rank}, {watched}</p>',
        f'<code class="command">{page(job.command)}</code>',
        _verdict(verdict),
        _advice(verdict),
        _table("What if", ((one.change, wording.predicted(one), one.assumption) for one in verdict.what_if)),
        _table("Where the time went", wording.sums(history.sums)),
        _table("What the verdict rests on", ((evidence.text,) for evidence in verdict.evidence)),
        _step(moment),
        _timelines(moment),
        _spans(history),
        _table("Devices, in the last interval", wording.devices(moment.snapshot)),
        f"<h2>What could not be seen</h2><ul>{notes}</ul>" if notes else "",
    ]
    return "".join(parts) + "</section>"


def _table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """A table with its title; "" without rows."""
    cells = ("".join(f"<td>{page(cell)}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<h2>{page(title)}</h2><table>{lines}</table>" if lines else ""


def _verdict(verdict: Verdict) -> str:
    cause = "" if verdict.cause is None else f'<span class="cause">{verdict.cause.value}</span>'
    phases, bar = wording.phases(verdict), ""
    beside = f"<p>{page(text)}</p>" if (text := wording.beside(verdict)) else ""
    if verdict.stall is not None:
        low, high = (min(100.0, max(0.0, 100 * value)) for value in (verdict.stall.low, verdict.stall.high))
        bar = f'<div class="range"><i style="left:{low:.1f}%;width:{high - low:.1f}%"></i></div>'
    return (
        f'<div class="verdict {wording.tone(verdict)}"><b>{verdict.bound.value}</b>{cause}'
        f"<p>{page(wording.explanation(verdict))}</p>{bar}"
        f"<p>{page(wording.stall_text(verdict.stall))}</p>{beside}"
        f'<p class="soft">{page(wording.basis(verdict))}</p>'
        + (f'<p class="soft">phases: {page(phases)}</p>' if phases else "")
        + "</div>"
    )


def _advice(verdict: Verdict) -> str:
    items = []
    for advice in verdict.advice:
        promise = wording.gain(advice)
        change = "\n".join(map(page, advice.change.split("\n")))
        change = f"<code>{change}</code>" if change else ""
        note = f'<span class="soft">{page(promise)}</span>' if promise else ""
        items.append(f"<li>{page(wording.sentence(advice.text))}{change}{note}</li>")
    return f"<h2>What to change</h2><ol>{''.join(items)}</ol>" if items else ""


def _step(moment: Moment) -> str:
    phases = Training([moment.snapshot]).step_phases()
    clock = "by the device's clock" if phases.on_device else "by the host's clock"
    rows = [
        (name, f"{1e3 * share * phases.step_s:.3g} ms", wording.percent(share)) for name, share in phases.shares.items()
    ]
    return _table(f"Phases of a step, in the last interval, {clock}", rows)


def _timelines(moment: Moment) -> str:
    points = moment.history.timeline.points()
    charts = []
    for row in wording.rows(moment):
        low, high = NAMES.index(row.low), NAMES.index(row.high)
        known = [value for point in points if (value := point.values[high]) is not None]
        if known:
            scale = row.scale or max(known)
            full = wording.count(scale) if row.scale != 1.0 else "100%"
            full = wording.rate(scale) if row.name == "disk read" else full
            title = f'<span>{page(row.name)}</span><span class="soft">last {page(row.now)}, top {full}</span>'
            charts.append(f'<div class="chart"><div>{title}</div>{chart.area(points, low, high, scale)}</div>')
    return f"<h2>Timelines</h2>{''.join(charts)}" if charts else ""


def _spans(history: History) -> str:
    rows = [
        (
            f"{wording.clock(span.start_s)} to {wording.clock(span.end_s)}",
            span.bound.value,
            "" if span.cause is None else span.cause.value,
            wording.bounds(span.low, span.high),
        )
        for span in reversed(list(history.spans)[-_SPANS:])
    ]
    more = len(history.spans) - len(rows)
    title = "Verdicts over time" + (f", and {more} earlier" if more else "")
    return _table(title, rows)
