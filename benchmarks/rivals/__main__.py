"""How fast is iofast beside its rivals, each in its own environment and as its documentation recommends?

    python -m benchmarks.rivals [--photos FOLDER] [--only NAME…] [--cases CASE…] [--rounds 3] [--quick]

The photographs are packed with `iofast pack --resize 256 --quality 90`; all rivals get the same JPEGs, or write their
own containers of them. For each case all contenders are started, run an epoch to warm up, and then one epoch in each
round, in turn; between its turns a contender is stopped. A run that lost more than 2 % of the processors to other
machines is repeated. Environments are made under build/rivals/ when they are first used: some gigabytes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure, photographs
from benchmarks.bench_load import plain
from benchmarks.rivals.chart import THEMES, chart
from benchmarks.rivals.contenders import CONTENDERS, PEERS, Contender
from benchmarks.rivals.page import CASES, medians, page
from benchmarks.rivals.peers.protocol import Options
from benchmarks.rivals.running import ContenderError, Measured, Running, packed
from tools import machine
from tools.environments import ROOT, Missing

TITLE = "Images a second into training: random crops of packed photographs, two cores"
EPOCH, ORIGINALS, QUICK = 5_000, 1_500, 600  # images


def data_of(contender: Contender, case: str, folder: Path) -> Path:
    """What a contender reads; its container is written if it is not there."""
    if contender.reads == "files":
        return folder / ("originals" if case == "originals" else "files")
    made = folder / f"{contender.script.removesuffix('_loop.py')}.{contender.reads}"
    if not made.exists():
        source = folder / ("originals" if case == "originals" else "files")
        command = (contender.python, PEERS / contender.script)
        packed(command, source, made, Options(contender.variant, str(source), case, 2))
    return made


def started(
    case: str, chosen: list[Contender], folder: Path, workers: int
) -> tuple[dict[str, Running], dict[str, str]]:
    """Processes by label, and why others are not there."""
    running, missing = dict[str, Running](), dict[str, str]()
    for contender in chosen:
        try:
            data = data_of(contender, case, folder)
            wanted = Options(contender.variant, str(data), "crop" if case == "originals" else case, workers)
            command = (contender.python, PEERS / contender.script)
            running[contender.label] = Running(command, wanted, folder / f"{contender.label}.log")
        except (Missing, ContenderError) as error:
            missing[contender.label] = str(error)
            print(f"{contender.label}: left out: {error}", file=sys.stderr)
    return running, missing


def figures_of(case: str, chosen: list[Contender], folder: Path, rounds: int, workers: int) -> dict[str, Any]:
    """The figures of one case, for JSON."""
    with contextlib.ExitStack() as stack:
        running, missing = started(case, chosen, folder, workers)
        for each in running.values():
            stack.callback(each.close)
        figures = measure.in_turn({name: each.epoch for name, each in running.items()}, rounds)
        return {
            "rounds": {name: [_plain(each) for each in runs] for name, runs in figures.items()},
            "first": {name: _plain(each.first) for name, each in running.items()},
            "missing": missing,
        }


def _plain(run: float) -> dict[str, Any]:
    assert isinstance(run, Measured)
    return {"rate": float(run), "cpu_s": run.cpu_s, "peak": run.peak, **run.looks}


def main() -> None:
    parser = measure.parser(__doc__, rounds=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only iofast and rivals with these words")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"epochs of {QUICK} images and one round")
    given = parser.parse_args()
    chosen = [
        each
        for each in CONTENDERS
        if not given.only or each.label.startswith("iofast") or any(word in each.label for word in given.only)
    ]
    found = {}
    with photographs.workplace(given.photos) as (folder, photos):
        count = QUICK if given.quick else EPOCH
        container = photographs.pack(photographs.link(photos, folder / "copies", count), folder / "packed.lmdb")
        plain(container, folder)
        photographs.link(photos, folder / "originals", min(count, ORIGINALS))
        for case in given.cases:
            able = [each for each in chosen if case in each.cases]
            found[case] = figures_of(case, able, folder, 1 if given.quick else given.rounds, given.workers)
    write(found, given.output)


def write(found: Mapping[str, Mapping[str, Any]], output: Path | None) -> None:
    """Write the figures, the page and the charts; cases that did not run keep their figures."""
    path = output or measure.RESULTS / "rivals.md"
    kept = path.with_suffix(".json")
    every = (json.loads(kept.read_text()) if kept.exists() else {}) | {
        case: {**figures, "machine": machine.describe()} for case, figures in found.items()
    }
    every = {case: every[case] for case in CASES if case in every}
    kept.write_text(json.dumps(every, indent=1) + "\n")
    measure.write("rivals", page(every), output)
    if "crop" in every:
        folder = path.parent if output else ROOT / "docs" / "images"
        for theme in THEMES:
            (folder / f"rivals-{theme}.svg").write_text(chart(TITLE, medians(every["crop"]), theme))


if __name__ == "__main__":
    main()
