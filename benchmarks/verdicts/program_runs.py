"""Running the programs of a suite, one at a time, each watched from outside and, in a second run, inside as well."""

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.verdicts import judge, truth
from benchmarks.verdicts.program import UNAVAILABLE
from benchmarks.verdicts.programs import Program
from tools.machine import ROOT

READY_S: Final = 60.0  # to import and warm up
AFTER_S: Final = 3.0  # that a program trains on after its monitor has left
QUIET: Final = 0.10  # of the processors' time: other programs that use more change which cores are free
_OBSERVED, _ENDED = "observed.json", "ended.json"


class ProgramError(RuntimeError):
    """A program of the suite, or its monitor, failed; the message has the end of its output."""


@dataclass(frozen=True)
class Run:
    """A program that ran, what was seen of it, and the truth. `skipped`: why it could not run here."""

    program: Program
    inside: bool
    seen: judge.Observation | None = None
    true: truth.Truth | None = None
    skipped: str = ""
    others: float = 0.0  # share of all processors' time that other programs used


@dataclass(frozen=True)
class Place:
    """Where programs run. `folder` keeps what was seen, so that an interrupted suite continues; `library` is the
    stand-in NVML."""

    folder: Path
    library: Path
    seconds: float = 20.0
    repeats: int = 2  # of a run that others disturbed

    def run(self, program: Program, *, inside: bool = False) -> Run:
        """Run and watch a program, or read what an earlier call has kept."""
        name = f"{program.name}-{zlib.crc32(str(program).encode()):08x}-{'inside' if inside else 'outside'}"
        folder = self.folder / "runs" / name
        if not (folder / _ENDED).exists():
            found: list[tuple[float, Path]] = []
            while len(found) <= self.repeats and (not found or found[-1][0] > QUIET):
                attempt = folder.with_name(f"{name}.{len(found)}")
                shutil.rmtree(attempt, ignore_errors=True)
                attempt.mkdir(parents=True)
                busy, ours, since = _busy_s(), _ours_s(), time.monotonic()
                skipped = self._run_and_watch(program, attempt, inside=inside)
                others = max(0.0, _busy_s() - busy - (_ours_s() - ours))
                others /= len(os.sched_getaffinity(0)) * (time.monotonic() - since)
                (attempt / _ENDED).write_text(json.dumps({"skipped": skipped, "others": others}))
                found.append((others, attempt))
            shutil.rmtree(folder, ignore_errors=True)
            min(found)[1].rename(folder)
            for _, attempt in found:
                shutil.rmtree(attempt, ignore_errors=True)
        ended = json.loads((folder / _ENDED).read_text())
        if ended["skipped"]:
            return Run(program, inside, **ended)
        seen = judge.read(judge.Observation, json.loads((folder / _OBSERVED).read_text()))
        return Run(program, inside, seen, truth.read(folder, seen.since, seen.until), **ended)

    def _run_and_watch(self, program: Program, folder: Path, *, inside: bool) -> str:
        """Return why this machine cannot run it, "" if it ran."""
        pages, hidden = self.folder / "runtime", self.folder / "hidden"  # no monitor finds a page in `hidden`
        for runtime in (pages, hidden):
            runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        own = os.environ | {"XDG_RUNTIME_DIR": str(pages if inside else hidden), "PYTHONPATH": paths}
        own |= {"PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "benchmarks.verdicts.program", str(program), str(self.folder / "files")]
        command += [str(self.seconds + AFTER_S), "inside" if inside else "outside"]
        taken = len(os.sched_getaffinity(0)) if program.extra == "taken" else 0
        beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(taken)]
        with (folder / "output.txt").open("w+") as output:
            process = subprocess.Popen(command, cwd=folder, env=own, stdout=output, stderr=output)
            try:
                if self._ready(process, folder):
                    pid = int((folder / "pid").read_text())
                    self._watch(program, pid, folder, os.environ | {"XDG_RUNTIME_DIR": str(pages)})
                status = process.wait(READY_S)
            finally:
                for other in (process, *beside):
                    if other.poll() is None:
                        other.terminate()
                        other.wait()
            output.seek(0)
            words = output.read().strip()
        (folder / "checkpoint.pt").unlink(missing_ok=True)
        if status == UNAVAILABLE or (status and "no control group" in words):  # a launcher has its own status
            return words.splitlines()[-1] if words else "no reason given"
        if status:
            raise ProgramError(f"{program.name} ended with status {status}: {words[-2000:]}")
        return ""

    def _ready(self, process: subprocess.Popen[bytes], folder: Path) -> bool:
        until = time.monotonic() + READY_S
        while not (folder / "ready").exists():
            if process.poll() is not None:
                return False
            if time.monotonic() > until:
                raise ProgramError(f"{folder.name} was not ready after {READY_S:.0f} s")
            time.sleep(0.05)
        return True

    def _watch(self, program: Program, pid: int, folder: Path, environment: dict[str, str]) -> None:
        if program.device:
            script = folder / "nvml.txt"
            script.write_text(f"gpu 0 name=Simulated ring={folder / 'ring.bin'}\npids 0 {pid}\n")
            paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
            environment |= {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), "NVML_STANDIN": str(script)}
        command = [sys.executable, "-m", "benchmarks.verdicts.judge", str(pid), str(self.seconds)]
        command.append(str(folder / _OBSERVED))
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ProgramError(f"the monitor of {folder.name} failed: {run.stderr[-2000:]}")


def _busy_s() -> float:
    """Seconds that all processors together have worked since boot, stolen time included."""
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)


def _ours_s() -> float:
    """Seconds of this process and of its ended children. The device, which uses 1 %, is not among them."""
    return float(sum(psutil.Process().cpu_times()[:4]))
