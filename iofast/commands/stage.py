"""Bring the records of containers in an object store into the cache of this machine, so that a run finds them on its
disk. IOFAST_CACHE names the folder of the cache, IOFAST_CACHE_SIZE how much it may take.

examples:
  iofast stage s3://bucket/sets/train.tar                    all records
  iofast stage s3://bucket/sets/photos.lmdb --split val      those of a split
  IOFAST_CACHE=/nvme/cache iofast stage https://host/train.tar https://host/val.tar
"""

import argparse

from iofast.bars import open_bar
from iofast.commands.shared import add_output, answer, count, say, size
from iofast.staging import stage


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="a container in an object store")
    parser.add_argument("--split", metavar="NAME", help="only the records of this split")
    add_output(parser, "print records and bytes as JSON")


def run(args: argparse.Namespace) -> int:
    """Fill the cache and print what was done."""
    done = []
    for url in args.urls:
        with open_bar(None, "B", "staging", unit_scale=True) as bar:
            staged = stage(url, args.split, lambda _, fetched, bar=bar: bar.update(fetched))  # type: ignore[misc]
        done.append({"url": url, **staged._asdict()})
        if not args.json and not args.quiet:
            say(f"{url}: {count(staged.records, 'record')} in the cache, {size(staged.fetched)} fetched")
    answer(args, {"staged": done}, lambda: None)
    return 0
