"""`iofast merge`: several containers in one."""

from __future__ import annotations

import argparse
from functools import partial

from iofast.commands.convert import add_copy_options, copy

HELP = "combine several containers into one"
DESCRIPTION = "Copy the records of several containers into one. Only class numbers may change, no other payload."
EXAMPLES = """\
examples:
  iofast merge a.lmdb b.lmdb both.lmdb                    records of a, then of b; classes united by their names
  iofast merge train.lmdb val.lmdb set.tar --as train,val each becomes a split
  iofast merge ./more out.lmdb new.lmdb                   a folder and a container

Classes must be compatible: named labels do not mix with unnamed ones, and names must not
differ in case alone. The first container keeps its class numbers; changed ones are reported.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("sources", metavar="SRC", nargs="+", help="containers, or folders of images")
    parser.add_argument("target", metavar="DST", help="what to write: .lmdb, .tar, .tfrecord, or a folder")
    parser.add_argument("--as", dest="names", metavar="NAMES", help="make each SRC a split: train,val")
    add_copy_options(parser)


def run(args: argparse.Namespace) -> int:
    """Merge and print the result."""
    from iofast.copying import merge

    names = None if args.names is None else args.names.split(",")
    return copy(args, partial(merge, args.sources, args.target, names=names))
