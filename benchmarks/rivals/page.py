"""The page of figures: a table for each case, and what was asked."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks import measure
from benchmarks.rivals.contenders import CASES

Figures = Mapping[str, Any]  # of a case
LIMIT = "limit: "  # how the labels of what is no loader begin
HEADER = ("", "images/s: median (least – most)", "iofast is", "CPU s per 1000", "MiB", "first batch, s")
COLD = (*HEADER[:-1], "bytes read of the set's")
ASKED = (  # (case, ours, how theirs begin, at least)
    ("crop", "iofast", ("FFCV, jpg", "DALI", "tf.data"), 5.0),
    ("float32", "iofast", ("TurboLoader, tar",), 5.0),
    ("crop", "iofast", ("FFCV, raw",), 2.5),
    ("crop", "iofast, raw pixels", ("FFCV, raw",), 4.0),
    ("float32", "iofast", ("TurboLoader, tbl",), 2.5),  # raw pixels, as FFCV's
    ("float32", "iofast, raw pixels", ("TurboLoader, tbl",), 4.0),
    ("float32", "iofast", ("",), 3.0),
    ("centre", "iofast", ("",), 2.3),
    ("originals", "iofast, a folder", ("",), 2.2),
    ("training", "iofast", ("",), 1.3),
    ("packing", "iofast", ("",), 1.8),
)
KNOWN = ("FFCV, jpg", "DALI, CPU", "tf.data", "DataLoader, torchvision")  # columns of the README's table
DECODE = "limit: full decode, libjpeg-turbo 2.1"
CPU = 0.22 / 0.45  # of the time that decoding in full takes: asked at most


def medians(case: Figures) -> dict[str, float]:
    """Images a second of each contender."""
    return {name: statistics.median(each["rate"] for each in runs) for name, runs in case["rounds"].items()}


def loaders(case: Figures) -> dict[str, float]:
    """The same, without limits."""
    return {name: rate for name, rate in medians(case).items() if not name.startswith(LIMIT)}


def page(found: Mapping[str, Figures]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _asked(found)]
    for name, case in found.items():
        is_cold = CASES[name].is_cold
        table = measure.table(COLD if is_cold else HEADER, _rows(case, is_cold=is_cold))
        parts.append(f"## {CASES[name].title}\n\n{table}\n")
        if case["missing"]:
            parts.append("\n".join(f"- {label}: not run: {why}" for label, why in case["missing"].items()) + "\n")
        parts.append(f"{case['machine']}\n- Rivals: {', '.join(case['versions'])}\n")
    return "\n".join([*parts, "- Command: `python -m benchmarks.rivals`\n"])


def _rows(case: Figures, *, is_cold: bool) -> list[tuple[str, ...]]:
    middle, rows = medians(case), []
    ours, *_ = middle
    for name in sorted(middle, key=lambda each: -middle[each]):
        runs, first = case["rounds"][name], case["first"][name]
        rows.append(
            (
                name,
                measure.spread([each["rate"] for each in runs]),
                f"{_ratio(case, ours, name):.2f}×",
                f"{statistics.median(each['cpu_s'] for each in runs):.2f}",
                f"{case['peak'][name] / 2**20:,.0f}",
                _read(case, name) if is_cold else f"{first['first']:.2f}" if first["first"] else "",
            )
        )
    return rows


def summary(found: Mapping[str, Figures]) -> str:
    """The README's table: how many times as fast as rivals iofast is."""
    rows = []
    for name, case in found.items():
        middle = loaders(case)
        ours, *_ = middle
        theirs = {each: rate for each, rate in middle.items() if not each.startswith("iofast")}
        if CASES[name].short and theirs:
            best = max(theirs, key=theirs.__getitem__)
            some = [f"{_ratio(case, ours, each):.1f}×" if each in theirs else "" for each in KNOWN]
            rows.append((CASES[name].short, f"{middle[ours]:,.0f}", *some, f"{_ratio(case, ours, best):.1f}× {best}"))
    return measure.table(
        ("task", "iofast, images/s", *(each.partition(",")[0] for each in KNOWN), "fastest rival"), rows
    )


def with_table(readme: str, table: str) -> str:
    """The README with another table between its marks."""
    before, begin, rest = readme.partition("<!-- rivals -->\n")
    _, end, after = rest.partition("<!-- end of rivals -->")
    assert begin, "the README has no mark for the table"
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _ratio(case: Figures, one: str, other: str) -> float:
    """The median over the rounds of the ratio of two contenders."""
    rates = {name: [each["rate"] for each in case["rounds"][name]] for name in (one, other)}
    return measure.ratio(rates, one, other)


def _read(case: Figures, name: str) -> str:
    """Which part of a container came from the disk: what keeps some in its memory was not cold."""
    return f"{statistics.median(each['read'] for each in case['rounds'][name]) / case['bytes'][name]:.2f}"


def _asked(found: Mapping[str, Figures]) -> str:
    """What was asked of the fastest of these rivals, and what was found."""
    rows = []
    for case, ours, prefixes, least in ASKED:
        rounds = found.get(case, {"rounds": {}})["rounds"]
        theirs = [name for name in rounds if name.startswith(prefixes) and not name.startswith(("iofast", LIMIT))]
        if ours in rounds and theirs:
            middle = medians(found[case])
            best = max(theirs, key=lambda each: middle[each])
            rows.append((f"{case}: {ours} to {best}", f"{_ratio(found[case], ours, best):.2f}", f"{least:.1f}"))
    rounds = found.get("crop", {"rounds": {}})["rounds"]
    if DECODE in rounds:
        ours, full = (statistics.median(each["cpu_s"] for each in rounds[name]) for name in ("iofast", DECODE))
        rows.append(("crop: processor time to that of a full decode", f"{ours / full:.2f}", f"at most {CPU:.2f}"))
    return f"{measure.table(('', 'is', 'asked'), rows)}\n"


_INTRODUCTION = """# iofast beside its rivals

Batches of 256 images of 224 × 224 from the page cache, two workers, two cores. Each rival runs in an environment of
its own, as its documentation recommends for speed; its script in `benchmarks/rivals/peers/` says how, and why so. All
read the same JPEGs, or containers that they wrote of them (FFCV's jpg encodes them again, TurboLoader's tbl has
squares). iofast's crops are those of Pillow to one level of 255. FFCV, tf.data, DALI, simplejpeg and what uses it
decode with the faster, less exact inverse DCT; tf.data, TurboLoader and OpenCV resize without antialiasing.

Contenders take turns, each with as many epochs as fill four seconds (from a cold disk, with one); each ratio is the
median over the rounds, and the epoch before them does not count. Processor time is of all processes of a contender,
memory the most of them in that first epoch, shared pages counted in part. The first batch is timed from the making of
the loader, after all imports.
"""
