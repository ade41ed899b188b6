"""`iofast sidecars`: index files for other programs, beside a set of shards."""

from __future__ import annotations

import argparse
import json

HELP = "write index files for other programs"
DESCRIPTION = "Write the index files that other programs want beside a set of tar or TFRecord shards."
EXAMPLES = """\
examples:
  iofast sidecars shards/train.tar --for dali          train-000000.idx … for DALI's webdataset reader
  iofast sidecars shards/train.tar --for wids,timm     train.shardindex.json and _info.json
  iofast sidecars train.tfrecord --for dali            one .idx a shard for DALI's tfrecord reader
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("container", metavar="CONTAINER", help="a set that iofast wrote, by the name given to pack")
    parser.add_argument("--for", dest="names", required=True, metavar="NAME,…", help="any of dali, wids, timm")
    parser.add_argument("--json", action="store_true", help="print the names of the files as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def run(args: argparse.Namespace) -> int:
    """Write the files and print their names."""
    from iofast.commands.text import say
    from iofast.containers.sidecars import write

    files = [str(file) for file in write(args.container, filter(None, args.names.split(",")))]
    if args.json:
        print(json.dumps({"version": 1, "files": files}))
    elif not args.quiet:
        say(*files)
    return 0
