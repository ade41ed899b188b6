"""Watch training processes: do they wait for their data, why, and what to change.

examples:
  iofast monitor                                       all training of yours on this machine, on a live screen
  iofast monitor --pid 4242 --once                     watch until a verdict can be given, print it, end
  iofast monitor --once --json | jq .verdict           for programs
  iofast monitor -- python train.py --epochs 3         start a program and watch it; its output stays as it is
  iofast monitor --report out.html -- python train.py  and one page about the whole run
  iofast monitor --prometheus 9100 --quiet             figures for Prometheus at http://127.0.0.1:9100/metrics
  iofast monitor --once --fail-on input-bound          exit status 4 if training waits for its data
  iofast monitor --compare old.json new.json           what a change gained, as a table in Markdown

The watched process is not changed. Keys on the screen: q quits, tab shows the next job.
Exit status: 0, 1 failed (with --once also: nothing to watch), 2 wrong usage, 4 the verdict is one of --fail-on
or the rate fell by more than --fail-slower, 130 interrupted before a verdict; with `-- PROGRAM` the program's own,
128 + n where signal n ended it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from iofast.commands.shared import add_option, cannot_start, given
from iofast.errors import IofastError, OptionError, one_line
from iofast.monitor.request import GROUPS, Request
from iofast.option import options_of

if TYPE_CHECKING:
    from iofast.monitor.launch import Program


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.usage = "iofast monitor [options] [-- PROGRAM ...]"
    parser.argument_default = argparse.SUPPRESS  # defaults are those of Request
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for title, options in GROUPS.items():
        for each in options_of(options):
            add_option(groups[title], each)
    add = groups[next(iter(GROUPS))].add_argument
    add("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="start this and watch it")


def run(args: argparse.Namespace) -> int:
    """Watch, and return the exit status."""
    request = _request(args)
    if request.compare is not None:
        return _compare(request)
    return _start(request) if request.program else _watch(request, None)


def _request(args: argparse.Namespace) -> Request:
    program = tuple(args.program)
    if program and program[0] != "--":
        raise OptionError(f"a program goes behind --: iofast monitor -- {program[0]} (a process: --pid N)")
    if program == ("--",):
        raise OptionError("-- expects a program and its arguments behind it, found nothing")
    named = given(args, [Request])
    return Request(**named | {"pids": tuple(named.get("pids", ())), "program": program[1:]})


def _compare(request: Request) -> int:
    from pathlib import Path

    from iofast.monitor.render.printed import compare, share_of, slower

    before, after = (Path(each) for each in request.compare or ())
    table, rate = compare(before, after)
    if not request.quiet:
        print(table)
    return 4 if request.fail_slower is not None and slower(rate, share_of(request.fail_slower)) else 0


def _watch(request: Request, program: Program | None) -> int:
    from iofast.monitor.follow import Follow
    from iofast.monitor.live import machine

    if program is None:
        return Follow(request, machine(request)).run()
    follow = Follow(request, machine(request, program.pid), lambda: program.poll() is None)
    program.aside = follow.aside
    return follow.run()


def _start(request: Request) -> int:
    """Start the program, watch it, and return its exit status. An error of the monitor is one line on stderr."""
    from iofast.monitor.launch import Program

    try:
        started = Program(request.program)
    except OSError as error:
        return cannot_start("monitor", request.program[0], error)
    verdict_status = 0
    with started as program:
        try:
            verdict_status = _watch(request, program)
        except Exception as error:  # of iofast, or of a package behind a view
            _complain(error)
        status = program.status()
    return status or verdict_status


def _complain(error: Exception) -> None:
    """Print a line on stderr, which may be closed or a pipe without a reader."""
    words = one_line(" ".join(str(error).split()))
    message = words if isinstance(error, (IofastError, OSError)) else f"{type(error).__name__}: {words}"
    if sys.stderr is None:
        return
    try:
        print(f"iofast monitor: error: {message}; the program continues", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        from iofast.monitor.render.screen import give_up

        give_up(sys.stderr)
