"""`iofast split`: a container divided into splits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

_EXAMPLES = """\
examples:
  iofast split out.lmdb parts.lmdb --split val=0.1                       a tenth at random; the rest is train
  iofast split out.lmdb parts.lmdb --split val=0.1 --split test=0.1 --stratify
  iofast split out.lmdb parts.lmdb --split val=0-999,5000                these records, counted from 0
  iofast split out.lmdb parts.lmdb --split val=@val.txt                  those in a file, one number a line
  iofast split parts.lmdb more.lmdb --of train --split dev=0.05          take another out of train
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    from iofast.commands.convert import add_options

    parser = subparsers.add_parser(
        "split",
        help="divide a container into splits",
        description="Copy a container, its records divided into splits. No payload changes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="a container, or a folder of images")
    parser.add_argument("target", metavar="DST", help="what to make: .lmdb, .tar, .tfrecord; none: a folder")
    parser.add_argument(
        "--split",
        action="append",
        required=True,
        metavar="NAME=PART",
        help="a share (0.1), records (0-99,200) or @FILE",
    )
    parser.add_argument("--rest", default="train", metavar="NAME", help="what the other records are called (train)")
    parser.add_argument("--of", metavar="NAME", help="the split to divide, where there are splits; the others stay")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random choice (default 0)")
    parser.add_argument("--stratify", action="store_true", help="the same share of every class")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Divide, and print what came of it."""
    from iofast.commands.convert import copy
    from iofast.copying import Division, split
    from iofast.errors import OptionError

    named = list(map(_part, args.split))
    parts = dict(named)
    if len(parts) < len(named):
        twice = next(name for number, (name, _) in enumerate(named) if name in dict(named[:number]))
        raise OptionError(f"--split names {twice!r} twice: expected each split once")
    division = Division(parts, args.seed, args.stratify, args.of, args.rest)
    return copy(args, partial(split, args.source, args.target, division))


def _part(text: str) -> tuple[str, float | Sequence[int]]:
    """`val=0.1`, `val=0-99,200` or `val=@FILE`. A share has a point: `val=1` is record 1."""
    from pathlib import Path

    from iofast.commands.view import parse_indices
    from iofast.errors import OptionError, because
    from iofast.source.text_files import lines

    name, equals, part = text.partition("=")
    if not (name and equals and part):
        raise OptionError(f"--split must be NAME=PART, such as val=0.1, found {text!r:.80}")
    if part.startswith("@"):
        try:
            part = ",".join(b"".join(lines(Path(part[1:]))).decode().split())
        except (OSError, UnicodeError) as error:
            reason = because(error) if isinstance(error, OSError) else "it is not text"
            raise OptionError(f"--split {name}: {part[1:]} cannot be read: {reason}") from None
    if "." in part:
        try:
            return name, float(part)
        except ValueError:
            raise OptionError(f"--split {name}: {part!r:.40} is no share, such as 0.1") from None
    return name, parse_indices(part, 1 << 40, "--split")
