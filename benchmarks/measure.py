"""What the benchmarks share: a command line with parts, rounds in turn, and a page that names its machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tqdm import tqdm

from benchmarks import photographs
from tools import machine

RESULTS = Path(__file__).parent / "results"
QUIET = 0.02  # of the time: a quiet virtual machine loses as much
REPEATS = 3
# An installed program has its bytecode beside it. With this variable each process that a benchmark starts would compile
# the checkout anew: 0.2 s of processor time for each of packing's three.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def parser(doc: str | None, *, photos: bool = True) -> argparse.ArgumentParser:
    """A command line with --output, and --photos if it works on photographs."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if photos:
        made.add_argument("--photos", type=Path, help="class folders of photographs (default: sample images)")
    made.add_argument("--output", type=Path, help="the page to write instead of the one in benchmarks/results")
    return made


@dataclass(frozen=True)
class Bench:
    """A part of a benchmark, and what the command line says of it."""

    program: str
    part: str
    given: argparse.Namespace

    def size(self, whole: int, quick: int) -> int:
        """A number of images, records, seconds: the small one in a trial."""
        return quick if self.given.quick else whole

    def rounds(self, usual: int) -> int:
        """The rounds that the command line asks for."""
        return 1 if self.given.quick else self.given.rounds or usual

    @property
    def kind(self) -> str:
        """The name of the photographs on a page."""
        return "Real photographs" if self.given.photos else "Generated sample photographs"

    def workplace(self) -> contextlib.AbstractContextManager[tuple[Path, Path]]:
        """A temporary folder, and the photographs: those given, or sample images made in it."""
        return photographs.workplace(self.given.photos, self.given.work, self.size(250, 4))

    def folder(self) -> tempfile.TemporaryDirectory[str]:
        """A temporary folder."""
        return tempfile.TemporaryDirectory(prefix="iofast-bench-", dir=self.given.work)

    def publish(self, text: str, figures: Figures | None = None) -> None:
        """Add machine and command to a page, and write it. The page of a trial goes to the temporary directory."""
        noise = "" if figures is None else figures.note()
        command = f"python -m benchmarks.{self.program} --part {self.part}" + (" --quick" * self.given.quick)
        trial = Path(tempfile.gettempdir(), f"{self.part}.md") if self.given.quick else None
        page = f"{text}\n{machine.describe()}\n{noise}- Command: `{command}`\n"
        write(self.part, page, self.given.output or trial)


def run(doc: str | None, parts: Mapping[str, Callable[[Bench], None]]) -> None:
    """The command line of a benchmark that has these parts: all of them, or those that --part names."""
    made = parser(doc)
    made.add_argument("--part", nargs="+", choices=parts, default=list(parts), help="default: all")
    made.add_argument("--rounds", type=int, help="all contenders run once in each (default: as many as the part needs)")
    made.add_argument("--quick", action="store_true", help="a trial of the program: small, its figures mean nothing")
    made.add_argument("--work", type=Path, help="where everything is made, and removed (default: a temporary folder)")
    given = made.parse_args()
    for name in given.part:
        parts[name](Bench(Path(sys.argv[0]).stem, name, given))


class Figures(dict[str, list[float]]):
    """The figure of each contender in each round.

    `stolen`: for each run that counts, the share of the processors' time that the hypervisor gave to other machines.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: [] for name in names})
        self.stolen: list[float] = []
        self.repeated = 0

    def add(self, other: Figures) -> None:
        """Count the stolen time and the repeated runs of another measurement too."""
        self.stolen += other.stolen
        self.repeated += other.repeated

    def note(self) -> str:
        """A line for the page, if any time was stolen."""
        if not any(self.stolen):
            return ""
        return (
            f"- Other machines on the same processors took {statistics.median(self.stolen):.1%} of the median run's "
            f"time, {max(self.stolen):.1%} of the worst; {self.repeated} runs that lost over {QUIET:.0%} were "
            "repeated\n"
        )


def in_turn(contenders: Mapping[str, Callable[[], float]], rounds: int, repeats: int = REPEATS) -> Figures:
    """Measure all contenders in each round, so that a slow minute affects them all.

    A run that lost more than `QUIET` of the time to the hypervisor is repeated, up to `repeats` times, and the run that
    lost least counts: the contender with most threads loses most, not the slowest.
    """
    figures = Figures(contenders)
    with tqdm(total=rounds * len(contenders), unit=" runs", disable=not sys.stderr.isatty()) as bar:
        for _ in range(rounds):
            for name, run in contenders.items():
                bar.set_description(name)
                runs = [_clocked(run)]
                while runs[-1][0] > QUIET and len(runs) <= repeats:
                    runs.append(_clocked(run))
                stolen, figure = min(runs)
                figures[name].append(figure)
                figures.stolen.append(stolen)
                figures.repeated += len(runs) - 1
                bar.update()
    return figures


def _clocked(run: Callable[[], float]) -> tuple[float, float]:
    """(share of the processors' time that other machines took during the run, the run's figure)."""
    before, figure, after = psutil.cpu_times(), run(), psutil.cpu_times()
    return (after.steal - before.steal) / max(1e-9, sum(after[:8]) - sum(before[:8])), figure


def ratio(figures: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Median over the rounds of `one` / `other`, pair by pair."""
    return statistics.median(a / b for a, b in zip(figures[one], figures[other], strict=True))


def pss() -> int:
    """KiB of this process, pages that it shares with others counted in part."""
    return int(psutil.Process().memory_full_info().pss) >> 10


def grown(take: Callable[[], object]) -> tuple[float, int]:
    """Seconds of a call, and KiB that this process grew by."""
    before, start = pss(), time.perf_counter()
    take()
    return time.perf_counter() - start, pss() - before


def in_process(module: str, *words: object) -> list[float]:
    """The numbers that a module prints in a fresh process."""
    command = [sys.executable, "-m", module, *map(str, words)]
    return [float(word) for word in subprocess.check_output(command, text=True).split()]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (least - most)`."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} – {most:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; all columns but the first to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(name: str, page: str, output: Path | None) -> None:
    """Print a whole page, and write it to `output` or to results/`name`.md."""
    path = output or RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page)
    print(page)
    print(f"written to {path}", file=sys.stderr)
