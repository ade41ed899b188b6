"""`iofast doctor`: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iofast.commands.doctor_checks import Check

VERSION = 1  # of the JSON

_EXAMPLES = """\
examples:
  iofast doctor                                          everything, with advice
  iofast doctor --json                                   for programs and bug reports
  iofast doctor --quiet && echo nothing is broken        the exit status alone

Exit status: 0, or 1 where something that iofast cannot work without is missing or broken.
"""
_STYLES = {"ok": "green", "note": "", "missing": "yellow", "broken": "bold red"}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what this machine has and lacks",
        description="Say what this machine has for packing and loading images, what it lacks, and what to do about it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing: the exit status says if all is there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the checks; 1 where something indispensable is broken."""
    from iofast.commands.doctor_checks import checks

    found = checks()
    if args.json:
        print(json.dumps({"version": VERSION, "checks": [check._asdict() for check in found]}))
    elif not args.quiet:
        _show(found)
    return int(any(check.state == "broken" for check in found))


def _show(found: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for check in found:
        if check.group != group:
            if group:
                table.add_row()
            table.add_row(Text(check.group, "bold"))
            group = check.group
        table.add_row(f"  {check.name}", Text(check.state, _STYLES[check.state]), Text(check.value))
        if check.advice:
            table.add_row("", "", Text(f"-> {check.advice}", "italic"))
    Console(highlight=False).print(table)
