"""Check checksums, decode every image, and compare the index with the container.

examples:
  iofast verify out.lmdb                   checksums, then every image decoded, then index against container
  iofast verify train.tar val.tar          several, one after another
  iofast verify out.lmdb --no-decode       checksums and index only: as fast as the disk reads
  iofast verify ./images                   a plain folder: there are no checksums, but every image is decoded
  iofast verify out.lmdb --json | jq '.problems[].path'

Goes on after errors, also if shards that iofast wrote are missing or cut off.
Exit status: 0 all is well, 1 something is not.
"""

import argparse
import json

from iofast.checking import Verification, verify
from iofast.commands.shared import add_foreign, add_output, count, foreign_given, say, size
from iofast.errors import IofastError, OptionError
from iofast.packing.progress import PackProgress


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("paths", metavar="CONTAINER", nargs="+", help="a container, or a folder of images")
    parser.add_argument("--no-decode", action="store_true", help="decode no image")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: one per usable core)")
    add_foreign(parser)
    add_output(parser, "print one JSON object for each container, a line each", "print problems only, on stderr")


def run(args: argparse.Namespace) -> int:
    """Verify all paths; exit status 1 if one of them is not whole or cannot be opened."""
    if args.workers is not None and args.workers < 1:
        raise OptionError(f"--workers must be 1 or more, found {args.workers}")
    status = 0
    for path in args.paths:
        bar = PackProgress(visible=not args.quiet)
        try:
            result = verify(
                path,
                decode=not args.no_decode,
                workers=args.workers,
                foreign=foreign_given(args),
                begin=bar.begin,
                progress=bar.step,
            )
        except (IofastError, OSError) as error:
            status = 1
            if args.json:
                print(json.dumps({"version": 1, "path": path, "error": str(error)}))
            elif len(args.paths) == 1:
                raise
            else:
                say(f"iofast verify: error: {error}", on_stderr=True)
            continue
        finally:
            bar.end()
        status = status if result.whole else 1
        if args.json:
            print(json.dumps(result.facts()))
        else:
            _show(result, quiet=args.quiet)
    return status


def _show(result: Verification, *, quiet: bool) -> None:
    say(*result.problems, on_stderr=quiet)
    if len(result.problems) < result.failed:
        say(f"and {result.failed - len(result.problems):,} more", on_stderr=quiet)
    if quiet:
        return
    parts = [count(result.records, "record"), f"{count(result.images, 'image')} decoded"]
    parts += [f"{count(result.checked, 'checksum')} compared"] if result.checked else []
    verdict = "all is well" if result.whole else count(result.failed, "problem")
    say(f"{result.path}: {verdict} ({', '.join(parts)}, {size(result.bytes)} read)")
    if result.duplicates:
        pairs = [f"{first} = {second}" for first, second in result.equal]
        more = ["…"] if result.duplicates > len(pairs) else []
        say(f"  duplicates: {count(result.duplicates, 'image')} equal to earlier ones: {', '.join(pairs + more)}")
    say(*(f"  note: {note}" for note in result.notes))
