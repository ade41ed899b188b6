"""Running a program under one of the tools while `iofast monitor` watches the same run from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.rivals import tools
from benchmarks.rivals.programs import unseen
from benchmarks.verdicts import truth
from benchmarks.verdicts.program import UNAVAILABLE
from benchmarks.verdicts.programs import Program
from benchmarks.verdicts.score import Scored, score
from benchmarks.verdicts.suite import READY_S, Place, ProgramError
from iofast.monitor.findings import Bound

_ROOT: Final = Path(__file__).parents[2]
_TRAIN: Final = Path(__file__).with_name("train.py")
_AFTER_S: Final = 2.0  # that a program trains on after our monitor has left
CLEAR: Final = (0.05, 0.10)  # of a true stall between these either answer is right


@dataclass(frozen=True)
class Pair:
    """A run, what our monitor said of it and what the tool in it said, or why there is nothing of it."""

    program: Program
    tool: str
    ours: Scored | None = None
    theirs: tools.Said | None = None
    failed: str = ""

    @property
    def starved(self) -> bool | None:
        """Whether this training waits for its data, by the timelines; None where either answer is right."""
        if self.ours is None or CLEAR[0] < self.ours.stall < CLEAR[1]:
            return None
        return self.ours.stall >= CLEAR[1]

    @property
    def counted(self) -> bool:
        return self.starved is not None and unseen(self.program) is None

    @property
    def answers(self) -> tuple[bool | None, bool]:
        """Does it wait for its data: what ours says, None where it abstains, and what the tool says."""
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
        """What an earlier call has kept; None where there is nothing."""
        return self.pair(program) if (self._folder(program) / "others.txt").exists() else None

    def _folder(self, program: Program) -> Path:
        return self.folder / self.suite / f"{program.name}-outside"

    def _command(self, program: Program, folder: Path) -> list[str]:
        arguments = [program.name, "--tool", self.suite, "--folder", str(folder), "--files", str(self.folder / "files")]
        arguments += ["--seconds", str(self.seconds + _AFTER_S)]
        if self.suite == "gpuprof":
            return [sys.executable, str(_TRAIN), *arguments]
        logs = ["--mode", "summary", "--logs-dir", str(folder / "traceml"), "--run-name", "run"]
        return [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(_TRAIN), *logs, "--args", *arguments]

    def _run_and_watch(self, program: Program, folder: Path, *, inside: bool) -> None:  # noqa: ARG002 (as Place has it)
        hidden = self.folder / "hidden"  # a page that no monitor finds: ours watches from outside alone
        hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        own = os.environ | {"XDG_RUNTIME_DIR": str(hidden), "PYTHONWARNINGS": "ignore", "PYTHONPATH": paths}
        with (folder / "output.txt").open("w+") as output:
            command = self._command(program, folder)
            process = subprocess.Popen(command, cwd=folder, env=own, stdout=output, stderr=subprocess.STDOUT)
            try:
                if self._ready(process, folder):
                    pid = int((folder / "pid").read_text())
                    self._watch(program, pid, folder, os.environ | {"XDG_RUNTIME_DIR": str(self.folder)})
                status = process.wait(READY_S)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            output.seek(0)
            said = output.read().strip()
        if status == UNAVAILABLE or (status and "no control group" in said):
            (folder / "skipped.txt").write_text(said.splitlines()[-1])
        elif status:
            raise ProgramError(f"{program.name} ended with status {status}: {said[-2000:]}")
        else:
            (folder / "truth.json").write_text(json.dumps(asdict(truth.read(folder))))
            (folder / "checkpoint.pt").unlink(missing_ok=True)
