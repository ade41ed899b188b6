"""Options of `iofast monitor`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from iofast.errors import OptionError
from iofast.monitor.findings import Bound
from iofast.monitor.render.prometheus import address


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of the command. Raises OptionError if they are invalid.

    pids, gpu   processes or GPU to watch; without them and without a program, all training of this user
    program     command to start and watch, with its arguments
    interval    seconds per snapshot
    seconds     when to end; None: with `once` after 40 s at the latest, else never
    csv         a file, or "-" for standard output
    prometheus  [HOST:]PORT
    screen      draw the screen beside a started program, too
    fail_on     names of verdicts, separated by commas
    """

    pids: tuple[int, ...] = ()
    gpu: int | None = None
    program: tuple[str, ...] = ()
    interval: float = 1.0
    seconds: float | None = None
    stacks: Literal["auto", "off"] = "auto"
    once: bool = False
    json: bool = False
    csv: str | None = None
    prometheus: str | None = None
    tensorboard: str | None = None
    wandb: bool = False
    report: str | None = None
    screen: bool = False
    quiet: bool = False
    fail_on: str | None = None

    def __post_init__(self) -> None:
        if not 0.2 <= self.interval <= 3600:
            raise OptionError(f"--interval must be from 0.2 to 3600 seconds, found {self.interval:g}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise OptionError(f"--seconds must be a positive number, found {self.seconds:g}")
        if self.gpu is not None and self.gpu < 0:
            raise OptionError(f"--gpu must be 0 or more, found {self.gpu}")
        if any(pid < 1 for pid in self.pids):
            raise OptionError(f"--pid must be 1 or more, found {min(self.pids)}")
        self._check_together()
        if self.prometheus is not None:
            address(self.prometheus)
        self.failing()

    def _check_together(self) -> None:
        if self.program and (self.pids or self.gpu is not None):
            raise OptionError(
                "--pid and --gpu name what runs already, a program after -- is started: expected one of them"
            )
        if self.csv == "-" and (self.json or self.program):
            other = "--json" if self.json else "the started program"
            raise OptionError(f"--csv - and {other} both want standard output: give the CSV a file")
        if self.screen and (self.once or self.json or self.quiet):
            raise OptionError("--screen was given together with --once, --json or --quiet: expected one of them")

    def failing(self) -> frozenset[Bound]:
        """The verdicts of `fail_on`."""
        words = [] if self.fail_on is None else [word.strip() for word in self.fail_on.split(",")]
        known = [bound.value for bound in Bound]
        for word in words:
            if word not in known:
                raise OptionError(f"--fail-on takes verdicts ({', '.join(known)}), found {word!r}")
        return frozenset(Bound(word) for word in words)
