"""Phases of a training and of its steps: what an interval belongs to, what of it counts, what hangs; sums of a run."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monitor_jobs import made
from monitor_moments import moment
from monitor_snapshots import BUSY, DEVICE, LOADER, MAIN, snapshot, stacks, training, worker

from iofast.monitor.findings import Band, Bound, Cause, Evidence, Phase, Severity, Verdict
from iofast.monitor.live import Jobs
from iofast.monitor.phases import Ledger, RunSums, phases, seconds_by_phase
from iofast.monitor.render import wording
from iofast.monitor.render.printed import to_json
from iofast.monitor.render.wording import explanation
from iofast.monitor.snapshot import Doing, Frame, Looks, Snapshot, WaitSite, WaitSource
from iofast.monitor.verdict import classify

LETTERS = {
    Phase.WARM_UP: "w",
    Phase.TRAINING: "T",
    Phase.VALIDATION: "v",
    Phase.CHECKPOINT: "c",
    Phase.BETWEEN: "b",
    Phase.PAUSED: "p",
}


def busy(count: int = 1, **changes: Any) -> list[Snapshot]:
    return training(count, doing=BUSY, idle=0.02, **changes)


def seen(frame: Frame, idle: float = 0.9) -> Snapshot:
    return snapshot(BUSY, idle, stacks=stacks({frame: 0.8, Frame.FORWARD: 0.2}))


def of_workers(*numbers: int, cpu: float = 0.5) -> dict[str, Any]:
    return {"processes": (MAIN, *(worker(number, cpu) for number in numbers))}


ALONE, OLD, NEW = {"processes": (MAIN,)}, of_workers(1, 2), of_workers(3, 4)
SLOW = training(3, doing=BUSY, idle=0.95)
HALTED = snapshot(BUSY, 1.0, processes=(replace(MAIN, states={"T": 0.9}),))
ASKED = replace(LOADER, batches=0)
FED = busy(8, **of_workers(1))
HOST_ALONE = training(3, doing=BUSY, idle=None, **ALONE)
IMPORTS = [replace(HOST_ALONE[0], stacks=stacks({Frame.COMPILE: 1.0})), *HOST_ALONE]
COMPUTES = [replace(one, stacks=stacks({Frame.FORWARD: 1.0})) for one in HOST_ALONE]
INTERVALS: dict[str, tuple[list[Snapshot], str]] = {
    "compiles": ([*busy(4), seen(Frame.COMPILE), *busy(4)], "TTTTwTTTT"),
    "saves": ([*busy(4), seen(Frame.CHECKPOINT), *busy(4)], "TTTTcTTTT"),
    "starts its loader": ([*busy(4), seen(Frame.LOADER_START), *busy(4)], "TTTTbTTTT"),
    "waits for its loader": ([*busy(4), seen(Frame.LOADER_WAIT), *busy(4)], "TTTTTTTTT"),
    "validates, for a second and a half": ([*busy(4), seen(Frame.VALIDATION), snapshot(BUSY, 0.5), *busy(4)],
     "TTTTvvTTTT"),
    "idles for no reason that is known": ([*busy(4), snapshot(BUSY, 0.5), *busy(5)], "TTTTTTTTTT"),
    "is stopped": ([*busy(3), snapshot({Doing.STOPPED: 1.0}, 1.0), *busy(3)], "TTTpTTT"),
    "is stopped, by its state": ([*busy(3), HALTED], "TTTp"),
    "other workers": ([*busy(3, **OLD), *busy(3, **NEW)], "TTTbTT"),
    "other workers beside the old ones": ([*busy(3, **OLD), *busy(1, **of_workers(1, 2, 3, 4)), *busy(3, **NEW)],
     "TTTbTTT"),
    "other workers after none": ([*busy(3, **OLD), *busy(1, **ALONE), *busy(3, **NEW)], "TTTTbTT"),
    "slow at first": ([*SLOW, *busy(9)], "wwwTTTTTTTTT"),
    "slow at last": ([*busy(9), *SLOW], "TTTTTTTTTTTT"),
    "slow all the time": ([*SLOW, *SLOW, *SLOW, *SLOW], "TTTTTTTTTTTT"),
    "no workers yet": ([*busy(2, **ALONE), *busy(8)], "wwTTTTTTTT"),
    "no batch yet": ([*busy(2, loaders=(ASKED,)), *busy(8, loaders=(LOADER,))], "wwTTTTTTTT"),
    "imports, of which few intervals have stacks": ([*IMPORTS, *IMPORTS, IMPORTS[0], *COMPUTES], "w" * 9 + "TTT"),
    "a compilation after computing": ([*COMPUTES, *IMPORTS], "TTTwTTT"),
    # imports of 40 s on a busy machine looked like a training that computes, and `--once` said compute-bound
    "imports longer than what follows": ([*busy(40, **ALONE), *FED], "w" * 40 + "T" * 8),
    "too few to know": ([*busy(40, **ALONE), *busy(2)], "T" * 42),
    "only another loader has workers": ([*busy(40, **ALONE), *busy(4, **of_workers(1)), *busy(2, **ALONE)], "T" * 46),
    "the loader without workers has made batches": ([*busy(40, **ALONE, loaders=(LOADER,)), *FED], "T" * 48),
}  # fmt: skip


@pytest.mark.parametrize("name", INTERVALS)
def test_phases_of_intervals(name: str) -> None:
    snapshots, expected = INTERVALS[name]
    assert "".join(LETTERS[phase] for phase in phases(snapshots)) == expected


def test_seconds_add_up_and_only_training_counts() -> None:
    snapshots = [*busy(40), *[seen(Frame.VALIDATION)] * 10, *busy(10)]
    spent = seconds_by_phase(snapshots, phases(snapshots))
    assert spent == {Phase.TRAINING: pytest.approx(50), Phase.VALIDATION: pytest.approx(10)}
    verdict = classify(snapshots)
    assert verdict.bound is Bound.COMPUTE
    assert verdict.phases == spent
    assert verdict.seconds == pytest.approx(50)


def epochs(start_s: int, steady_s: int) -> list[Snapshot]:
    """Epochs with workers of their own; each begins with seconds of nothing but waiting."""
    made: list[Snapshot] = []
    for epoch in range(12):
        own = of_workers(2 * epoch, 2 * epoch + 1)
        start = training(start_s, doing={Doing.QUEUE: 1.0}, idle=1.0, stacks=stacks({Frame.LOADER_START: 1.0}), **own)
        made += start + busy(steady_s, stacks=stacks({Frame.SYNC: 1.0}), **own)
    return made


def test_starts_of_epochs_are_a_cause() -> None:
    verdict = classify(epochs(1, 4))
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.EPOCH_START)
    assert verdict.stall is not None
    assert verdict.stall.low <= 0.22 <= verdict.stall.high + 0.01
    assert classify(epochs(1, 30)).bound is Bound.COMPUTE


def test_starts_of_epochs_as_a_loader_tells_them() -> None:
    loader = replace(LOADER, batches=10, steps=9, step_s=0.08, exposed_s=0.01, epoch_start_s=0.3)
    verdict = classify(training(doing=BUSY, idle=0.3, loaders=(loader,)))
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.EPOCH_START)
    assert verdict.stall is not None
    assert verdict.stall.low == pytest.approx((0.01 + 0.3) / (0.72 + 0.3), abs=0.01)
    late = replace(loader, exposed_s=0.5, epoch_start_s=0.05)
    assert classify(training(doing=BUSY, idle=0.6, loaders=(late,))).cause is not Cause.EPOCH_START


def test_the_start_of_an_epoch_is_no_cause_while_its_first_step_goes_on() -> None:
    """A step of a minute: until it ends, the start is all that the loader has told."""
    first = replace(LOADER, batches=1, steps=0, step_s=None, epoch_start_s=0.2)
    under_way = replace(LOADER, batches=0, steps=0, step_s=None, epoch_start_s=0.0)
    doing = {Doing.RUNNING: 1.0}
    shots = training(40, doing=doing, idle=None, processes=(MAIN,), stacks=stacks({Frame.BACKWARD: 1.0}))
    shots = [replace(one, loaders=(first if at == 1 else under_way,)) for at, one in enumerate(shots)]
    verdict = classify(shots)
    assert verdict.bound is Bound.COMPUTE
    assert verdict.stall is not None
    assert verdict.stall.high < 0.10


# --- a hang is a verdict of its own: nothing is called slow that does not go on


LOCK = WaitSite("/job/data.py", 12, "__getitem__", "lock.acquire", WaitSource.THREADS, False, 0.0)
NEXT = WaitSite("/job/train.py", 30, "main", "next", WaitSource.PROCESSES, False, 0.0)


def process(number: int = 0, state: str = "S", **changes: Any) -> Any:
    made = worker(number) if number else MAIN
    return replace(made, **{"cpu_s": 0.0, "read_calls_bytes": 0, "states": {state: 1.0}, **changes})


STACKS = stacks({Frame.LOADER_WAIT: 1.0}, stands={100: NEXT, 201: LOCK, 202: LOCK})
HANGS: dict[str, Any] = {
    "doing": {Doing.QUEUE: 1.0},
    "idle": None,
    "processes": (process(), process(1), process(2)),
    "stacks": STACKS,
}
SPINS = {"processes": (process(cpu_s=1.0), process(1)), "main": Looks(20, {Doing.RUNNING: 1.0}, 0.999, 0.0)}
PAGE = replace(LOADER, batches=0, images=0, steps=0)


IN_MAIN = "the training thread in `main`, train.py:30, for `next`"
IN_LOCK = "in `__getitem__`, data.py:12, for `lock.acquire`"


def shots(seconds: int, /, **changes: Any) -> list[Snapshot]:
    return training(seconds, **{**HANGS, **changes})


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, f"{IN_MAIN}; workers 201, 202 {IN_LOCK}"),
        ({"stacks": None, "processes": (process(), process(1, "T"), process(2, "D"))},
         "the training thread asleep; worker 201 stopped (state T); worker 202 waiting for a disk (state D)"),
        ({"stacks": None, "processes": (process(), *(process(number) for number in (6, 2, 1, 3, 5, 4)))},
         "the training thread asleep; workers 201, 202, 203, 204 and 2 more asleep"),
        ({"stacks": None, "processes": (process(cpu_s=0.01),), "loaders": (PAGE,)}, "the training thread asleep"),
        ({"stacks": stacks({Frame.COMMUNICATION: 1.0}), "processes": (process(),)}, "the training thread asleep"),
        ({**SPINS, "stacks": STACKS}, f"{IN_MAIN}; worker 201 {IN_LOCK}"),
        ({**SPINS, "stacks": stacks({Frame.LOADER_INLINE: 1.0}, stands={100: NEXT, 201: LOCK}), "loaders": (PAGE,)},
         f"{IN_MAIN}; worker 201 {IN_LOCK}"),
    ],
    ids=["stacks", "states", "many", "page", "other ranks", "spins", "spins in its own loader"],
)  # fmt: skip
def test_where_a_hang_stands(changes: Any, where: str) -> None:
    verdict = classify(shots(30, **changes))
    assert (verdict.bound, verdict.cause, verdict.severity) == (Bound.STALLED, None, Severity.SEVERE)
    assert verdict.advice == ()
    assert explanation(verdict) == f"No batch for 30 s: {where}."


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": (process(), process(1, read_bytes=4096))},  # reads
        {"processes": (process(), process(1, read_calls_bytes=200))},  # the index of a batch
        {"processes": (process(cpu_s=0.5), process(1))},
        {"processes": (process(cpu_s=0.01), process(1))},  # a loop that sleeps, and is not counted
        {"loaders": (replace(PAGE, batches=1),)},
        {"devices": (replace(DEVICE, busy=1.0),)},
        {"stacks": stacks({Frame.OTHER: 1.0})},  # a notebook between two cells
        {"stacks": None, "processes": (process(),)},
        {"doing": {Doing.STOPPED: 1.0}},
        {**SPINS, "stacks": stacks({Frame.LOADER_WAIT: 0.9, Frame.FORWARD: 0.1})},
        {**SPINS, "processes": (process(cpu_s=1.5), process(1)), "stacks": STACKS},  # its threads make batches
        {**SPINS, "stacks": stacks({Frame.LOADER_INLINE: 1.0})},  # it may make batches, which nobody counts
    ],
)  # fmt: skip
def test_what_does_not_hang(changes: Any) -> None:
    assert classify(shots(40, **changes)).bound is not Bound.STALLED


def test_a_hang_is_not_called_slow_storage_at_first_nor_at_last() -> None:
    worked = training(60, doing={Doing.QUEUE: 0.7, Doing.RUNNING: 0.3}, idle=None)
    verdict = classify([*worked, *shots(12)])
    assert verdict.bound is Bound.UNKNOWN
    assert verdict.reason.startswith("no batch for 12 s: ")
    hangs = classify([*worked, *shots(30)], verdict)
    assert hangs.bound is Bound.STALLED
    assert classify([*shots(30), *(snapshot(time_s=30.0 + at, idle=None) for at in range(80))], hangs).bound.sure


# --- phases of a step that the program names


# 10 steps of 0.1 s in each interval
TRAIN = replace(LOADER, steps=10, phases={"backward": 0.33, "forward": 0.61, "loss": 0.003, "optimizer": 0.04})
ON_DEVICE = replace(TRAIN, device="cuda:0", phases_on_device=True)
HOST = {Doing.RUNNING: 0.9, Doing.FUTEX: 0.1}
BY_BOUND = {
    Bound.SYNC: stacks({Frame.SYNC: 0.5, Frame.FORWARD: 0.5}),
    Bound.LAUNCH: stacks({Frame.FORWARD: 0.9, Frame.SYNC: 0.1}),
}


def told(verdict: Verdict) -> list[Evidence]:
    return [evidence for evidence in verdict.evidence if evidence.name == "step_phases"]


@pytest.mark.parametrize("bound", [Bound.COMPUTE, Bound.SYNC, Bound.LAUNCH])
def test_a_verdict_says_in_which_phases_the_time_goes(bound: Bound) -> None:
    idle, doing = (0.02, BUSY) if bound is Bound.COMPUTE else (0.5, HOST)
    known = replace(ON_DEVICE, exposed_s=0.0)
    verdict = classify(training(doing=doing, idle=idle, loaders=(known,), stacks=BY_BOUND.get(bound)))
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
    assert told(classify(training(doing=BUSY, idle=0.02, loaders=(before_a_step,)))) == []


def test_stacks_say_it_of_a_program_that_names_nothing() -> None:
    """Stacks show the time of the host. On a CPU that is all the work; with a GPU it is only launching and waiting."""
    seen = stacks({Frame.BACKWARD: 0.6, Frame.FORWARD: 0.3, Frame.LOADER_WAIT: 0.08, Frame.OPTIMIZER: 0.02}, 50)
    verdict = classify(training(doing=HOST, idle=None, stacks=seen))
    assert verdict.bound is Bound.COMPUTE
    (evidence,) = [one for one in verdict.evidence if one.name == "stack_phases"]
    assert evidence.value == pytest.approx(0.6)
    assert evidence.text == "the training thread is in backward in 60%, forward in 30% of 2000 stack samples"
    judged = moment(5, last=verdict, loaders=())
    assert wording.summary(judged).endswith(" · " + evidence.text)
    for silent in (training(doing=BUSY, idle=0.02, stacks=seen), training(doing=HOST, idle=None)):
        assert not [one for one in classify(silent).evidence if one.name == "stack_phases"]
    named = classify(training(doing=HOST, idle=None, stacks=seen, loaders=(TRAIN,)))
    assert len(told(named)) == 1
    assert not [one for one in named.evidence if one.name == "stack_phases"]


def test_shares_are_of_all_intervals_and_of_the_loader_that_trains() -> None:
    """The one whose steps take most of the time, not the one with most steps."""
    slow = replace(TRAIN, step_s=0.2, batches=5, steps=5, phases={"forward": 0.2})
    other = replace(LOADER, name="validation", batches=2, steps=2, phases={"metric": 0.2})
    busiest = replace(LOADER, name="validation", batches=200, steps=200, step_s=1e-3, phases={"metric": 0.1})
    for loaders, most, text in (
        ((TRAIN, other, other, slow), 0.405, "forward takes 40% of a step, backward 16%, optimizer 2%"),
        ((busiest, TRAIN), 0.61, "forward takes 61% of a step, backward 33%, optimizer 4%"),
    ):
        (evidence,) = told(classify(training(doing=BUSY, idle=0.02, loaders=loaders)))
        assert evidence.value == pytest.approx(most)
        assert evidence.text == text


# --- where the time of a run went: exact for phases written by hand, the same however long the window is


def summed(shots: list[Snapshot], window: int = 1000) -> RunSums:
    ledger = Ledger(window)
    for shot in shots:
        ledger.add(shot)
    return ledger.sums()


def computes(count: int) -> list[Snapshot]:
    """The device never idles, so the loader costs nothing."""
    return training(count, doing=BUSY, idle=0.0)


def lasting(frame: Frame, count: int) -> list[Snapshot]:
    return [snapshot(BUSY, 1.0, stacks=stacks({frame: 1.0})) for _ in range(count)]


EXACT = replace(LOADER, batches=9, steps=9, exposed_s=0.45, epoch_start_s=0.1)
FIRST = replace(LOADER, batches=1, steps=0, step_s=None, wait_s=0.0, exposed_s=0.0, epoch_start_s=8.0)
STEADY = replace(LOADER, batches=10, steps=10, step_s=0.1, wait_s=0.0, exposed_s=0.0)
RUN = [*lasting(Frame.COMPILE, 10), *computes(70), *lasting(Frame.VALIDATION, 15), *lasting(Frame.CHECKPOINT, 5)]
BEGUN = [*training(10, doing=BUSY, idle=1.0), *training(1, loaders=(FIRST,)), *training(41, loaders=(STEADY,))]
BLIND = [replace(one, main=replace(one.main, samples=0, shares={})) for one in training(10, idle=None)]
SUMS: dict[str, tuple[list[Snapshot], dict[str, Any]]] = {
    "each phase has its share": (RUN, {"start_up": 0.10, "validation": 0.15, "checkpoints": 0.05, "devices": 1}),
    # the start and the checkpoint, and what the bounds leave for a wait
    "validation is no loss": (RUN, {"lost_gpu_hours": Band(15 / 3600, 15.4855384 / 3600)}),
    "the stall by a loader's own clock": (training(50, loaders=(EXACT,)),
     {"epoch_starts": 0.1, "waited": Band(0.45, 0.45), "computed": Band(0.45, 0.45)}),
    # 7 of the 8 s of the first start lie before the interval that reports them
    "the first start of an epoch is no warm-up too": (BEGUN,
     {"seconds": 52, "epoch_starts": 8 / 52, "start_up": 3 / 52}),
    "what cannot be seen is either": (BLIND, {"computed": Band(0.0, 1.0), "lost_gpu_hours": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_a_run(name: str) -> None:
    shots, expected = SUMS[name]
    found = asdict(summed(shots))
    for part, value in expected.items():
        values = asdict(value) if isinstance(value, Band) else value
        assert found[part] == (pytest.approx(values) if values is not None else None), part


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([None, 0.2, 5.0, *Frame]), max_size=60), st.integers(2, 20))
@example([None] * 9, 2)
def test_nothing_is_lost_or_counted_twice(frames: list[Frame | float | None], window: int) -> None:
    """Of phases, computing, and loaders that report seconds of an epoch's start."""
    shots = []
    for frame in frames:
        if isinstance(frame, float):
            shots += training(1, loaders=(replace(LOADER, epoch_start_s=frame),))
        else:
            shots += computes(1) if frame is None else lasting(frame, 1)
    found = summed(shots, window)
    assert found.seconds == pytest.approx(len(shots))
    others = found.start_up + found.epoch_starts + found.validation + found.checkpoints + found.paused
    assert found.computed.low + found.waited.high + others == pytest.approx(1.0 if shots else 0.0)
    assert -1e-9 <= found.computed.low <= found.computed.high + 1e-9


def test_a_day_is_summed_in_a_small_window() -> None:
    hour = [*computes(50), *lasting(Frame.VALIDATION, 10)]
    assert summed(hour * 20, window=30).validation == pytest.approx(1 / 6, abs=0.02)


def test_a_watched_job_has_sums() -> None:
    jobs = Jobs(made(last=12), window=5)
    jobs.add(made().find()[0])
    while len(jobs):
        jobs.next(1.0)
    run: dict[str, Any] = json.loads(json.dumps(to_json(jobs.moments()[0])))["run"]
    jobs.close()
    assert run["seconds"] == pytest.approx(12.0)
    assert set(run["computed"]) == {"low", "high"}


def test_a_phase_that_few_stack_samples_show_is_none() -> None:
    seen = stacks({Frame.VALIDATION: 0.1, Frame.FORWARD: 0.9}, looks=20)
    assert phases(training(4, doing=BUSY, stacks=seen)) == (Phase.TRAINING,) * 4
