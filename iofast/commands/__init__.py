"""The commands of `iofast`, one module each.

A module has HELP (one line), DESCRIPTION, EXAMPLES, `add_options(parser)`, and `run(args)`, which returns the exit
status. It imports heavy modules inside `run`, so that `iofast --help` starts as fast as Python itself.
"""

from __future__ import annotations

COMMANDS = (
    "run", "pack", "info", "verify", "convert", "cat", "view", "stage", "cache", "bench",
    "monitor", "doctor",
)  # in the order of the help  # fmt: skip
