"""Do predictions come true? Programs of the verdict suites, watched; then each change is really applied.

    python -m benchmarks.bench_what_if [--suite tune|final] [--only NAME] [--seconds 20] [--resume]

Each program runs once as it is, watched from outside; `iofast monitor`'s model predicts rates from what it saw. Then
the program runs with more workers, a device or a storage twice as fast, or a second core, and its rate, by its own
timeline, is compared. The step keeps the length that it had in the first run. The model was made with "tune"; "final"
has other sizes, seeds and kinds. About 30 seconds a run; with --resume earlier runs are read.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from benchmarks import measure
from benchmarks.verdicts.program_runs import Place, Run, add_options, place_of
from benchmarks.verdicts.programs import SUITES, Program
from benchmarks.verdicts.score import SHORT
from iofast.monitor.findings import Bound, Prediction
from iofast.monitor.verdict import classify
from tools import machine

_SLEEPS = ("sleep", "burst")  # loads whose cost is a wait for a storage


@dataclass(frozen=True)
class Scored:
    """A prediction and the measured rate, as multiples of the rate before the change."""

    program: str
    prediction: Prediction
    measured: float

    @property
    def middle(self) -> float:
        return (self.prediction.low + self.prediction.high) / 2

    @property
    def error(self) -> float:
        return abs(self.middle / self.measured - 1)

    @property
    def inside(self) -> bool:
        return self.prediction.low * 0.98 <= self.measured <= self.prediction.high * 1.02


def rate(run: Run) -> float:
    """Batches a second, by the program's own timeline."""
    assert run.true is not None
    return run.true.steps / run.true.seconds


def changed(program: Program, prediction: Prediction) -> Program | None:
    """The program with the predicted change; None if this suite cannot apply it."""
    if prediction.name == "workers" and program.loader in ("torch", "webdataset"):
        found = re.fullmatch(r"num_workers=(\d+)", prediction.change)
        return None if found is None else replace(program, workers=int(found[1]))
    if prediction.name == "device":
        return replace(program, step_s=program.step_s / 2)
    if prediction.name == "storage" and program.load in _SLEEPS:
        return replace(program, cost_s=program.cost_s / 2)
    if prediction.name == "page_cache" and program.load in _SLEEPS:
        return replace(program, cost_s=0.0)
    if prediction.name == "cores" and program.extra == "one-core":
        return replace(program, extra="", workers=2 * program.workers)
    return None


def fixed(program: Program, run: Run) -> Program:
    """The program with its step as long as it was: `compute` would measure the changed loader again."""
    assert run.true is not None
    step = (1 - run.true.stall) * run.true.seconds / max(1, run.true.steps)
    return replace(program, compute=0.0, step_s=round(step, 5))


def score(place: Place, program: Program) -> list[Scored]:
    """Watch a program, predict, apply each change that can be applied, and compare."""
    before = place.run(program, inside=False)
    if before.seen is None or before.true is None:
        return []
    verdict = classify(before.seen.snapshots, thresholds=SHORT)
    steady = fixed(program, before)
    pairs = [(prediction, changed(steady, prediction)) for prediction in verdict.what_if]
    return [
        Scored(program.name, prediction, rate(place.run(after, inside=False)) / rate(before))
        for prediction, after in pairs
        if after is not None
    ]


def page(suite: str, scored: Sequence[Scored], programs: int) -> str:
    """The figures, and a line for each prediction."""
    errors = [one.error for one in scored]
    right = sum((one.middle > 1) == (one.measured > 1) for one in scored)
    asked = (
        ("median error", "10 %", f"{statistics.median(errors):.1%}"),
        ("inside its band (2 % of the rate aside)", "90 %", f"{sum(one.inside for one in scored) / len(scored):.0%}"),
        ("direction right", "97 %", f"{right / len(scored):.0%}"),
    )
    rows = [
        (one.program, one.prediction.change, f"{one.prediction.low:.2f} – {one.prediction.high:.2f}",
         f"{one.measured:.2f}", f"{one.error:.0%}", "yes" if one.inside else "**no**")
        for one in scored
    ]  # fmt: skip
    return f"""# Do predictions come true?

Suite "{suite}": {len(scored)} predictions on {programs} programs. Rates are multiples of the rate before the change.

{measure.table(("", "asked", "found"), asked)}

{measure.table(("program", "change", "predicted", "measured", "error", "inside"), rows)}

{machine.describe()}
- Command: `python -m benchmarks.bench_what_if --suite {suite}`
"""


def main() -> None:
    parser = measure.parser(__doc__, photos=False, seconds=20.0, resume=False, repeats=2)
    add_options(parser, "iofast-what-if")
    arguments = parser.parse_args()
    place = place_of(arguments)
    chosen = [
        program
        for program in SUITES[arguments.suite]
        if (program.name in arguments.only if arguments.only else program.bounds == (Bound.INPUT,))
    ]
    found: list[Scored] = []
    for program in tqdm(chosen, unit=" programs", disable=not sys.stderr.isatty()):
        found += score(place, program)
    if not found:
        raise SystemExit("no prediction could be applied")
    name = "what-if" if arguments.suite == "final" else f"what-if-{arguments.suite}"
    measure.write(name, page(arguments.suite, found, len({one.program for one in found})), arguments.output)


if __name__ == "__main__":
    main()
