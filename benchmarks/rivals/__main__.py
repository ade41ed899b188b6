"""How fast is iofast beside its rivals, each in its own environment and as its documentation recommends?

    python -m benchmarks.rivals [--photos FOLDER] [--only NAME…] [--cases CASE…] [--rounds 3] [--quick]

The photographs are packed with `iofast pack --resize 256 --quality 90`; all rivals get the same JPEGs, or write their
own containers of them. For each case all contenders are started, run an epoch to warm up, and then as many epochs as
fill four seconds in each round, in turn; between its turns a contender is stopped. A run that lost more than 2 % of the
processors to other machines is repeated. Environments are made under build/rivals/ when they are first used: some
gigabytes.
"""

import contextlib
import json
import os
import signal
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure, photographs, slow_device
from benchmarks.bench_load import plain, write_blob
from benchmarks.rivals.contenders import CASES, CONTENDERS, OWN, Case, Contender
from benchmarks.rivals.page import page, summary, with_table
from benchmarks.rivals.peers.protocol import Options
from benchmarks.rivals.running import ContenderError, Measured, Running, pack
from tools import machine
from tools.environments import ROOT, Missing

EPOCH, ORIGINALS, QUICK = 8_000, 1_500, 600  # images
SLOW = 50_000_000  # bytes a second of the slowed disk
COLD = 0.9  # of its data a contender must read from the disk


def data_of(contender: Contender, case: Case, folder: Path) -> Path:
    """What a contender reads; its container is written if it is not there."""
    files = folder / ("originals" if case.source == "originals" else "files")
    if contender.reads == "files" or case.wanted == "packing":
        return files
    if contender.reads == "blob":
        return folder / ("originals.blob" if case.source == "originals" else "plain")
    made = folder / f"{contender.name}.{contender.reads}"
    if not made.exists():
        pack(contender.command, files, made, Options(contender.variant, str(files), case.wanted, 2))
    return made


def started(
    stack: contextlib.ExitStack, case: Case, chosen: list[Contender], folder: Path, workers: int
) -> tuple[dict[str, Running], dict[str, str]]:
    """Processes by label, which end with the stack, and why others are not there."""
    running, missing = dict[str, Running](), dict[str, str]()
    for contender in chosen:
        try:
            data = data_of(contender, case, folder)
            more = {"is_trained": case.is_trained, "is_cold": case.is_cold}
            wanted = Options(contender.variant, str(data), case.wanted, case.workers or workers, **more)
            made = Running(contender.command, wanted, folder / f"{contender.label}.log")
            stack.callback(made.close)
            running[contender.label] = made
        except (Missing, ContenderError) as error:
            missing[contender.label] = str(error).strip().rpartition("\n")[2]
            print(f"{contender.label}: left out: {error}", file=sys.stderr)
    return running, missing


def figures_of(case: Case, chosen: list[Contender], folder: Path, rounds: int, workers: int) -> dict[str, Any]:
    """The figures of one case, for JSON."""
    with contextlib.ExitStack() as stack:
        if case.is_cold:
            os.sync()  # only what is on the disk can be evicted
            stack.enter_context(slow_device.limited(folder, SLOW))
        running, missing = started(stack, case, chosen, folder, workers)
        figures = None
        while figures is None:
            try:
                figures = measure.in_turn({name: each.again for name, each in running.items()}, rounds)
            except ContenderError as error:
                dead = next(name for name, each in running.items() if not each.is_alive)
                print(f"{dead}: left out: {error}", file=sys.stderr)
                missing[dead] = "a run did not end"
                del running[dead]
        if case.is_cold:
            for name, runs in [*figures.items()]:
                read = statistics.median(each.read for each in runs if isinstance(each, Measured))
                if read < COLD * running[name].bytes:
                    missing[name] = f"it kept its files mapped: {read / 1e6:,.0f} MB came from the disk"
                    del figures[name]
        return {
            "rounds": {name: [_plain(each) for each in runs] for name, runs in figures.items()},
            "first": {name: _plain(each.first) for name, each in running.items()},
            "peak": {name: each.peak for name, each in running.items()},
            "bytes": {name: each.bytes for name, each in running.items()},
            "missing": missing,
            "versions": sorted({each.version for each in chosen if each.environment != OWN}),
        }


def _plain(run: float) -> dict[str, Any]:
    assert isinstance(run, Measured)
    return {"rate": float(run), "cpu_s": run.cpu_s, "read": run.read, **run.said}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only iofast and rivals with these words")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="all contenders run once in each (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"epochs of {QUICK} images and one round")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no stopped contender is left
    chosen = [
        each
        for each in CONTENDERS
        if not given.only or each.label.startswith("iofast") or any(word in each.label for word in given.only)
    ]
    with photographs.workplace(given.photos, None, 4 if given.quick else 250) as (folder, photos):
        count = QUICK if given.quick else EPOCH
        container = photographs.pack(photographs.link(photos, folder / "copies", count), folder / "packed.lmdb")
        plain(container, folder)
        originals = photographs.link(photos, folder / "originals", min(count, ORIGINALS))
        write_blob(folder / "originals.blob", [path.read_bytes() for path in photographs.files_in(originals)])
        for case in given.cases:
            able = [each for each in chosen if case in each.cases]
            figures = figures_of(CASES[case], able, folder, 1 if given.quick else given.rounds, given.workers)
            write(case, figures, given.output)


def write(case: str, figures: Mapping[str, Any], output: Path | None) -> None:
    """Write a case's figures, and the page and the README's table anew; other cases keep their figures."""
    path = output or measure.RESULTS / "rivals.md"
    kept = path.with_suffix(".json")
    every = json.loads(kept.read_text()) if kept.exists() else {}
    every[case] = {**figures, "machine": machine.describe()}
    every = {name: every[name] for name in CASES if name in every}
    kept.write_text(json.dumps(every, indent=1) + "\n")
    measure.write("rivals", page(every), output)
    if output is None:
        readme = ROOT / "README.md"
        readme.write_text(with_table(readme.read_text(), summary(every)))


if __name__ == "__main__":
    main()
