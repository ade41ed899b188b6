"""Run a script that loads JPEGs by Pillow, torchvision and DataLoader. Images are decoded by iofast, in the part that
is needed and in batches; samples, order, random numbers and pixels stay equal to the last bit.

examples:
  iofast run -- python train.py --epochs 3            the script, its workers and its children
  iofast run -- torchrun --nproc-per-node 2 train.py  any launcher that passes its environment on
  iofast run --report run.json -- python -m train     and a report as JSON
  IOFAST_RUN=0 iofast run -- python train.py          the same without iofast

In notebooks and code: `import iofast.run.here` before the first image is opened.
The first images of every process are also made by Pillow and torch; if any value differs, the rest is left to them.
Exit status: the program's own, 128 + n where signal n ended it; 2 wrong usage.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from iofast.commands.shared import cannot_start
from iofast.errors import OptionError, SourceError, plain


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.usage = "iofast run [options] -- PROGRAM ..."
    parser.add_argument("--report", metavar="FILE", help="write what was done as JSON")
    parser.add_argument("--strict", action="store_true", help="raise an error where a value differs from Pillow's")
    parser.add_argument("--quiet", action="store_true", help="no report on the terminal")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the program, report, and return its exit status."""
    if not args.program or args.program[0] != "--" or len(args.program) == 1:
        raise OptionError("expected a program behind --: iofast run -- python train.py")
    program = args.program[1:]
    if args.report and not Path(args.report).resolve().parent.is_dir():
        raise SourceError(f"the folder of --report {args.report} does not exist")
    with tempfile.TemporaryDirectory(prefix="iofast-run-") as folder:
        _set_environment(folder, strict=args.strict)
        status = _wait_for(program)
        _report(args, program, status, Path(folder))
    return status


def _set_environment(folder: str, *, strict: bool) -> None:
    from iofast.run import hook, notes

    first = [str(Path(hook.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(first)
    os.environ[notes.FOLDER] = folder
    if strict:
        os.environ[notes.STRICT] = "1"


def _wait_for(program: list[str]) -> int:
    from iofast.monitor.launch import Program

    try:
        started = Program(program)
    except OSError as error:
        return cannot_start("run", program[0], error)
    with started:
        return started.status()


def _report(args: argparse.Namespace, program: list[str], status: int, folder: Path) -> None:
    from iofast.run import patches, summary

    if os.environ.get(patches.OFF) == "0":
        return
    facts = summary.report(program, status, summary.collect(folder))
    if args.report:
        Path(args.report).write_text(json.dumps(facts, indent=1) + "\n")
    if not args.quiet and sys.stderr is not None:
        for line in summary.lines(facts):
            print(f"iofast run: {plain(line)}", file=sys.stderr)
