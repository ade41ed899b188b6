"""One HTML page about all watched jobs: no network, no scripts, light and dark, printable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from iofast import owned
from iofast.errors import TargetError, because
from iofast.monitor.findings import Verdict
from iofast.monitor.render import chart, wording
from iofast.monitor.render.escape import page
from iofast.monitor.render.figures import NAMES
from iofast.monitor.render.history import History, Span
from iofast.monitor.render.moment import Moment, MomentView
from iofast.monitor.render.style import CSS
from iofast.monitor.snapshot import own_devices
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
    job, history = moment.job, moment.history
    rank = (
        "" if job.rank is None else f", rank {job.rank}" + ("" if job.world_size is None else f" of {job.world_size}")
    )
    ended = "; the program has ended" if moment.ended else ""
    watched = f"watched for {wording.clock(history.seconds)} in {history.intervals:,} intervals{ended}"
    parts = [
        f'<section class="job"><p class="soft">pid {job.pid}{rank}, {watched}</p>',
        f'<code class="command">{page(job.command)}</code>',
        _verdict(moment.verdict, history),
        _advice(moment.verdict),
        _evidence(moment.verdict),
        _step(moment),
        _timelines(moment),
        _spans(history),
        _devices(moment),
        _notes(moment),
    ]
    return "".join(parts) + "</section>"


def _verdict(verdict: Verdict, history: History) -> str:
    last = history.spans[-1] if history.spans else None
    tone = "abstained" if last is None else chart.tone(last)
    cause = "" if verdict.cause is None else f'<span class="cause">{verdict.cause.value}</span>'
    phases = wording.phases(verdict)
    return (
        f'<div class="verdict {tone}"><b>{verdict.bound.value}</b>{cause}'
        f"<p>{page(wording.explanation(verdict))}</p>{_range(verdict)}"
        f'<p>{page(wording.stall_text(verdict.stall))}</p><p class="soft">{page(wording.basis(verdict))}</p>'
        + (f'<p class="soft">phases: {page(phases)}</p>' if phases else "")
        + "</div>"
    )


def _range(verdict: Verdict) -> str:
    if verdict.stall is None:
        return ""
    low, high = (min(100.0, max(0.0, 100 * value)) for value in (verdict.stall.low, verdict.stall.high))
    return f'<div class="range"><i style="left:{low:.1f}%;width:{high - low:.1f}%"></i></div>'


def _advice(verdict: Verdict) -> str:
    items = []
    for advice in verdict.advice:
        promise = wording.gain(advice)
        change = "\n".join(map(page, advice.change.split("\n")))
        change = f"<code>{change}</code>" if change else ""
        note = f'<span class="soft">{page(promise)}</span>' if promise else ""
        items.append(f"<li>{page(wording.sentence(advice.text))}{change}{note}</li>")
    return f"<h2>What to change</h2><ol>{''.join(items)}</ol>" if items else ""


def _evidence(verdict: Verdict) -> str:
    rows = "".join(f"<tr><td>{page(evidence.text)}</td></tr>" for evidence in verdict.evidence)
    return f"<h2>What the verdict rests on</h2><table>{rows}</table>" if rows else ""


def _step(moment: Moment) -> str:
    phases, rows = Training([moment.snapshot]).step_phases(), ""
    if not phases.shares:
        return ""
    for name, share in phases.shares.items():
        ms = 1e3 * share * phases.step_s
        cells = f'<td class="number">{ms:.3g} ms</td><td class="number">{wording.percent(share)}</td>'
        rows += f"<tr><td>{page(name)}</td>{cells}</tr>"
    clock = "by the device's clock" if phases.on_device else "by the host's clock"
    head = f"<tr><th>{page(clock)}</th><th>per batch</th><th>of a step</th></tr>"
    return f"<h2>Phases of a step, in the last interval</h2><table>{head}{rows}</table>"


def _timelines(moment: Moment) -> str:
    points = moment.history.timeline.points()
    charts = []
    for row in wording.rows(moment):
        low, high = NAMES.index(row.low), NAMES.index(row.high)
        if all(point.values[high] is None for point in points):
            continue
        scale = row.scale or chart.largest(points, high)
        drawing = chart.area(points, low, high, scale)
        full = "100%" if row.scale == 1.0 else wording.rate(scale) if row.name == "disk read" else wording.count(scale)
        title = f'<div><span>{page(row.name)}</span><span class="soft">last {page(row.now)}, top {full}</span></div>'
        charts.append(f'<div class="chart">{title}{drawing}</div>')
    return f"<h2>Timelines</h2>{''.join(charts)}" if charts else ""


def _spans(history: History) -> str:
    spans = list(history.spans)
    if not spans:
        return ""
    rows = "".join(_span(span) for span in reversed(spans[-_SPANS:]))
    head = "<tr><th>from</th><th>to</th><th>verdict</th><th>cause</th><th>stall</th></tr>"
    left_out = len(spans) - _SPANS
    more = f'<p class="soft">and {left_out} earlier</p>' if left_out > 0 else ""
    return f"<h2>Verdicts over time</h2>{chart.strip(spans)}<table>{head}{rows}</table>{more}"


def _span(span: Span) -> str:
    cause = "" if span.cause is None else span.cause.value
    times = f'<td class="number">{wording.clock(span.start_s)}</td><td class="number">{wording.clock(span.end_s)}</td>'
    stall = wording.bounds(span.low, span.high)
    return f'<tr>{times}<td>{span.bound.value}</td><td>{cause}</td><td class="number">{stall}</td></tr>'


def _devices(moment: Moment) -> str:
    rows = ""
    for device in own_devices(moment.snapshot.devices):
        power = "" if device.power_w is None else f"{device.power_w:.0f} W"
        busy = f"busy {wording.percent(device.busy)}"
        cells = (f"GPU {device.index}", device.name, busy, wording.memory(device), power)
        rows += "<tr>" + "".join(f"<td>{page(cell)}</td>" for cell in cells) + "</tr>"
    return f"<h2>Devices, in the last interval</h2><table>{rows}</table>" if rows else ""


def _notes(moment: Moment) -> str:
    notes = "".join(f"<li>{page(note)}</li>" for note in moment.snapshot.notes)
    return f"<h2>What could not be seen</h2><ul>{notes}</ul>" if notes else ""
