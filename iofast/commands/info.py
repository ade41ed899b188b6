"""Say what a container or a folder of images holds: counts, sizes, classes, splits, recipe.

examples:
  iofast info out.lmdb                          contents, sizes, classes, splits, recipe
  iofast info ./images                          the same of a plain folder of images
  iofast info shards/train.tar                  of work in parts that is not finished: which parts are missing
  iofast info out.lmdb --json | jq .classes     for programs
"""

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iofast.commands.shared import add_foreign, add_output, answer, count, foreign_given, say, size, table
from iofast.containers.base import Reader
from iofast.containers.located import steps
from iofast.errors import IofastError, UnfinishedError, plain
from iofast.kernel import read_header
from iofast.opening import open_reader
from iofast.record import IMAGE_FIELDS, RAW_FIELDS, image_field

BINS = 8
BAR = 32  # characters; with the longest label and count this makes 80 columns
Bin = list[float]  # low, high, count of the values from low to below high; the last bin includes high
_SAMPLE = 1000  # JPEGs whose headers are read for their restart intervals: 30 MB, 0.1 s
_INTERVALS = 6  # shown in the text
_WIDE = 100_000  # columns, for files and pipes
_SHOWN = 20  # classes and shards in the text; --json has all
_HISTOGRAMS = (
    ("shorter_side", "shorter side, pixels", lambda edge: f"{edge:,.0f}"),
    ("aspect", "width / height", lambda edge: f"{edge:.2f}"),
    ("bytes", "bytes of an image", size),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", metavar="PATH", help="a container such as out.lmdb, or a folder of images")
    add_foreign(parser)
    add_output(parser, "print JSON, with every class", "print nothing; exit status 0 if PATH can be read")


def run(args: argparse.Namespace) -> int:
    """Print the contents of `args.path`."""
    try:
        with open_reader(args.path, foreign_given(args)) as reader:
            facts = describe(reader, args.path)
    except UnfinishedError:
        found = _unfinished(args.path)
        if found is None or args.quiet:
            raise
        answer(args, {"path": args.path, "unfinished": found[0]}, lambda: say(found[1]))
        return 1
    answer(args, facts, lambda: _show(facts))
    return 0


def _unfinished(path: str) -> tuple[dict[str, Any], str] | None:
    """Return the facts of a run in parts that is not finished, and a sentence; None if there is no such run."""
    from iofast.containers.targets import target_of  # here: a finished container needs none of them
    from iofast.packing.part import missing_words
    from iofast.packing.parts import missing_parts
    from iofast.packing.plan import load_plan

    target = target_of(path)
    plan = load_plan(target)
    if plan is None or plan.parts is None:
        return None
    missing = list(missing_parts(target, plan))
    words = missing_words(missing, plan.parts) if missing else "all are packed; finish it with --finish"
    facts = {"images": plan.images, "parts": plan.parts, "missing": missing}
    return facts, f"unfinished: {plan.images:,} images in {plan.parts:,} parts; {words}"


def describe(reader: Reader, path: str) -> dict[str, Any]:
    """Return the JSON of a container; sizes are in bytes and in pixels of upright images."""
    manifest = reader.manifest
    images, labels = _columns(reader)
    classes = manifest.classes
    shards = sum(shard.size for shard in manifest.shards) or None  # or images of a folder
    return {
        "path": path,
        "container": reader.container,
        "count": manifest.count,
        "bytes": os.path.getsize(path) if os.path.isfile(path) else shards,
        "fields": list(manifest.fields),
        "shards": [{"name": own.name, "count": own.count, "bytes": own.size} for own in manifest.shards if own.name],
        "images": images,
        "restart": restart_intervals(reader),
        "classes": None if classes is None else {name: labels.get(i, 0) for i, name in enumerate(classes)},
        "class_order": manifest.class_order,
        "labels": {str(label): number for label, number in labels.items() if label >= 0},
        "unlabelled": labels.get(-1, 0),
        "splits": {name: sum(stop - start for start, stop in ranges) for name, ranges in manifest.splits.items()},
        "recipe": dict(manifest.recipe),
        "seed": manifest.seed,
        "fingerprint": manifest.fingerprint,
        "left_out": list(reader.left_out),
    }


def _columns(reader: Reader) -> tuple[dict[str, Any] | None, dict[int, int]]:
    """Return facts about all images together, and the number of records of each label."""
    if not len(reader):
        return None, {}
    slices = [reader.columns(indices) for indices in steps(0, len(reader))]
    label, length, width, height = (
        np.concatenate([getattr(part, name) for part in slices]) for name in ("label", "length", "width", "height")
    )
    values, counts = np.unique(label, return_counts=True)
    labels = dict(zip(values.tolist(), counts.tolist(), strict=True))
    field = image_field(tuple(reader.manifest.fields))
    if field is None:
        return None, labels
    images: dict[str, Any] = {
        "field": field,
        "fields": [name for name in (*IMAGE_FIELDS, *RAW_FIELDS) if name in reader.manifest.fields],
        "bytes": int(length.sum(dtype=np.int64)),
        "bytes_mean": float(length.mean()),
    }
    for name, column in (("width", width), ("height", height)):
        if (known := column[column > 0]).size:
            images[name] = {"min": int(known.min()), "median": float(np.median(known)), "max": int(known.max())}
    sized = (width > 0) & (height > 0)
    images["histograms"] = {
        "shorter_side": histogram(np.minimum(width, height)[sized].astype(np.float64)),  # pixels
        "aspect": histogram(width[sized] / height[sized]),
        "bytes": histogram(length[length > 0].astype(np.float64)),
    }
    return images, labels


def restart_intervals(reader: Reader) -> dict[str, Any] | None:
    """Return the restart intervals of all JPEGs, or of an even sample (docs/pack.md); None without JPEGs."""
    count = min(len(reader), _SAMPLE)
    intervals: Counter[int] = Counter()
    for number in range(count):
        with contextlib.suppress(IofastError, OSError, KeyError):  # `iofast verify` reports damaged records
            header = read_header(reader.view((2 * number + 1) * len(reader) // (2 * count)))
            if header.format == "jpeg":
                intervals[header.restart] += 1
    jpegs = intervals.total()
    marked = {str(interval): number for interval, number in sorted(intervals.items()) if interval}
    share = (jpegs - intervals[0]) / jpegs if jpegs else 0.0
    return {"sampled": count, "jpegs": jpegs, "share": share, "intervals": marked} if jpegs else None


def _show(facts: dict[str, Any]) -> None:
    # in a file or a pipe nothing is wrapped or padded, so that each fact is one line
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(highlight=False, width=None if has_width else _WIDE)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _lines(facts):
        grid.add_row(name, Text(plain(value)))
    with console.capture() as shown:
        console.print(grid)
        if facts["shards"]:
            rows = [(shard["name"], f"{shard['count']:,}", size(shard["bytes"])) for shard in facts["shards"]]
            _show_table(console, ("shard", "records", "size"), rows)
        for name, title, edge in _HISTOGRAMS if facts["images"] else ():
            if bins := facts["images"]["histograms"][name]:
                console.print("", Text(title, "bold"), bars(bins, edge), sep="\n")
        named = enumerate((facts["classes"] or {}).items())
        rows = [(str(label), name, f"{number:,}") for label, (name, number) in named]
        rows = rows or [(label, "", f"{number:,}") for label, number in facts["labels"].items()]
        if rows:
            _show_table(console, ("label", "class", "images"), rows)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _show_table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the first rows, with numbers aligned right."""
    right = [number for number, head in enumerate(heads) if head not in ("class", "shard")]
    console.print("", table(heads, rows[:_SHOWN], right), sep="\n")
    if (hidden := len(rows) - _SHOWN) > 0:
        console.print(f"and {hidden:,} more; --json lists them all")


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    where = facts["container"] + ("" if facts["bytes"] is None else f", {size(facts['bytes'])}")
    labelled = ("labels", f"{len(facts['labels']):,}, without names" if facts["labels"] else "")
    if facts["classes"] is not None:
        names = list(facts["classes"])
        added = facts["class_order"] == "lexicographic" and names != sorted(names)
        last = ", those added later last" if added else ""
        labelled = ("classes", f"{len(names):,}, in {facts['class_order']} order{last}")
    lines = [
        *(("path", facts["path"]), ("container", where), ("records", f"{facts['count']:,}")),
        ("fields", " ".join(facts["fields"])),
        *(_image_lines(facts["images"]) if facts["images"] else ()),
        ("restart", _restart_line(facts["restart"], facts["count"]) if facts["restart"] else ""),
        labelled,
        *(("left out", each) for each in facts["left_out"]),
        ("unlabelled", count(facts["unlabelled"], "record") if facts["unlabelled"] else ""),
        ("splits", ", ".join(f"{name} {number:,}" for name, number in facts["splits"].items())),
        ("recipe", ", ".join(f"{name}={value}" for name, value in sorted(facts["recipe"].items()))),
        ("shuffled", "" if facts["seed"] is None else f"with seed {facts['seed']}"),
        ("fingerprint", facts["fingerprint"]),
    ]
    return [(name, value) for name, value in lines if value or name in ("path", "fields", "splits")]


def _restart_line(restart: dict[str, Any], records: int) -> str:
    text, intervals = "no markers", sorted(restart["intervals"].items(), key=lambda item: -item[1])
    if intervals:
        each = ", ".join(f"{mcus} in {number / restart['jpegs']:.0%}" for mcus, number in intervals[:_INTERVALS])
        text = f"markers in {restart['share']:.0%} of the JPEGs; MCUs per interval: {each}"
        text += ", others" if len(intervals) > _INTERVALS else ""
    sampled = "" if restart["sampled"] == records else f" (of {restart['sampled']:,} sampled)"
    return text + sampled


def _image_lines(images: dict[str, Any]) -> list[tuple[str, str]]:
    mean = f"{size(images['bytes_mean'])} each on average"
    lines = [("images", f"{' '.join(images['fields'])}, {size(images['bytes'])}, {mean}")]
    for name in ("width", "height"):
        if name in images:
            sizes = images[name]
            lines.append((name, f"{sizes['min']} to {sizes['max']} pixels, median {sizes['median']:.0f}"))
    return lines


def histogram(values: NDArray[np.float64], bins: int = BINS) -> list[Bin]:
    """Count positive values in bins whose edges grow by a constant factor; one bin if all are equal."""
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


def bars(bins: Sequence[Bin], shown: Callable[[float], str]) -> Table:
    """Return a table with a row for each bin; `shown` formats an edge."""
    table = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right", "right"):
        table.add_column(justify=justify)
    most, total = max(here for *_, here in bins), sum(here for *_, here in bins)
    for low, high, here in bins:
        edges = shown(low) if low == high else f"{shown(low)} – {shown(high)}"
        least = most / (8 * BAR) if here else 0.0  # an eighth of a character
        table.add_row(f"  {edges}", Bar(most, 0, max(here, least), width=BAR), f"{int(here):,}", f"{here / total:.0%}")
    return table
