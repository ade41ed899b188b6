"""Running a program under one of the tools while `iofast monitor` watches the same run from outside."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.monitors import tools
from benchmarks.monitors.workloads import unseen
from benchmarks.verdicts import truth
from benchmarks.verdicts.program_runs import AFTER_S, Place, ProgramError
from benchmarks.verdicts.programs import Program
from benchmarks.verdicts.score import Scored, score
from iofast.monitor.findings import Bound

_TRAIN: Final = Path(__file__).with_name("train.py")
CLEAR: Final = (0.05, 0.10)  # between these true stalls either answer is right


@dataclass(frozen=True)
class Pair:
    """A run, the verdicts of our monitor and of the tool in it, or the reason why there are none."""

    program: Program
    tool: str
    ours: Scored | None = None
    theirs: tools.Said | None = None
    failed: str = ""

    @property
    def starved(self) -> bool | None:
        """Whether this training waits for its data, by the timelines; None if either answer is right."""
        if self.ours is None or CLEAR[0] < self.ours.stall < CLEAR[1]:
            return None
        return self.ours.stall >= CLEAR[1]

    @property
    def counted(self) -> bool:
        return self.starved is not None and unseen(self.program) is None

    @property
    def answers(self) -> tuple[bool | None, bool]:
        """Does it wait for its data: the answer of our monitor (None: it abstains) and the tool's."""
        assert self.ours is not None
        assert self.theirs is not None
        said = self.ours.verdict.bound
        return None if said is Bound.UNKNOWN else said is Bound.INPUT, self.theirs.input


@dataclass(frozen=True)
class Side(Place):
    """Where the runs of one tool are kept; `suite` is its name."""

    def pair(self, program: Program) -> Pair:
        """Run it, or read what an earlier call has kept."""
        try:
            run = self.run(program, inside=False)
            if run.skipped:
                return Pair(program, self.suite, failed=run.skipped)
            return Pair(program, self.suite, score(run), tools.read(self.suite, self._folder(program)))
        except (ProgramError, OSError, KeyError) as error:
            return Pair(program, self.suite, failed=f"{type(error).__name__}: {error}")

    def kept(self, program: Program) -> Pair | None:
        """The pair that an earlier call has kept, if any."""
        return self.pair(program) if (self._folder(program) / "others.txt").exists() else None

    def _folder(self, program: Program) -> Path:
        return self.folder / self.suite / f"{program.name}-outside"

    def _command(self, program: Program, folder: Path, *, inside: bool) -> list[str]:  # noqa: ARG002 (as Place has it)
        arguments = [program.name, "--tool", self.suite, "--folder", str(folder), "--files", str(self.folder / "files")]
        arguments += ["--seconds", str(self.seconds + AFTER_S)]
        if self.suite == "gpuprof":
            return [sys.executable, str(_TRAIN), *arguments]
        logs = ["--mode", "summary", "--logs-dir", str(folder / "traceml"), "--run-name", "run"]
        return [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(_TRAIN), *logs, "--args", *arguments]

    def _truth(self, folder: Path) -> truth.Truth:
        return truth.read(folder)  # the tools judge the whole training
