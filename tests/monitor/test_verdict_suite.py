"""The labelled suite of the monitor in short: its simulated device and its truth are right; two programs are judged."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdicts import truth
from benchmarks.verdicts.program_runs import Place, Run
from benchmarks.verdicts.programs import SUITES, find
from benchmarks.verdicts.score import SHORT, Scored, asked, confusion, score
from iofast.monitor.findings import Bound, Severity, StallBounds, Verdict
from iofast.monitor.snapshot import Tier
from tests.nvml import build


def test_the_true_stall_is_where_the_device_idles_in_next(tmp_path: Path) -> None:
    """A busy device takes the waiting's cost away, and what was not training does not count."""
    marks = {
        "training": [(100, 200), (300, 400)],
        "next": [(90, 120), (140, 160), (210, 290), (300, 330)],
        "starts": [(295, 330)],
        "device": True,
    }
    (tmp_path / "timeline.json").write_text(json.dumps(marks))
    np.array([110, 150, 200, 310, 330, 390], np.int64).tofile(tmp_path / "busy.bin")
    found = truth.read(tmp_path)
    # idle while training: 100-110, 150-200, 310-330, 390-400; in next: 100-110, 150-160, 310-330
    assert found.stall == pytest.approx(40 / 200)
    assert found.starts == pytest.approx(20 / 200)
    assert found.within_epochs == pytest.approx(0.1 / 0.9)
    assert found.wait == pytest.approx(70 / 200)
    assert found.idle == pytest.approx(90 / 200)
    assert found.steps == 2
    assert truth.read(tmp_path, until=150).stall == pytest.approx(10 / 50)


BUSY = 0.1  # of the processors, used by other tests: then looks are rare, and a fast loader may truly be late


def test_suites_are_large_and_apart() -> None:
    for name, programs in SUITES.items():
        assert len({program.name for program in programs}) == len(programs), name
    for name in ("tune", "final"):
        programs = SUITES[name]
        assert sum(program.loader not in ("zeromq", "grpc") for program in programs) >= 40, name
    tune, final = (set(SUITES[name]) for name in ("tune", "final"))
    assert not {replace(program, seed=0) for program in final} & {replace(program, seed=0) for program in tune}
    assert len({program.name for program in final} - {program.name for program in tune}) >= 2, "new kinds"


def test_scores_count_what_is_wrong() -> None:
    run = Run(find("tune", "compute-step"), inside=False, true=truth_of(0.02))
    wrong = Scored(run, Verdict(Bound.INPUT, None, StallBounds(0.1, 0.3, Tier.OUTSIDE), Severity.BOUND))
    assert wrong.misled
    assert (wrong.right, wrong.false_input, wrong.contained, wrong.abstained) == (False, True, False, False)
    wide = Scored(run, Verdict(Bound.COMPUTE, None, StallBounds(0.0, 0.9, Tier.OUTSIDE), Severity.NONE))
    assert (wide.right, wide.contained, wide.abstained, wide.cause_right) == (True, True, True, None)
    met = {what: met for what, _, _, met in asked([wrong, wide], inside=False)}
    assert not any(met.values())
    assert "| compute-bound | 1 | 1 |" in confusion([wrong, wide])


def truth_of(stall: float) -> truth.Truth:
    return truth.Truth(stall=stall, starts=0.0, wait=stall, idle=stall, seconds=10.0, steps=100)


@pytest.mark.parametrize(
    ("built", "stall", "right"),
    [
        ("compute-step", 0.02, {Bound.COMPUTE}),
        ("compute-step", 0.07, {Bound.COMPUTE, Bound.INPUT}),
        ("compute-step", 0.14, {Bound.INPUT}),
        ("sleep-1w", 0.02, {Bound.COMPUTE}),
        ("sleep-1w", 0.50, {Bound.INPUT}),
        ("launch", 0.17, {Bound.LAUNCH}),
    ],
)
def test_what_a_run_was_says_what_is_right(built: str, stall: float, right: set[Bound]) -> None:
    program = find("tune", built)
    for bound in (Bound.INPUT, Bound.COMPUTE, Bound.LAUNCH, Bound.UNKNOWN):
        verdict = Verdict(bound, None, StallBounds(stall, stall, Tier.INSIDE), Severity.NONE)
        one = Scored(Run(program, inside=True, true=truth_of(stall)), verdict)
        assert one.right is (bound in right)
        assert one.as_built is (bound in program.bounds)
        assert one.false_input is (bound is Bound.INPUT and Bound.INPUT not in right)


@pytest.mark.slow
def test_two_programs_are_judged(tmp_path: Path) -> None:
    """A slow storage from outside, and a device that is the limit, with a meter inside. Both sleep and run at once."""
    try:
        library = build(tmp_path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")
    place = Place("tune", tmp_path, library, seconds=8.0, repeats=0)
    with ThreadPoolExecutor() as threads:
        starved = threads.submit(place.run, find("tune", "sleep-1w"), inside=False)
        busy = threads.submit(place.run, find("tune", "compute-step"), inside=True)
        runs = starved.result(), busy.result()
    outside, inside = (score(run, replace(SHORT, min_seconds=5.0)) for run in runs)
    if max(outside.run.others, inside.run.others) <= BUSY:
        assert outside.right, outside.verdict
        assert outside.cause_right, outside.verdict
        assert outside.error is not None
        assert outside.error < 0.15, "a short look: containment is the whole suite's to show"
        assert inside.right, inside.verdict
    assert inside.error is not None
    assert inside.error < 0.03
