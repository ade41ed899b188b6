"""Phases of a step that the program names: in the verdict's evidence, and in every view."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from monitor_moments import busy as compute_bound
from monitor_moments import moment
from monitor_snapshots import BUSY, LOADER, snapshot, stacks, training

from iofast.monitor.findings import Bound, Evidence, Verdict
from iofast.monitor.limits import step_phases
from iofast.monitor.render import wording
from iofast.monitor.render.html_report import html
from iofast.monitor.render.layout import drawn, whole
from iofast.monitor.render.moment import Moment
from iofast.monitor.render.printed import to_json
from iofast.monitor.snapshot import Doing, Frame, LoaderFigures
from iofast.monitor.verdict import classify

# 10 steps of 0.1 s in each interval
TRAIN = replace(LOADER, steps=10, phases={"backward": 0.33, "forward": 0.61, "loss": 0.003, "optimizer": 0.04})
ON_DEVICE = replace(TRAIN, device="cuda:0", phases_on_device=True)
HOST = {Doing.RUNNING: 0.9, Doing.FUTEX: 0.1}
STACKS = {
    Bound.SYNC: stacks({Frame.SYNC: 0.5, Frame.FORWARD: 0.5}),
    Bound.LAUNCH: stacks({Frame.FORWARD: 0.9, Frame.SYNC: 0.1}),
}


def told(verdict: Verdict) -> list[Evidence]:
    return [evidence for evidence in verdict.evidence if evidence.name == "step_phases"]


@pytest.mark.parametrize("bound", [Bound.COMPUTE, Bound.SYNC, Bound.LAUNCH])
def test_a_verdict_says_in_which_phases_the_time_goes(bound: Bound) -> None:
    idle, doing = (0.02, BUSY) if bound is Bound.COMPUTE else (0.5, HOST)
    known = replace(ON_DEVICE, exposed_s=0.0)
    verdict = classify(training(doing=doing, idle=idle, loaders=(known,), stacks=STACKS.get(bound)))
    assert verdict.bound is bound
    (evidence,) = told(verdict)
    assert evidence.value == pytest.approx(0.61)
    assert evidence.text == (
        "forward takes 61% of a step, backward 33%, optimizer 4% (by the device's clock)"  # nobody asks for 0.3%
    )


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    without = training(doing=BUSY, idle=0.02, loaders=(replace(LOADER, steps=10),))
    assert told(classify(without)) == []
    late = replace(TRAIN, wait_s=0.5)
    input_bound = classify(training(doing={Doing.QUEUE: 0.5, Doing.RUNNING: 0.5}, idle=None, loaders=(late,)))
    assert input_bound.bound is Bound.INPUT
    assert told(input_bound) == []
    before_a_step = replace(TRAIN, step_s=None, steps=0)
    assert step_phases([before_a_step]) == ({}, False)
    assert step_phases([]) == ({}, False)


def test_stacks_say_it_of_a_program_that_names_nothing() -> None:
    """On the CPU, where the host's time is all there is; beside a device its stacks show who launches and who waits."""
    seen = stacks({Frame.BACKWARD: 0.6, Frame.FORWARD: 0.3, Frame.LOADER_WAIT: 0.08, Frame.OPTIMIZER: 0.02})
    verdict = classify(training(doing=HOST, idle=None, stacks=seen))
    assert verdict.bound is Bound.COMPUTE
    (evidence,) = [one for one in verdict.evidence if one.name == "stack_phases"]
    assert evidence.value == pytest.approx(0.6)
    assert evidence.text == "the training thread is in backward in 60%, forward in 30% of 400 stack samples"
    judged = moment(5, last=verdict, loaders=())
    assert wording.summary(judged).endswith(" · " + evidence.text)
    for silent in (training(doing=BUSY, idle=0.02, stacks=seen), training(doing=HOST, idle=None)):
        assert not [one for one in classify(silent).evidence if one.name == "stack_phases"]
    named = classify(training(doing=HOST, idle=None, stacks=seen, loaders=(TRAIN,)))
    assert len(told(named)) == 1
    assert not [one for one in named.evidence if one.name == "stack_phases"]


def test_shares_are_of_all_intervals_and_of_the_loader_that_trains() -> None:
    slow = replace(TRAIN, step_s=0.2, batches=5, steps=5, phases={"forward": 0.2})
    other = replace(LOADER, name="validation", batches=2, steps=2, phases={"metric": 0.2})
    found = step_phases((TRAIN, other, other, slow))
    expected = {"forward": 0.405, "backward": 0.165, "optimizer": 0.02, "loss": 0.0015}
    assert found.shares == {name: pytest.approx(share) for name, share in expected.items()}
    assert (list(found.shares), found.on_device) == (list(expected), False)


def test_views_show_the_loader_whose_steps_take_most_of_the_time() -> None:
    other = replace(LOADER, name="validation", batches=200, steps=200, step_s=1e-3, phases={"metric": 0.1})
    now = replace(shown(TRAIN), snapshot=snapshot(loaders=(other, TRAIN)))
    assert wording.step(now.snapshot).startswith("forward 61%")
    assert "metric" not in html([now], datetime(2026, 11, 21, tzinfo=UTC))


def shown(loader: LoaderFigures, verdict: Verdict | None = None) -> Moment:
    return moment(5, last=verdict or compute_bound(), loaders=(loader,), notes=())


def test_every_view_shows_them() -> None:
    now = shown(ON_DEVICE)
    text = "forward 61%  backward 33%  optimizer 4%  loss 0%"
    assert f"step       {text}" in [line.plain for line in whole(now)]
    for size in ((80, 24), (120, 40)):
        assert any(line.plain.startswith(f"step       {text}") for line in drawn([now], 0, size)), size
    assert text in html([now], datetime(2026, 11, 21, tzinfo=UTC))
    (loader,) = to_json(now)["loaders"]
    assert (loader["phases"], loader["phases_on_device"]) == (ON_DEVICE.phases, True)
    evidence = Evidence("step_phases", 0.61, "forward takes 61% of a step")
    judged = replace(compute_bound(), evidence=(evidence,))
    assert wording.summary(shown(ON_DEVICE, judged)).endswith(" · forward takes 61% of a step")


def test_views_without_phases_do_not_speak_of_them() -> None:
    now = shown(LOADER)
    assert not any(line.plain.startswith("step ") for line in (*whole(now), *drawn([now], 0, (120, 40))))
