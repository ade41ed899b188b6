"""The comparison with other monitors: their verdicts are read correctly, and only comparable runs count."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_monitors
from benchmarks.monitors import tools
from benchmarks.monitors.side import Pair
from benchmarks.monitors.train import Arithmetic
from benchmarks.monitors.workloads import CPU, LOOKING, PROGRAMS, RUNNING_AHEAD, find, unseen
from benchmarks.verdicts.judge import Observation
from benchmarks.verdicts.program_runs import Run
from benchmarks.verdicts.score import Scored
from benchmarks.verdicts.truth import Truth
from iofast.monitor.findings import Bound, Severity, StallBounds, Verdict
from iofast.monitor.snapshot import Tier


def summary(primary: str, *kinds: str, waiting: float = 40.0) -> dict[str, Any]:
    """The parts of TraceML's final_summary.json that are read."""
    names = {"INPUT_BOUND": "INPUT-BOUND", "RESIDUAL_HEAVY": "RESIDUAL-HEAVY", "BALANCED": "BALANCED"}
    return {
        "primary_diagnosis": {"kind": primary, "status": names[primary]},
        "step_time": {
            "issues": [{"kind": kind, "status": names[kind]} for kind in kinds],
            "global": {"average": {"input_wait_ms": waiting, "step_time_ms": 100.0}},
        },
    }


def test_any_finding_of_traceml_counts() -> None:
    """On the simulated device the finding of unattributed time may come first."""
    both = tools.traceml(summary("RESIDUAL_HEAVY", "RESIDUAL_HEAVY", "INPUT_BOUND"))
    assert both == tools.Said("RESIDUAL-HEAVY, INPUT-BOUND", True, 0.4)
    assert tools.traceml(summary("BALANCED", "BALANCED", waiting=2.0)) == tools.Said("BALANCED", False, 0.02)
    unmeasured = summary("BALANCED", "BALANCED")
    unmeasured["step_time"]["global"]["average"] = {"input_wait_ms": None, "step_time_ms": None}
    assert tools.traceml(unmeasured).waiting is None


def report(*insights: dict[str, Any], wait: float | None = 0.1) -> dict[str, Any]:
    return {
        "summary": {"avg_step_s": 0.3, "inter_step_gap_s": wait, "phase_avg_s": {"dataloader_wait": wait}},
        "insights": list(insights),
    }


def test_gpuprof_is_read_by_its_evidence() -> None:
    stall = {"title": "33% of step time waiting", "evidence": {"inter_step_gap_s": 0.1, "step_s": 0.3}}
    starved = {"title": "Prefetch queue starved", "evidence": {"frac_starved": 1.0}}
    cost = {"title": "Estimated cost: $0.01", "evidence": {"hours": 1}}
    fine = {"title": "No major bottlenecks detected"}
    found = tools.gpuprof(report(cost, stall, starved))
    assert found.verdict == "33% of step time waiting; Prefetch queue starved"
    assert found.input
    assert found.waiting == pytest.approx(0.25)
    assert tools.gpuprof(report(cost, fine, wait=None)) == tools.Said("No major bottlenecks detected", False, 0.0)
    assert tools.gpuprof(report(cost)).verdict == "nothing"


def test_what_a_host_clock_cannot_tell_is_not_counted() -> None:
    assert all(not program.device and unseen(program) is None for program in CPU)
    assert unseen(find("sleep-1w")) is None
    assert unseen(find("launch")) == RUNNING_AHEAD
    assert unseen(find("item-loop")) == LOOKING
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


def pair(tool: str, name: str, stall: float, bound: Bound, theirs: bool) -> Pair:
    true = Truth(stall, 0.0, stall, None, 12.0, 100)
    run = Run(find(name), False, Observation(0, 1, (), 0.1), true)
    verdict = Verdict(
        bound, None, StallBounds(stall, stall, Tier.STACKS), Severity.NONE, (), "", Tier.STACKS, {}, seconds=12.0
    )
    return Pair(find(name), tool, Scored(run, verdict), tools.Said("said", theirs, stall))


def test_right_is_yes_where_it_waits_and_no_where_it_does_not() -> None:
    assert pair("traceml", "train-sleep-0w", 0.4, Bound.INPUT, False).answers == (True, False)
    assert pair("traceml", "train-compute", 0.0, Bound.UNKNOWN, False).answers == (None, False)
    assert pair("traceml", "train-compute", 0.04, Bound.COMPUTE, True).starved is False
    borderline = pair("traceml", "borderline", 0.07, Bound.COMPUTE, True)
    assert borderline.starved is None
    assert not borderline.counted
    assert not pair("traceml", "launch", 0.0, Bound.LAUNCH, True).counted


def test_the_page_counts_the_same_runs_for_both() -> None:
    pairs = [
        pair("traceml", "train-sleep-0w", 0.4, Bound.INPUT, True),
        pair("traceml", "train-compute", 0.0, Bound.COMPUTE, True),
        pair("traceml", "launch", 0.0, Bound.LAUNCH, True),
        pair("gpuprof", "train-compute", 0.0, Bound.UNKNOWN, False),
        Pair(find("sleep-1w"), "gpuprof", failed="ProgramError: ended with status 1"),
    ]
    page = bench_monitors.page(pairs, 12.0)
    assert "| iofast, beside traceml-ai | 2 of 2 | 0 of 1 | 0 of 1 | 0 |" in page
    assert "| traceml-ai | 1 of 2 | 0 of 1 | 1 of 1 | 0 |" in page
    assert "| iofast, beside gpuprof | 0 of 1 | 0 of 0 | 0 of 1 | 1 |" in page
    assert "| gpuprof | 1 of 1 | 0 of 0 | 0 of 1 | 0 |" in page
    assert "| launch ¹ |" in page
    assert "sleep-1w under gpuprof gave nothing: ProgramError: ended with status 1" in page


def test_arithmetic_takes_its_time_forward_and_backward() -> None:
    model = Arithmetic(0.06)
    begin = time.thread_time()
    loss = model(None)
    forward = time.thread_time() - begin
    loss.backward()
    backward = time.thread_time() - begin - forward
    assert 0.018 < forward < 0.2, "a thread that shares its core may count more than it used"
    assert 0.036 < backward < 0.2
    assert torch.equal(model.weight.grad, torch.zeros_like(model.weight))


def test_without_the_tools_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_monitors, "version", lambda _tool: None)
    monkeypatch.setattr("sys.argv", ["bench_monitors", "--output", str(tmp_path / "page.md")])
    bench_monitors.main()
    assert not (tmp_path / "page.md").exists()
