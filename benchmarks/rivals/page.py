"""The page of figures: a table for each case, and what was asked."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks import measure

Case = Mapping[str, Any]
HEADER = ("", "images/s: median (least – most)", "iofast is", "CPU s per 1000", "MiB", "first batch, s")
TITLES = {
    "crop": "Random crops: RandomResizedCrop(224) and a flip, uint8",
    "float32": "The same, normalised to float32",
    "centre": "Evaluation: Resize(256) and CenterCrop(224), uint8",
    "recipe": "A recipe: random crops, ColorJitter, RandAugment, float32",
    "originals": "Random crops of the original photographs in a folder",
}
CASES = tuple(TITLES)
ASKED = (  # (case, ours, how theirs begin, at least)
    ("crop", "iofast", ("FFCV, jpg", "DALI", "TurboLoader", "tf.data"), 5.0),
    ("crop", "iofast", ("FFCV, raw",), 2.5),
    ("crop", "iofast, raw pixels", ("FFCV, raw",), 4.0),
    ("float32", "iofast", ("",), 3.0),
    ("centre", "iofast", ("",), 2.3),
    ("originals", "iofast, a folder", ("",), 2.2),
)


def medians(case: Case) -> dict[str, float]:
    """Images a second of each contender."""
    return {name: statistics.median(each["rate"] for each in runs) for name, runs in case["rounds"].items()}


def page(found: Mapping[str, Case]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _asked(found)]
    for name, case in found.items():
        parts.append(f"## {TITLES[name]}\n\n{measure.table(HEADER, _rows(case))}\n")
        if case["missing"]:
            parts.append("\n".join(f"- {label}: not run: {why}" for label, why in case["missing"].items()) + "\n")
        parts.append(f"{case['machine']}\n")
    return "\n".join([*parts, "- Command: `python -m benchmarks.rivals`\n"])


def _rows(case: Case) -> list[tuple[str, ...]]:
    middle, rows = medians(case), []
    own = [each["rate"] for each in next(iter(case["rounds"].values()))]  # iofast is the first
    for name in sorted(middle, key=lambda each: -middle[each]):
        runs, first = case["rounds"][name], case["first"][name]
        rate = [each["rate"] for each in runs]
        rows.append(
            (
                name,
                measure.spread(rate),
                f"{statistics.median(a / b for a, b in zip(own, rate, strict=True)):.2f}×",
                f"{statistics.median(each['cpu_s'] for each in runs):.2f}",
                f"{max(first['peak'], *(each['peak'] for each in runs)) / 2**20:,.0f}",
                f"{first['first']:.2f}",
            )
        )
    return rows


def _asked(found: Mapping[str, Case]) -> str:
    """What was asked of the fastest of these rivals, and what was found."""
    rows = []
    for case, ours, prefixes, least in ASKED:
        rounds = found.get(case, {"rounds": {}})["rounds"]
        theirs = [name for name in rounds if name.startswith(prefixes) and not name.startswith("iofast")]
        if ours in rounds and theirs:
            middle = medians(found[case])
            best = max(theirs, key=lambda each: middle[each])
            rates = ([each["rate"] for each in rounds[name]] for name in (ours, best))
            ratio = statistics.median(a / b for a, b in zip(*rates, strict=True))
            rows.append((f"{case}: {ours} to {best}", f"{ratio:.2f}", f"{least:.1f}"))
    return f"{measure.table(('', 'is', 'asked'), rows)}\n"


_INTRODUCTION = """# iofast beside its rivals

Batches of 256 images of 224 × 224 from the page cache, two workers, two cores. Each rival runs in an environment of its
own, as its documentation recommends for speed; its script in `benchmarks/rivals/peers/` says how, and why so. All
decode the same JPEGs, or containers that they wrote of them. Contenders take turns; each ratio is the median over the
rounds. Processor time and memory (shared pages counted in part) are of all processes of a contender.
"""
