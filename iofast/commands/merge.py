"""`iofast merge`: several containers in one."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

_EXAMPLES = """\
examples:
  iofast merge a.lmdb b.lmdb both.lmdb                    records of a, then of b; classes united by their names
  iofast merge train.lmdb val.lmdb set.tar --as train,val each becomes a split
  iofast merge ./more out.lmdb new.lmdb                   a folder and a container

Refused where classes cannot mean the same: labels without names beside named ones, or names
that differ in case alone. The first one's numbers stay; others' that change are said.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    from iofast.commands.convert import add_options

    parser = subparsers.add_parser(
        "merge",
        help="put several containers into one",
        description="Copy the records of several containers into one. No payload but class numbers changes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", metavar="SRC", nargs="+", help="containers, or folders of images")
    parser.add_argument("target", metavar="DST", help="what to make: .lmdb, .tar, .tfrecord; none: a folder")
    parser.add_argument("--as", dest="names", metavar="NAMES", help="make each SRC a split: train,val")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Merge, and print what came of it."""
    from iofast.commands.convert import copy
    from iofast.copying import merge

    names = None if args.names is None else args.names.split(",")
    return copy(args, partial(merge, args.sources, args.target, names=names))
