"""Whether predictions come true: programs that are watched, and then really changed as `iofast monitor` predicted."""

import os
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks import measure
from benchmarks.verdicts.program_runs import Place, Run
from benchmarks.verdicts.programs import Program
from benchmarks.verdicts.score import SHORT_S
from iofast.monitor.findings import Prediction
from iofast.monitor.verdict import classify

SIDE = 64  # pixels, of the images that timed_datasets.Decoding makes


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


def changed(program: Program, prediction: Prediction) -> Program | None:
    """The program with the predicted change; None if this suite cannot apply it."""
    if prediction.name == "workers" and program.loader in ("torch", "webdataset"):
        found = re.fullmatch(r"num_workers=(\d+)", prediction.change)
        return None if found is None else replace(program, workers=int(found[1]))
    if prediction.name == "device":
        return replace(program, step_s=program.step_s / 2)
    if prediction.name == "storage" and program.load in ("sleep", "store"):
        return replace(program, cost_s=program.cost_s / 2)
    if prediction.name == "page_cache" and program.load in ("sleep", "store"):
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


def applied(place: Place, before: Run) -> list[Scored]:
    """Apply each change that can be applied to a program that ran, and compare.

    The step stays as long as it was: `compute` would measure the changed loader again. On the CPU `step_s` is processor
    time already.
    """
    program, true = before.program, before.true
    if before.seen is None or true is None:
        return []
    steady = program
    if program.device or program.compute:
        steady = replace(program, compute=0.0, step_s=round(true.step_s, 5))
    scored = []
    for prediction in classify(before.seen.snapshots, min_seconds=SHORT_S).what_if:
        after = changed(steady, prediction)
        run = None if after is None else place.run(after)
        if run is not None and run.true is not None:
            scored.append(Scored(program.name, prediction, run.true.rate / true.rate))
    return scored


def page(suite: str, place: Place, programs: Iterable[Program]) -> str:
    """The figures, a line for each prediction, and the interference that trainings on the CPU see."""
    scored, quiet, slowed = list[Scored](), list[str](), list[tuple[str, str, str]]()
    for program in programs:
        run = place.run(program)
        own = applied(place, run)
        scored += own
        quiet += [] if own else [program.name]
        if run.seen is not None and run.true is not None and not (program.device or program.compute):  # a known step
            found = classify(run.seen.snapshots, min_seconds=SHORT_S).interference
            longer = "–" if found is None else f"{found.low:.0%} – {found.high:.0%}"
            slowed.append((program.name, longer, f"{run.true.step_s / program.step_s - 1:.0%}"))
    if not scored:
        raise SystemExit("no prediction could be applied")
    right = sum((one.middle > 1) == (one.measured > 1) for one in scored)
    asked = (
        ("median error", "10 %", f"{statistics.median(one.error for one in scored):.1%}"),
        ("inside its band (2 % of the rate aside)", "90 %", f"{sum(one.inside for one in scored) / len(scored):.0%}"),
        ("direction right", "97 %", f"{right / len(scored):.0%}"),
    )
    rows = [
        (one.program, re.sub(r"^iofast pack \S+", "iofast pack FOLDER", one.prediction.change),
         f"{one.prediction.low:.2f} – {one.prediction.high:.2f}",
         f"{one.measured:.2f}", f"{one.error:.0%}", "yes" if one.inside else "**no**")
        for one in scored
    ]  # fmt: skip
    return f"""# Do predictions come true?

Suite "{suite}": {len(scored)} predictions on {len({one.program for one in scored})} programs. Rates are multiples of
the rate before the change. Nothing was predicted for {len(quiet)} programs{": " if quiet else ""}{", ".join(quiet)}.

{measure.table(("", "asked", "found"), asked)}

{measure.table(("program", "change", "predicted", "measured", "error", "inside"), rows)}

How much longer a step takes beside the loader, of trainings on the CPU:

{measure.table(("program", "predicted", "measured"), slowed)}
"""
