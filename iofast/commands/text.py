"""Output of commands: JSON, lines that a name in a file cannot break, tables, and readable numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iofast.errors import plain

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def answer(args: argparse.Namespace, facts: Mapping[str, Any], show: Callable[[], object]) -> None:
    """Print `facts` as JSON, let `show` print them as text, or do nothing, as `--json` and `--quiet` say."""
    if args.json:
        print(json.dumps({"version": 1, **facts}))
    elif not args.quiet:
        show()


def say(*lines: object, on_stderr: bool = False) -> None:
    """Print each value on a line of its own, without control characters."""
    for line in lines:
        print(plain(str(line)), file=sys.stderr if on_stderr else sys.stdout)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int]) -> Table:
    """Return a table without lines. The columns `right` are aligned right; markup in cells is shown as it is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number in right:
        table.columns[number].justify = "right"
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def size(bytes_: float) -> str:
    """Return a size with three digits and a decimal unit: 14.2 MB."""
    value, unit = float(bytes_), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a time: 0.414 s, 12.3 s, 03:20, 2:05:00."""
    from tqdm import tqdm

    return f"{seconds:.3g} s" if seconds < 60 else tqdm.format_interval(seconds)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 image, 1,200 images."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
