"""Do predictions come true? Programs of the verdict suites, watched; then each change is really applied.

    python -m benchmarks.bench_what_if [--split tune|final] [--only NAME] [--seconds 15] [--resume]

Each program runs once as it is, watched from outside; `iofast monitor`'s model predicts rates from what it saw. Then
the program really runs with more workers, a device or a storage twice as fast, a second core, its pictures packed by
`iofast pack --resize 256`, or a FastLoader with the same transforms, and its rate, by its own timeline, is compared.
The step keeps the length that it had in the first run. Of trainings on the CPU the interference is compared, too: their
step is known. The model was made with "tune"; "final" has other sizes, seeds and kinds, and nobody looks at it before.
About 25 seconds a run, 40 minutes a split; with --resume earlier runs are read.
"""

import os
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from benchmarks import measure
from benchmarks.verdicts.program_runs import Place, Run, add_options, place_of
from benchmarks.verdicts.programs import SUITES, Program
from benchmarks.verdicts.score import SHORT_S
from iofast.monitor.findings import Band, Prediction, Verdict
from iofast.monitor.verdict import classify
from tools import machine

SIDE = 64  # pixels, of the images that timed_datasets.Decoding makes
_SLEEPS = ("sleep", "burst", "store")  # loads whose cost is a wait for a storage


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
    if program.load == "decode":
        if prediction.name == "pack" and program.loader == "torch":
            return replace(program, load="packed")
        if prediction.name == "fastloader":
            threads = max(program.workers, len(os.sched_getaffinity(0)))
            return replace(program, loader="fast", side=SIDE, workers=threads)
    return None


@dataclass(frozen=True)
class Beside:
    """A training on the CPU: how much longer its step takes beside the loader, predicted and by its own clock."""

    program: str
    predicted: Band | None
    measured: float


def beside(program: Program, run: Run, verdict: Verdict) -> Beside | None:
    """None for a program whose step is not known to be `step_s` of processor time."""
    if program.device or program.compute or run.true is None:
        return None
    return Beside(program.name, verdict.interference, run.true.step_s / program.step_s - 1)


def fixed(program: Program, run: Run) -> Program:
    """The program with its step as long as it was: `compute` would measure the changed loader again.

    On the CPU `step_s` is processor time already.
    """
    assert run.true is not None
    if not program.device and not program.compute:
        return program
    return replace(program, compute=0.0, step_s=round(run.true.step_s, 5))


def score(place: Place, program: Program) -> tuple[list[Scored], Beside | None]:
    """Watch a program, predict, apply each change that can be applied, and compare."""
    before = place.run(program, inside=False)
    if before.seen is None or before.true is None:
        return [], None
    verdict = classify(before.seen.snapshots, min_seconds=SHORT_S)
    steady = fixed(program, before)
    pairs = [(prediction, changed(steady, prediction)) for prediction in verdict.what_if]
    runs = [(prediction, place.run(after, inside=False)) for prediction, after in pairs if after is not None]
    scored = [Scored(program.name, prediction, rate(run) / rate(before)) for prediction, run in runs if run.true]
    return scored, beside(program, before, verdict)


def page(split: str, scored: Sequence[Scored], slowed: Sequence[Beside], quiet: Sequence[str]) -> str:
    """The figures, a line for each prediction, and the interference. `quiet`: programs without any prediction."""
    errors = [one.error for one in scored]
    right = sum((one.middle > 1) == (one.measured > 1) for one in scored)
    asked = (
        ("median error", "10 %", f"{statistics.median(errors):.1%}"),
        ("inside its band (2 % of the rate aside)", "90 %", f"{sum(one.inside for one in scored) / len(scored):.0%}"),
        ("direction right", "97 %", f"{right / len(scored):.0%}"),
    )
    rows = [
        (one.program, re.sub(r"^iofast pack \S+", "iofast pack FOLDER", one.prediction.change),
         f"{one.prediction.low:.2f} – {one.prediction.high:.2f}",
         f"{one.measured:.2f}", f"{one.error:.0%}", "yes" if one.inside else "**no**")
        for one in scored
    ]  # fmt: skip
    shown = [
        (one.program, "–" if one.predicted is None else f"{one.predicted.low:.0%} – {one.predicted.high:.0%}",
         f"{one.measured:.0%}")
        for one in slowed
    ]  # fmt: skip
    programs = len({one.program for one in scored})
    return f"""# Do predictions come true?

Split "{split}": {len(scored)} predictions on {programs} programs. Rates are multiples of the rate before the change.
Nothing was predicted for {len(quiet)} programs{": " if quiet else ""}{", ".join(quiet)}.

{measure.table(("", "asked", "found"), asked)}

{measure.table(("program", "change", "predicted", "measured", "error", "inside"), rows)}

How much longer a step takes beside the loader, of trainings on the CPU:

{measure.table(("program", "predicted", "measured"), shown)}

{machine.describe()}
- Command: `python -m benchmarks.bench_what_if --split {split}`
"""


def main() -> None:
    parser = measure.parser(__doc__, photos=False, seconds=15.0, resume=False, repeats=2)
    add_options(parser, "iofast-what-if", "--split")
    arguments = parser.parse_args()
    suite = f"change-{arguments.split}"
    place = place_of(arguments, suite)
    chosen = [one for one in SUITES[suite] if not arguments.only or one.name in arguments.only]
    found: list[Scored] = []
    slowed: list[Beside] = []
    for program in tqdm(chosen, unit=" programs", disable=not sys.stderr.isatty()):
        scored, longer = score(place, program)
        found += scored
        slowed += [longer] if longer is not None else []
    if not found:
        raise SystemExit("no prediction could be applied")
    predicted = {one.program for one in found}
    quiet = [program.name for program in chosen if program.name not in predicted]
    name = "what-if" if arguments.split == "final" else "what-if-tune"
    measure.write(name, page(arguments.split, found, slowed, quiet), arguments.output)


if __name__ == "__main__":
    main()
