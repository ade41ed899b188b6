"""Copy all records into a container of another kind, or into a plain folder (DST ends in /). No payload changes: this
is `iofast pack` with --format keep --check end.

examples:
  iofast convert out.lmdb shards/train.tar --shard-size 500MB     tar shards, as WebDataset reads them
  iofast convert shards/train.tar train.tfrecord                  and those as TFRecords
  iofast convert 'theirs-{000000..000127}.tar' out.lmdb           another program's shards
  iofast convert their.tar out.lmdb --names image=photo,label=json/category
  iofast convert 'hub/data/*.parquet' out.lmdb                    a data set of the Hugging Face Hub
  iofast convert out.lmdb ./images/                               files again, in folders of classes

No byte of any image changes; use `iofast pack` to change images.
"""

import argparse

from iofast.commands.shared import add_foreign, add_output


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("source", metavar="SRC", help="a container, another program's, or a folder of images")
    parser.add_argument(
        "target", metavar="DST", help="the suffix chooses: .lmdb, .tar, .tfrecord; / at the end: a folder"
    )
    parser.add_argument("--shard-size", metavar="SIZE", help="of tar and TFRecord: 500MB, 1GiB or bytes (default 1GB)")
    parser.add_argument("--overwrite", action="store_true", help="replace DST if it exists (never a folder)")
    add_foreign(parser)
    add_output(parser, "print the report as JSON", "no progress bar, no summary")


def run(args: argparse.Namespace) -> int:
    """Convert and print the result."""
    from iofast.commands import pack

    args.format, args.check = "keep", "end"
    if args.shard_size is None:
        del args.shard_size
    return pack.run(args)
