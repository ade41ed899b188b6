"""What the benchmarks share: photographs to work on, rounds in turn, and a page that names its machine."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
QUIET = 0.02  # of the time: what a quiet virtual machine loses too
REPEATS = 3
# An installed program has its bytecode beside it. Where this is set, each process that a benchmark starts would compile
# the checkout anew: 0.2 s of processor time for each of packing's three.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def parser(doc: str | None, *, photos: bool = True) -> argparse.ArgumentParser:
    """What every benchmark asks on its command line: --output, and --photos where it works on photographs."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if photos:
        made.add_argument("--photos", type=Path, help="class folders of photographs; sample images without it")
    made.add_argument("--output", type=Path, help="the page to write instead of the one in benchmarks/results")
    return made


@contextlib.contextmanager
def workplace(photos: Path | None) -> Iterator[tuple[Path, Path]]:
    """A temporary folder, and the photographs: those given, or sample images made in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder, photos or sample_photographs(folder / "photos")


def kind(photos: Path | None) -> str:
    """What a page calls the photographs."""
    return "Real photographs" if photos else "Generated sample photographs"


def sample_photographs(folder: Path) -> Path:
    """Photograph-like sample images for a machine that has no photographs at hand."""
    command = [sys.executable, "-m", "tools.sample_photographs", str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)
    return folder


class Figures(dict[str, list[float]]):
    """The figure of each contender in each round; `stolen`: of the processors' time during each run that was kept, the
    share that the hypervisor gave to other machines."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: [] for name in names})
        self.stolen: list[float] = []
        self.repeated = 0

    def note(self) -> str:
        """What a page says of it."""
        if not any(self.stolen):
            return ""
        return (
            f"- Other machines on the same processors took {statistics.median(self.stolen):.1%} of the median run's "
            f"time, {max(self.stolen):.1%} of the worst; {self.repeated} runs that lost over {QUIET:.0%} were repeated"
        )


def in_turn(contenders: Mapping[str, Callable[[], float]], rounds: int, repeats: int = REPEATS) -> Figures:
    """The figure of each contender in each round. One round runs all of them, so that a slow minute meets them all.

    A run during which the hypervisor gave more than `QUIET` of the time away is repeated, up to `repeats` times, and
    the one that lost least is kept: what loses most is not the slowest contender but the one with most threads.
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
    """(share of the processors' time that other machines took meanwhile, the run's figure)."""
    stolen, total = _jiffies()
    figure = run()
    stolen_after, total_after = _jiffies()
    return (stolen_after - stolen) / max(1, total_after - total), figure


def _jiffies() -> tuple[int, int]:
    """Stolen and total time of all processors since boot, in ticks; (0, 0) where the system does not count them."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    return fields[7], sum(fields)


def ratio(figures: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Median over the rounds of `one` / `other`, pair by pair."""
    return statistics.median(a / b for a, b in zip(figures[one], figures[other], strict=True))


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (least - most)`."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} – {most:,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; all columns but the first to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(figures: Figures | None = None) -> str:
    """Processor, cores, memory, kernel, versions, commit and date, as a markdown list, and how quiet it was."""
    packages = ("iofast", "torch", "numpy", "pillow", "lmdb", "opencv-python-headless", "simplejpeg")
    versions = ", ".join(f"{name} {version}" for name in packages if (version := _version(name)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return "\n".join(
        (
            f"- Machine: {_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.platform()}",
            f"- Python {platform.python_version()}, {versions}",
            f"- Kernel: {_kernel()}",
            f"- Commit {_commit()}, {datetime.date.today().isoformat()}",
            *([note] if figures is not None and (note := figures.note()) else []),
        )
    )


def publish(name: str, text: str, output: Path | None) -> None:
    """Print a page, and write it to `output`, or without one to results/`name`.md."""
    path = output or RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    print(text)
    print(f"written to {path}", file=sys.stderr)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family')}, model {fields.get('model')})"


def _kernel() -> str:
    from iofast import kernel

    return ", ".join(f"{name} {value}" for name, value in kernel.describe().items() if value)


def _commit() -> str:
    if said := os.environ.get("IOFAST_COMMIT"):  # of a copy without its history
        return said
    try:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return run.stdout.strip() or "unknown"
