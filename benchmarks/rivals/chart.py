"""The chart of a case: a bar for each contender, in SVG for a light and for a dark page."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

TITLE = "Images a second into training: random crops of packed photographs, two cores"
WIDTH, LABELS, FIGURES, ROW, BAR, TOP = 760, 210, 110, 26, 16, 40
# page background is left transparent: text, quiet text, our bars, other bars
THEMES = {
    "light": ("#1f2328", "#59636e", "#0969da", "#afb8c1"),
    "dark": ("#f0f6fc", "#9198a1", "#4493f8", "#484f58"),
}


def chart(title: str, rates: Mapping[str, float], theme: str) -> str:
    """Bars of images a second, the longest first; those of iofast are coloured."""
    text, quiet, ours, others = THEMES[theme]
    height, most = TOP + ROW * len(rates) + 10, max(rates.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">',
        f'<text x="0" y="20" font-size="15" font-weight="600" fill="{text}">{escape(title)}</text>',
    ]
    for row, (name, rate) in enumerate(sorted(rates.items(), key=lambda each: -each[1])):
        y, is_ours = TOP + ROW * row, name.startswith("iofast")
        length = (WIDTH - LABELS - FIGURES) * rate / most
        weight = ' font-weight="600"' if is_ours else ""
        parts += [
            f'<text x="{LABELS - 10}" y="{y + 13}" text-anchor="end" fill="{text if is_ours else quiet}"{weight}>'
            f"{escape(name)}</text>",
            f'<rect x="{LABELS}" y="{y}" width="{max(1.0, length):.1f}" height="{BAR}" rx="2" '
            f'fill="{ours if is_ours else others}"/>',
            f'<text x="{LABELS + length + 8:.1f}" y="{y + 13}" fill="{text if is_ours else quiet}"{weight}>'
            f"{rate:,.0f}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
