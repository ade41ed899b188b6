"""What the benchmarks share: a command line, rounds in turn, and a page that names its machine."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tools import machine

RESULTS = Path(__file__).parent / "results"
QUIET = 0.02  # of the time: a quiet virtual machine loses as much
REPEATS = 3
_HELP = {
    "classes": "number of class folders",
    "copies": "numbers of PNG and WebP files",
    "counts": "numbers of records",
    "files": "number of files",
    "folder": "where the files are made, and removed (default: the temporary directory)",
    "images": "number of images",
    "large": "images of the second memory measurement",
    "latency": "seconds until an answer of the server begins",
    "lines": "number of lines of a manifest",
    "megabytes": "size of the file",
    "outside": "without iofast.watch inside the programs: half of the time",
    "passes": "passes over all images",
    "quality": "quality of the JPEGs",
    "ranks": "numbers of ranks",
    "rate": "MB/s of all answers of the server together",
    "records": "records of a shard",
    "parts": "parts of the run",
    "repeats": "times that a run is repeated while other programs use over a tenth of the processors",
    "resume": "keep the runs that are there, and judge them again",
    "rounds": "rounds, in each of which all contenders run once",
    "samples": "number of samples",
    "seconds": "seconds of each run",
    "size": "short side in pixels",
    "slow": "MB/s of a disk that is slowed down",
    "threads": "numbers of decoding threads",
    "work": "where everything is made, and removed (default: the temporary directory)",
}
# An installed program has its bytecode beside it. With this variable each process that a benchmark starts would compile
# the checkout anew: 0.2 s of processor time for each of packing's three.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def parser(doc: str | None, *, photos: bool = True, **defaults: Any) -> argparse.ArgumentParser:
    """The command line of a benchmark: --output, --photos if it works on photographs, and an option per default.

    The type of an option follows from its default: False is a flag, None a path, a list takes several values of its
    first item's type.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if photos:
        made.add_argument("--photos", type=Path, help="class folders of photographs (default: sample images)")
    made.add_argument("--output", type=Path, help="the page to write instead of the one in benchmarks/results")
    for name, default in defaults.items():
        text = _HELP[name] + ("" if default is None or default is False else " (default: %(default)s)")
        if default is False:
            made.add_argument(f"--{name}", action="store_true", help=text)
        elif isinstance(default, list):
            made.add_argument(f"--{name}", type=type(default[0]), nargs="+", default=default, help=text)
        else:
            made.add_argument(f"--{name}", type=Path if default is None else type(default), default=default, help=text)
    return made


def arguments(doc: str | None, *, photos: bool = True, **defaults: Any) -> argparse.Namespace:
    """The options given on the command line; see `parser`."""
    return parser(doc, photos=photos, **defaults).parse_args()


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
    stolen, total = _jiffies()
    figure = run()
    stolen_after, total_after = _jiffies()
    return (stolen_after - stolen) / max(1, total_after - total), figure


def _jiffies() -> tuple[int, int]:
    """Stolen and total time of all processors since boot, in ticks; (0, 0) if the system does not count them."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    return fields[7], sum(fields)


def ratio(figures: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Median over the rounds of `one` / `other`, pair by pair."""
    return statistics.median(a / b for a, b in zip(figures[one], figures[other], strict=True))


def pss() -> int:
    """KiB of this process, pages that it shares with others counted in part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (least - most)`."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} – {most:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; all columns but the first to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def publish(
    name: str, text: str, output: Path | None, figures: Figures | None = None, command: str | None = None
) -> None:
    """Add machine and command to a page, print it, and write it to `output` or to results/`name`.md.

    `command`: default the benchmark of this name.
    """
    noise = figures.note() if figures is not None else ""
    command = command or f"python -m benchmarks.bench_{name}"
    write(name, f"{text}\n{machine.describe()}\n{noise}- Command: `{command}`\n", output)


def write(name: str, page: str, output: Path | None) -> None:
    """Print a whole page, and write it to `output` or to results/`name`.md."""
    path = output or RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(page)
    print(page)
    print(f"written to {path}", file=sys.stderr)
