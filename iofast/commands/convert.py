"""`iofast convert`: records into another kind of container, or into a plain folder."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from iofast.commands import foreign

if TYPE_CHECKING:
    from collections.abc import Callable

    from iofast.copying import Copied

HELP = "copy a container into another format, or into a folder"
DESCRIPTION = "Copy all records into a container of another kind, or into a plain folder. No payload changes."
EXAMPLES = """\
examples:
  iofast convert out.lmdb shards/train.tar --shard-size 500MB     tar shards, as WebDataset reads them
  iofast convert shards/train.tar train.tfrecord                  and those as TFRecords
  iofast convert 'theirs-{000000..000127}.tar' out.lmdb           another program's shards
  iofast convert their.tar out.lmdb --names image=photo,label=json/category
  iofast convert 'hub/data/*.parquet' out.lmdb                    a data set of the Hugging Face Hub
  iofast convert out.lmdb ./images                                files again, in folders of classes

No byte of any image changes; use `iofast pack` to change images.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("source", metavar="SRC", help="a container, another program's, or a folder of images")
    parser.add_argument("target", metavar="DST", help="the suffix chooses: .lmdb, .tar, .tfrecord; none: a folder")
    add_copy_options(parser)
    foreign.add_options(parser)


def add_copy_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all commands that copy records."""
    parser.add_argument("--shard-size", metavar="SIZE", help="of tar and TFRecord: 500MB, 1GiB or bytes (default 1GB)")
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it exists (never a folder)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def run(args: argparse.Namespace) -> int:
    """Convert and print the result."""
    from iofast.copying import convert

    return copy(args, partial(convert, args.source, args.target, foreign=foreign.options(args)))


def copy(args: argparse.Namespace, work: Callable[..., Copied]) -> int:
    """Call `work` with the copy options and a progress bar, print its result, and return the exit status."""
    from iofast.copying import CopyOptions
    from iofast.packing.progress import Bar

    options = CopyOptions(args.shard_size, args.overwrite)
    bar = Bar(f"iofast {args.command}", visible=not args.quiet)
    try:
        result = work(options=options, begin=bar.begin, progress=bar.step)
    finally:
        bar.end()
    _show(args, result)
    return 0


def _show(args: argparse.Namespace, result: Copied) -> None:
    from iofast.commands.text import count, duration, say

    if args.json:
        print(json.dumps(result.facts(), sort_keys=True))
        return
    for warning in result.warnings:
        say(f"iofast {args.command}: warning: {args.typed(warning)}", on_stderr=True)
    if not args.quiet:
        say(f"{count(result.records, 'record')} in {result.target}, {duration(result.seconds)}")
        if result.resumed:
            say(f"  resumed      {count(result.resumed, 'record')} were there already")
        if result.fingerprint is not None:
            say(f"  fingerprint  {result.fingerprint}")
