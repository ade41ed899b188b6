"""Timelines as inline SVG: areas, bands between two bounds, a strip of verdicts. No text of watched processes."""

from __future__ import annotations

from collections.abc import Sequence

from iofast.monitor.findings import Bound, Severity
from iofast.monitor.render.history import Point, Span
from iofast.monitor.render.wording import clock

WIDTH, HEIGHT = 720, 64
_LEFT, _RIGHT, _BOTTOM = 4, 4, 14  # margins, in units of the drawing
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800)


def area(points: Sequence[Point], low: int, high: int, scale: float) -> str:
    """Draw columns `low` and `high` of `points` over time: an area if they are the same, else a band above an area.

    Stretches without values stay empty.
    """
    end = _end(points)
    layers = [(None, low, "area")] if low == high else [(None, low, "under"), (low, high, "band")]
    shapes = [
        f'<polygon class="{kind}" points="{_outline(run, lower, upper, scale, end)}"/>'
        for lower, upper, kind in layers
        for run in _known(points, low, high)
    ]
    return _frame("".join(shapes) + _axis(end), HEIGHT)


def _outline(run: Sequence[Point], lower: int | None, upper: int, scale: float, end: float) -> str:
    """Corners of a stretch: along its upper values and back along its lower ones, or along the axis."""
    above = [(at, point.values[upper] or 0.0) for point in run for at in _ends(point)]
    below = [(at, 0.0 if lower is None else point.values[lower] or 0.0) for point in run for at in _ends(point)]
    tall = HEIGHT - _BOTTOM - 2
    shares = ((at, min(1.0, max(0.0, value / scale)) if scale > 0 else 0.0) for at, value in above + below[::-1])
    return " ".join(f"{_x(at, end):.1f},{2 + tall * (1 - share):.1f}" for at, share in shares)


def _ends(point: Point) -> tuple[float, float]:
    return point.start_s, point.start_s + point.seconds


def strip(spans: Sequence[Span]) -> str:
    """Draw the verdicts over time as coloured stretches."""
    end = max((span.end_s for span in spans), default=1.0)
    shapes = []
    for span in spans:
        left, right = _x(span.start_s, end), _x(span.end_s, end)
        words = f"{span.bound.value}, {clock(span.start_s)} to {clock(span.end_s)}"
        shape = f'<rect class="{tone(span)}" x="{left:.1f}" y="0" width="{max(0.5, right - left):.1f}" height="18"'
        shapes.append(f"{shape}><title>{words}</title></rect>")
    return _frame(f'<g>{"".join(shapes)}</g><g transform="translate(0 {18 - HEIGHT + _BOTTOM})">{_axis(end)}</g>', 34)


def tone(span: Span) -> str:
    """CSS class with the colour of a verdict."""
    if not span.bound.sure:
        return "abstained"
    good = span.bound in (Bound.COMPUTE, Bound.MEMORY)
    return Severity.NOTICE.value if span.severity is Severity.NONE and not good else span.severity.value


def largest(points: Sequence[Point], column: int) -> float:
    """The largest known value, for the scale; 1 without any."""
    return max((value for point in points if (value := point.values[column])), default=1.0)


def _end(points: Sequence[Point]) -> float:
    return max((point.start_s + point.seconds for point in points), default=1.0)


def _known(points: Sequence[Point], low: int, high: int) -> list[list[Point]]:
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.values[low] is None or point.values[high] is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _x(seconds: float, end: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, seconds / max(end, 1e-9)))


def _axis(end: float) -> str:
    step = next((tick for tick in _TICKS if end / tick <= 8), _TICKS[-1])
    base = HEIGHT - _BOTTOM
    lines = [f'<line class="base" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    for number in range(int(end / step) + 1):
        x = _x(number * step, end)
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        lines.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{base}"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 3}" text-anchor="{anchor}">{clock(number * step)}</text>')
    return "".join(lines)


def _frame(content: str, height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'
