"""The commands of `iofast`, one file each: `add_parser(subparsers)` registers, `run(args) -> int` does the work.

A command imports what is heavy inside `run`, so that `iofast --help` starts as fast as Python itself.
"""

from __future__ import annotations

COMMANDS = (
    "pack",
    "info",
    "verify",
    "convert",
    "cat",
    "view",
    "split",
    "merge",
    "sidecars",
    "bench",
    "monitor",
    "doctor",
)  # as the help lists them
