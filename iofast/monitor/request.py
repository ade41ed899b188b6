"""Options of `iofast monitor`. Every start of the command line imports this module, so it imports little."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from iofast.errors import OptionError
from iofast.option import option

if TYPE_CHECKING:
    from iofast.monitor.findings import Bound


def _option(default: Any, text: str, metavar: str | None = None, *, flag: str | None = None) -> Any:
    """An option. `metavar` is its value in --help, and `flag` its name if it is not the field's."""
    return option(default, text, metadata={"metavar": metavar, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """What to watch, and how: without `pids`, a GPU and a program, all training of this user.

    Where the driver names no processes (in containers), `gpu` is taken for the job's.
    """

    pids: tuple[int, ...] = _option((), "this process; may be given several times", "N", flag="--pid")
    seconds: float | None = _option(None, "end after N seconds; with --once the longest wait (default: 60)", "N")
    gpu: int | None = _option(None, "the processes on this GPU, as the driver numbers them", "K")
    interval: float = _option(1.0, "seconds between lines or redraws (default: 1)", "S")
    stacks: Literal["auto", "off"] = _option(
        "auto", "do not read Python stacks, even if py-spy may", flag="--no-stacks"
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What to print and write."""

    once: bool = _option(False, "watch until there is a verdict, print it and end")
    json: bool = _option(False, "print JSON: an object for each interval, or with --once for each job")
    prometheus: str | None = _option(None, "serve figures to Prometheus (default host: 127.0.0.1)", "[HOST:]PORT")
    report: str | None = _option(None, "write an HTML page about everything seen, when it ends", "FILE")
    screen: bool = _option(False, "draw the screen (on stderr) even if a program was started")
    fail_on: str | None = _option(None, "exit status 4 if the verdict is one of these, such as input-bound", "V,V")
    quiet: bool = _option(False, "print nothing but errors")
    compare: tuple[str, str] | None = _option(
        None, "what a change gained, from two files of --json; nothing is watched", "FILE"
    )
    fail_slower: str | None = _option(None, "with --compare: exit status 4 if the rate fell by more", "P")


GROUPS = {
    "what to watch (default: all training processes of this user)": (WatchOptions,),
    "output (default: a screen on a terminal, else lines)": (OutputOptions,),
}


@dataclass(frozen=True, kw_only=True)
class Request(WatchOptions, OutputOptions):
    """Options of the command. Raises OptionError if they are invalid. `program`: a command to start, with arguments."""

    program: tuple[str, ...] = ()

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
        if self.fail_slower is not None:
            from iofast.monitor.render.printed import share_of

            share_of(self.fail_slower)
        if self.prometheus is not None:
            from iofast.monitor.render.prometheus import address

            address(self.prometheus)
        self.failing()

    def _check_together(self) -> None:
        if self.program and (self.pids or self.gpu is not None):
            raise OptionError(
                "--pid and --gpu name what runs already, a program after -- is started: expected one of them"
            )
        if self.fail_slower is not None and self.compare is None:
            raise OptionError("--fail-slower was given without --compare: expected both")
        if self.screen and (self.once or self.json or self.quiet):
            raise OptionError("--screen was given together with --once, --json or --quiet: expected one of them")

    def failing(self) -> "frozenset[Bound]":
        """The verdicts of `fail_on`."""
        from iofast.monitor.findings import Bound

        words = [] if self.fail_on is None else [word.strip() for word in self.fail_on.split(",")]
        known = [bound.value for bound in Bound]
        for word in words:
            if word not in known:
                raise OptionError(f"--fail-on takes verdicts ({', '.join(known)}), found {word!r}")
        return frozenset(Bound(word) for word in words)
