"""Say what this machine has for packing and loading images, what it lacks, and what to do about it.

examples:
  iofast doctor                                          everything, with advice
  iofast doctor --json                                   for programs and bug reports
  iofast doctor --quiet && echo nothing is broken        the exit status alone

Exit status: 0, or 1 if something that iofast cannot work without is missing or broken.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iofast.commands.doctor_checks import Check

VERSION = 1  # of the JSON

_STYLES = {"ok": "green", "note": "", "missing": "yellow", "broken": "bold red"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing; exit status 0 if nothing is broken")


def run(args: argparse.Namespace) -> int:
    """Print the checks; exit status 1 if something indispensable is broken."""
    from iofast.commands.doctor_checks import checks

    results = checks()
    if args.json:
        print(json.dumps({"version": VERSION, "checks": [check._asdict() for check in results]}))
    elif not args.quiet:
        _show(results)
    return int(any(check.state == "broken" for check in results))


def _show(results: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group, members in groupby(results, key=lambda check: check.group):
        if table.row_count:
            table.add_row()
        table.add_row(Text(group, "bold"))
        for check in members:
            table.add_row(f"  {check.name}", Text(check.state, _STYLES[check.state]), Text(check.value))
            if check.advice:
                table.add_row("", "", Text(f"-> {check.advice}", "italic"))
    Console(highlight=False).print(table)
