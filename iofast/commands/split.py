"""`iofast split`: a container divided into splits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from iofast.commands.convert import add_copy_options, copy

HELP = "divide a container into splits"
DESCRIPTION = "Copy a container, its records divided into splits. No payload changes."
EXAMPLES = """\
examples:
  iofast split out.lmdb parts.lmdb --split val=0.1                       a tenth at random; the rest is train
  iofast split out.lmdb parts.lmdb --split val=0.1 --split test=0.1 --stratify
  iofast split out.lmdb parts.lmdb --split val=0-999,5000                these records, counted from 0
  iofast split out.lmdb parts.lmdb --split val=@val.txt                  those in a file, one number a line
  iofast split parts.lmdb more.lmdb --of train --split dev=0.05          take another out of train
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("source", metavar="SRC", help="a container, or a folder of images")
    add("target", metavar="DST", help="what to write: .lmdb, .tar, .tfrecord, or a folder")
    add(
        "--split",
        action="append",
        required=True,
        metavar="NAME=PART",
        help="a share (0.1), records (0-99,200) or @FILE",
    )
    add("--rest", default="train", metavar="NAME", help="split of the other records (default train)")
    add("--of", metavar="NAME", help="divide this split only; the others stay")
    add("--seed", type=int, metavar="N", help="of the random choice (default 0)")
    add("--stratify", action="store_true", help="the same share of every class")
    add_copy_options(parser)


def run(args: argparse.Namespace) -> int:
    """Divide and print the result."""
    from iofast.copying import Division, split
    from iofast.errors import OptionError

    parts: dict[str, float | Sequence[int]] = {}
    for name, part in map(_part, args.split):
        if name in parts:
            raise OptionError(f"--split names {name!r} twice: expected each split once")
        parts[name] = part
    division = Division(parts, args.seed, args.stratify, args.of, args.rest)
    return copy(args, partial(split, args.source, args.target, division))


def _part(text: str) -> tuple[str, float | Sequence[int]]:
    """Parse `val=0.1`, `val=0-99,200` or `val=@FILE`. A share has a point: `val=1` is record 1."""
    from pathlib import Path

    from iofast.commands.view import parse_indices
    from iofast.errors import OptionError, because
    from iofast.source.text_files import lines

    name, _, part = text.partition("=")
    if not (name and part):
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
            raise OptionError(f"--split {name}: expected a share such as 0.1, found {part!r:.40}") from None
    return name, parse_indices(part, 1 << 40, "--split")
