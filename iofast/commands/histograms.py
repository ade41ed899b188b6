"""Histograms of an index's columns, as numbers and as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BINS = 8
BAR = 32  # characters; with the longest label and count this makes 80 columns
_BLOCKS = " ▏▎▍▌▋▊▉█"  # eighths of a character

Bin = list[float]  # low, high, count of the values from low to below high; the last bin includes high


def histogram(values: NDArray[np.float64], bins: int = BINS) -> list[Bin]:
    """Count positive values in bins whose edges grow by a constant factor; one bin if all are equal."""
    import numpy as np

    if not len(values):
        return []
    low, high = float(values.min()), float(values.max())
    if high <= low * 1.001:
        return [[low, high, len(values)]]
    edges = np.geomspace(low, high, bins + 1)
    if low >= 16 and high - low >= 2 * bins:  # pixels and bytes read better as whole numbers
        edges = np.unique(np.round(edges))
    edges[0], edges[-1] = low, high
    counts, _ = np.histogram(values, edges)
    return [[float(a), float(b), int(n)] for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


def bars(bins: Sequence[Bin], shown: Any) -> list[str]:
    """Return one line for each bin; `shown` formats an edge."""
    labels = [shown(low) if low == high else f"{shown(low)} – {shown(high)}" for low, high, _ in bins]
    width = max(map(len, labels), default=0)
    most, total = max((count for *_, count in bins), default=1) or 1, sum(count for *_, count in bins) or 1
    lines = []
    for label, (_, _, count) in zip(labels, bins, strict=True):
        eighths = max(round(count / most * BAR * 8), 1) if count else 0
        bar = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
        lines.append(f"  {label:>{width}} {bar:<{BAR}} {int(count):>11,} {count / total:>4.0%}")
    return lines
