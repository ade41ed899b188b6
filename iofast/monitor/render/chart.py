"""Timelines as inline SVG. No text of watched processes."""

from __future__ import annotations

from collections.abc import Sequence

from iofast.monitor.render.history import Point
from iofast.monitor.render.wording import clock

WIDTH, HEIGHT = 720, 64
_BOTTOM = 14  # for the axis, in units of the drawing
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800)


def area(points: Sequence[Point], low: int, high: int, scale: float) -> str:
    """Draw columns `high` and, in front of it, `low` of `points` over time. Stretches without values stay empty."""
    end = max((point.start_s + point.seconds for point in points), default=1.0)
    shapes = []
    for kind, column in (("high", high), ("low", low)):
        for run in _known(points, column):
            shares = [min(1.0, max(0.0, value / scale)) if scale > 0 else 0.0 for _, value in run]
            ends = [(_x(point.start_s, end), _x(point.start_s + point.seconds, end)) for point, _ in run]
            base = HEIGHT - _BOTTOM
            corners = [(x, base - share * (base - 2)) for two, share in zip(ends, shares, strict=True) for x in two]
            corners = [(ends[0][0], base), *corners, (ends[-1][1], base)]
            text = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            shapes.append(f'<polygon class="{kind}" points="{text}"/>')
    content = "".join(shapes) + _axis(end)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{content}</svg>'


def _known(points: Sequence[Point], column: int) -> list[list[tuple[Point, float]]]:
    """Stretches of neighbouring points with values."""
    runs: list[list[tuple[Point, float]]] = [[]]
    for point in points:
        value = point.values[column]
        if value is None:
            runs.append([])
        else:
            runs[-1].append((point, value))
    return [run for run in runs if run]


def _x(seconds: float, end: float) -> float:
    return WIDTH * min(1.0, max(0.0, seconds / max(end, 1e-9)))


def _axis(end: float) -> str:
    step = next((tick for tick in _TICKS if end / tick <= 8), _TICKS[-1])
    base = HEIGHT - _BOTTOM
    lines = [f'<line class="base" x1="0" x2="{WIDTH}" y1="{base}" y2="{base}"/>']
    for number in range(int(end / step) + 1):
        x = _x(number * step, end)
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        lines.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{base}"/>')
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 3}" text-anchor="{anchor}">{clock(number * step)}</text>')
    return "".join(lines)
