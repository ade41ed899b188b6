"""Look after the local copies of objects that were read from an object store. They are in the folder IOFAST_CACHE, by
default in the user's cache folder. Arrow files made of Parquet files are in $XDG_CACHE_HOME/iofast.

examples:
  iofast cache ls                          objects, how much of each is here, when it was last opened
  iofast cache verify                      compare all blocks with their checksums; damaged ones are fetched again
  iofast cache clear                       remove all copies
  iofast cache clear s3://bucket/sets/     remove those whose URLs begin so
"""

import argparse
from datetime import datetime

from rich.console import Console

from iofast import staging
from iofast.commands.shared import add_output, answer, count, say, size, table
from iofast.staging import CachedObject


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("action", choices=("ls", "verify", "clear"), metavar="ls|verify|clear", help="what to do")
    parser.add_argument("prefixes", metavar="URL", nargs="*", help="only objects whose URLs begin so")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Carry the action out; the exit status is 1 if `verify` finds damage."""
    chosen = [
        each
        for each in staging.objects()
        if not args.prefixes or any(each.url.startswith(prefix) for prefix in args.prefixes)
    ]
    broken = {each.url: staging.verify(each) for each in chosen} if args.action == "verify" else {}
    if args.action == "clear":
        for each in chosen:
            staging.clear(each)
    rows = [{**each._asdict(), "path": str(each.path), "broken": broken.get(each.url, [])} for each in chosen]
    facts = {"action": args.action, "objects": rows}
    answer(args, facts, lambda: _show(args.action, chosen, sum(map(len, broken.values()))))
    return 1 if any(broken.values()) else 0


def _show(action: str, chosen: list[CachedObject], broken: int) -> None:
    here = sum(each.here for each in chosen)
    if action == "verify":
        say(f"{count(len(chosen), 'object')}, {size(here)}: {count(broken, 'damaged block')} dropped")
    elif action == "clear":
        say(f"{count(len(chosen), 'object')} removed, {size(here)}")
    else:
        rows = [
            (each.url, size(each.here), size(each.size), f"{datetime.fromtimestamp(each.opened):%Y-%m-%d %H:%M}")
            for each in chosen
        ]
        if rows:
            Console(highlight=False, soft_wrap=True).print(table(("object", "here", "of", "last opened"), rows, (1, 2)))
        say(f"{count(len(chosen), 'object')}, {size(here)}")
