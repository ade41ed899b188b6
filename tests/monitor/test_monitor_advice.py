"""Each rule of advice: when it speaks, with which change and gain, and when it must stay silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from monitor_snapshots import DEVICE, LOADER, MAIN, SYSTEM, stacks, thread, training, worker

from iofast.meter import TrafficStats
from iofast.monitor.advice import RULES, advise
from iofast.monitor.advice.situation import MOST_GAIN, gain
from iofast.monitor.findings import Advice, Bound, Cause, Evidence, Phase, Severity, StallBounds, Verdict
from iofast.monitor.snapshot import Doing, Frame, Snapshot, SyncSite, Tier, WaitSite, WaitSource, WorkerTask
from iofast.monitor.training import Training

Changes = dict[str, Any]
LATE = {Doing.QUEUE: 0.6, Doing.FUTEX: 0.38, Doing.RUNNING: 0.02}


def verdict(bound: Bound, cause: Cause | None = None, low: float = 0.4, high: float = 0.5, **changes: Any) -> Verdict:
    made = Verdict(bound, cause, StallBounds(low, high, Tier.STACKS), Severity.NONE, phases={Phase.TRAINING: 40.0})
    return replace(made, **changes)


def given_(judged: Verdict, /, later: Changes | None = None, **changes: Any) -> dict[str, Advice]:
    """By name, after four seconds of which the last two have the changes of `later`, too."""
    shots = training(4, **{"doing": LATE, "idle": 0.6, **changes})
    shots[2:] = [replace(shot, **(later or {})) for shot in shots[2:]]
    return {advice.name: advice for advice in advised(shots, judged)}


def advised(shots: list[Snapshot], judged: Verdict) -> tuple[Advice, ...]:
    return advise(Training(shots), Training(shots), judged)


def workers(cpu: float, count: int = 2, **changes: Any) -> tuple[Any, ...]:
    return (MAIN, *(worker(number, cpu, **changes) for number in range(count)))


def seen(
    main: dict[Frame, float] | None = None, /, work: dict[WorkerTask, float] | None = None, **changes: Any
) -> Changes:
    return {"stacks": stacks(main or {Frame.SYNC: 1.0}, workers=work, **changes)}


def device(**changes: Any) -> Changes:
    return {"devices": (replace(DEVICE, **changes),)}


def system(**changes: Any) -> Changes:
    return {"system": replace(SYSTEM, **changes)}


WORKERS, CPU, TAKEN = (verdict(Bound.INPUT, cause) for cause in (Cause.WORKERS, Cause.CPU, Cause.TAKEN))
SINGLE, STORAGE = verdict(Bound.INPUT, Cause.SINGLE), verdict(Bound.INPUT, Cause.STORAGE)
CACHE = verdict(Bound.INPUT, Cause.PAGE_CACHE, evidence=(Evidence("major_faults", 40.0, ""),))
COLLATE, STARTS = verdict(Bound.INPUT, Cause.COLLATE), verdict(Bound.INPUT, Cause.EPOCH_START)
PIN = verdict(Bound.INPUT, Cause.PIN, evidence=(Evidence("pin_cpu", 0.9, ""),))
REMOTE = verdict(Bound.INPUT, Cause.REMOTE)
SKEW = verdict(Bound.INPUT, Cause.RANK_SKEW, evidence=(Evidence("rank_gap", 0.4, ""),))
FED = WaitSite("/u/train.py", 41, "batches", "queue.get", WaitSource.THREADS, True, 0.6)
STORES = verdict(Bound.INPUT, Cause.STORAGE, waits=FED)
FEEDS = replace(STORES, cause=Cause.FEEDER)
COMPUTE = verdict(Bound.COMPUTE, low=0.0, high=0.02)
MEMORY, LAUNCH = verdict(Bound.MEMORY, low=0.0, high=0.02), verdict(Bound.LAUNCH, low=0.0, high=0.1)
SYNC, TRANSFER = verdict(Bound.SYNC, low=0.0, high=0.1), verdict(Bound.TRANSFER, low=0.0, high=0.1)
THROTTLED = verdict(Bound.THROTTLED, low=0.0, high=0.02)
TALK = verdict(Bound.COMMUNICATION, low=0.0, high=0.02, evidence=(Evidence("communication", 0.3, ""),))

BUSY, ASLEEP = {"processes": workers(0.95)}, {"processes": workers(0.1)}
ALONE = {"processes": (MAIN,)}
ONE = {"processes": (replace(MAIN, cpu_s=1.0),), "idle": None}
DECODES = seen(work={WorkerTask.DECODE: 0.7, WorkerTask.AUGMENT: 0.3})
CONVOLVES = seen({Frame.SYNC: 1.0}, convolutions=True)
BIG = {"file_bytes": 400_000}
SHARED = system(idle_cores=0.1, other_cores=4.0, busiest="pid 7, cc1, and others")
HOT = device(throttle_reasons=("thermal", "power"))
RESTING = device(tensor_active=0.0, sm_active=0.8, capability=(8, 0))
COPIES = seen({Frame.TRANSFER: 0.4, Frame.FORWARD: 0.6})
SITE = SyncSite("train.py", 12, ".item()", 0.5)
ANEW = {**BUSY, "later": {"processes": (MAIN, worker(8, 0.95), worker(9, 0.95))}}
PINNED, FAST = {"threads": (thread("pt_data_pin", 0.1),)}, {"loaders": (replace(LOADER, kind="FastLoader"),)}
ASKED = TrafficStats(gets=1000, bytes=30_000_000, read=40_000_000)
STORED = replace(LOADER, kind="FastLoader", traffic=ASKED)
COLD, LATER = {"loaders": (STORED,)}, {"loaders": (replace(STORED, epoch=1),)}
WHOLE = {"loaders": (replace(STORED, traffic=replace(ASKED, gets=10)),)}
THREADS = {**FAST, **ALONE}
NODES = {**system(numa_nodes=2), **device(numa_node=1), "processes": workers(0.5, numa_node=0)}
PAUSES = {Phase.TRAINING: 80.0, Phase.VALIDATION: 20.0, Phase.CHECKPOINT: 15.0, Phase.BETWEEN: 5.0}

# name: (when it speaks: verdict and changes), (a part of the change), [(when it is silent)]
SPEAKS: dict[str, tuple[tuple[Verdict, Changes], str, list[tuple[Verdict, Changes]]]] = {
    "num_workers": (
        (WORKERS, BUSY),
        "num_workers=4",
        [(CPU, BUSY), (WORKERS, {**BUSY, **system(idle_cores=0.1)}), (STORAGE, BUSY), (COMPUTE, BUSY)],
    ),
    "num_threads": (
        (WORKERS, THREADS),
        "FastLoader(..., num_workers=4)",
        [(CPU, THREADS), (WORKERS, {**THREADS, **system(idle_cores=0.1)}), (WORKERS, BUSY), (COMPUTE, THREADS)],
    ),
    "first_workers": (
        (SINGLE, ALONE),
        "num_workers=2, persistent_workers=True",
        [(SINGLE, {**ALONE, **system(cores=1.0)}), (WORKERS, BUSY), (COMPUTE, ALONE)],
    ),
    "pack_resize": (
        (CPU, {**BUSY, **DECODES, **BIG, "image_root": "/data/my set"}),
        "iofast pack '/data/my set' train.lmdb --resize 256",
        [
            (CPU, {**BUSY, **DECODES, "file_bytes": 25_000}),
            (CPU, {**BUSY, **seen(work={WorkerTask.AUGMENT: 0.9, WorkerTask.DECODE: 0.1}), "file_bytes": 400_000}),
            (CPU, BUSY),
            (CPU, {**BUSY, **DECODES, **FAST}),
            (COMPUTE, {**BUSY, **DECODES, "file_bytes": 400_000}),
        ],
    ),
    "pack": (
        (STORAGE, {**ASLEEP, "file_bytes": 30_000, "dataset_paths": ("/photos/n03",)}),
        "iofast pack FOLDER train.lmdb",  # which folder has all images is not known
        [(STORAGE, {**ASLEEP, **BIG}), (STORAGE, ASLEEP), (CPU, {**BUSY, "file_bytes": 30_000})],
    ),
    "fastloader": (
        (CPU, {**BUSY, **DECODES}),
        "FastLoader(",
        [
            (CPU, {**BUSY, **FAST}),
            (STORAGE, ASLEEP),
            (STORAGE, {**ASLEEP, **FAST, "file_bytes": 30_000}),
            (CPU, {**BUSY, **seen(work={WorkerTask.OTHER: 1.0})}),
            (COMPUTE, BUSY),
        ],
    ),
    "prefetch_factor": (
        (STORAGE, {**ASLEEP, **seen(work={WorkerTask.STARVED: 0.5, WorkerTask.READ: 0.5})}),
        "prefetch_factor=8",
        [
            (STORAGE, {**BUSY, **seen(work={WorkerTask.STARVED: 0.5, WorkerTask.READ: 0.5})}),
            (STORAGE, {**ASLEEP, **seen(work={WorkerTask.STARVED: 0.1, WorkerTask.READ: 0.9})}),
            (STORAGE, ASLEEP),
            (COMPUTE, {**ASLEEP, **seen(work={WorkerTask.STARVED: 1.0})}),
        ],
    ),
    "persistent_workers": (
        (STARTS, ANEW),
        "persistent_workers=True",
        [(COMPUTE, ANEW), (STARTS, {**ANEW, **FAST}), (STARTS, ALONE), (STARTS, BUSY)],
    ),
    "page_cache": (
        (CACHE, ASLEEP),
        "find train.lmdb -type f -exec cat {} + > /dev/null",
        [(STORAGE, ASLEEP), (COMPUTE, ASLEEP)],
    ),
    "stage": ((REMOTE, COLD), "iofast stage URL", [(REMOTE, LATER), (REMOTE, FAST), (STORAGE, COLD), (COMPUTE, COLD)]),
    "cache_size": ((REMOTE, LATER), "IOFAST_CACHE_SIZE", [(REMOTE, COLD), (REMOTE, FAST), (STORAGE, LATER)]),
    "blocks_first": ((REMOTE, COLD), "first=order.Blocks(", [(REMOTE, WHOLE), (REMOTE, FAST), (STORAGE, COLD)]),
    "collate": ((COLLATE, BUSY), "uint8", [(CPU, BUSY), (COMPUTE, BUSY)]),
    "pin_thread": ((PIN, BUSY), "uint8", [(CPU, BUSY), (COMPUTE, {**BUSY, **PINNED})]),
    "worker_threads": (
        (CPU, {"processes": workers(2.5)}),
        "cv2.setNumThreads(0)",
        [(CPU, BUSY), (COMPUTE, {"processes": workers(2.5)})],
    ),
    "slow_rank": ((SKEW, BUSY), "another rank's", [(CPU, BUSY)]),
    "reading_ahead": (
        (STORES, ALONE),
        "ThreadPoolExecutor",
        [
            (STORAGE, ALONE),
            (STORES, BUSY),
            (replace(STORES, cause=Cause.CPU), ALONE),
            (replace(STORES, waits=replace(FED, source=WaitSource.SOCKET)), ALONE),
            (replace(STORES, waits=replace(FED, loader=False)), ALONE),
        ],
    ),
    "sender": ((FEEDS, ALONE), "that program", [(STORES, ALONE), (replace(FEEDS, waits=None), ALONE)]),
    "pin_memory": (
        (TRANSFER, COPIES),
        "pin_memory=True",
        [(TRANSFER, {**COPIES, **PINNED}), (TRANSFER, {}), (COMPUTE, COPIES), (TRANSFER, {**COPIES, **FAST})],
    ),
    "non_blocking": (
        (TRANSFER, {**COPIES, **PINNED}),
        "non_blocking=True",
        [(TRANSFER, COPIES), (TRANSFER, {**COPIES, **FAST}), (COMPUTE, {**COPIES, **PINNED}), (TRANSFER, PINNED)],
    ),
    "uint8": ((TRANSFER, COPIES), "send uint8", [(TRANSFER, seen({Frame.TRANSFER: 0.05})), (COMPUTE, COPIES)]),
    "gpu_decode": (
        (CPU, BUSY),
        'FastLoader(..., device="cuda", decode="auto")',
        [(CPU, {**BUSY, "idle": 0.02}), (WORKERS, BUSY), (CPU, {**BUSY, "idle": None}), (COMPUTE, BUSY)],
    ),
    "sync": (
        (SYNC, seen({Frame.SYNC: 0.5, Frame.FORWARD: 0.5}, syncs=(SITE,))),
        "train.py:12",
        [(COMPUTE, seen({Frame.SYNC: 0.5}, syncs=(SITE,))), (SYNC, seen({Frame.SYNC: 0.5}))],
    ),
    "compile": (
        (LAUNCH, seen({Frame.FORWARD: 1.0})),
        'mode="reduce-overhead"',
        [(LAUNCH, seen({Frame.FORWARD: 1.0}, compiled=True)), (COMPUTE, {}), (WORKERS, BUSY)],
    ),
    "fused_optimizer": (
        (LAUNCH, seen({Frame.OPTIMIZER: 0.3, Frame.FORWARD: 0.7}, single_tensor_optimizer=True)),
        "fused=True",
        [
            (LAUNCH, seen({Frame.OPTIMIZER: 0.3, Frame.FORWARD: 0.7})),
            (LAUNCH, seen({Frame.OPTIMIZER: 0.01}, single_tensor_optimizer=True)),
            (COMPUTE, seen({Frame.OPTIMIZER: 0.3}, single_tensor_optimizer=True)),
        ],
    ),
    "anomaly_detection": ((COMPUTE, seen(anomaly_detection=True)), "set_detect_anomaly(False)", [(COMPUTE, seen())]),
    "cudnn_benchmark": (
        (COMPUTE, CONVOLVES),
        "cudnn.benchmark = True",
        [
            (COMPUTE, seen()),
            (COMPUTE, seen(convolutions=True, compiled=True)),
            (COMPUTE, {**CONVOLVES, "idle": None}),
            (LAUNCH, CONVOLVES),
        ],
    ),
    "channels_last": (
        (COMPUTE, CONVOLVES),
        "channels_last",
        [(COMPUTE, seen()), (COMPUTE, {**CONVOLVES, **device(capability=(6, 1))}), (WORKERS, CONVOLVES)],
    ),
    "mixed_precision": (
        (COMPUTE, RESTING),
        "torch.bfloat16",
        [
            (COMPUTE, device(tensor_active=0.4, sm_active=0.8)),
            (COMPUTE, device(tensor_active=0.0, sm_active=0.2)),
            (COMPUTE, device(sm_active=0.8)),
            (COMPUTE, device(tensor_active=0.0, sm_active=0.8, capability=(6, 1))),
            (WORKERS, RESTING),
        ],
    ),
    "tf32": (
        (COMPUTE, RESTING),
        'set_float32_matmul_precision("high")',
        [(COMPUTE, device(tensor_active=0.0, sm_active=0.8, capability=(7, 5))), (COMPUTE, {}), (WORKERS, RESTING)],
    ),
    "batch_size": (
        (COMPUTE, {**device(sm_active=0.3), "loaders": (LOADER,)}),
        "batch_size=128",
        [
            (COMPUTE, device(sm_active=0.9)),
            (COMPUTE, device(sm_active=0.3, memory_used=70 << 30)),
            (COMPUTE, device(sm_active=0.3, memory_used=None)),
            (COMPUTE, {**device(sm_active=0.3, memory_used=55 << 30), "loaders": (replace(LOADER, batch_size=1),)}),
            (COMPUTE, {}),
            (WORKERS, device(sm_active=0.3)),
        ],
    ),
    "activation_checkpointing": (
        (COMPUTE, {**device(sm_active=0.4, memory_used=78 << 30), "loaders": (replace(LOADER, batch_size=4),)}),
        "checkpoint(",
        [
            (COMPUTE, device(sm_active=0.4)),
            (COMPUTE, device(sm_active=0.9, memory_used=78 << 30)),
            (COMPUTE, {**device(memory_used=78 << 30), "loaders": (replace(LOADER, batch_size=512),)}),
            (COMPUTE, device(memory_used=78 << 30)),
        ],
    ),
    "stem": (
        (MEMORY, {**CONVOLVES, **device(dram_active=0.8)}),
        "stride=2",
        [(COMPUTE, CONVOLVES), (MEMORY, seen()), (WORKERS, CONVOLVES)],
    ),
    "cpu_quota": (
        (CPU, {**BUSY, **system(throttled_s=0.4)}),
        "docker update --cpus",
        [(CPU, BUSY), (CPU, {**BUSY, **system(throttled_s=None)}), (COMPUTE, system(throttled_s=0.4))],
    ),
    "other_programs": ((TAKEN, SHARED), "taskset -acp 0 7 ", [(CPU, SHARED), (COMPUTE, SHARED)]),
    "numa": (
        (CPU, NODES),
        "numactl --cpunodebind=1",
        [
            (CPU, {**NODES, **system(numa_nodes=1)}),
            (CPU, {**NODES, "processes": workers(0.5, numa_node=1)}),
            (CPU, {**NODES, **device(numa_node=None)}),
            (CPU, {**NODES, "processes": workers(0.5)}),
            (COMPUTE, NODES),
        ],
    ),
    "clocks": ((THROTTLED, HOT), "TEMPERATURE", [(THROTTLED, {}), (COMPUTE, device(throttle_reasons=("power",)))]),
    "one_core": (
        (COMPUTE, ONE),
        "larger operations",
        [
            (COMPUTE, {**ONE, "idle": 0.02}),
            (COMPUTE, {**ONE, **system(cores=1.0)}),
            (COMPUTE, {**ONE, **SHARED}),
            (COMPUTE, {**ONE, "processes": (replace(MAIN, cpu_s=1.9),)}),
            (LAUNCH, ONE),
        ],
    ),
    "validation": ((replace(COMPUTE, phases=PAUSES), {}), "every second epoch", [(COMPUTE, {})]),
    "checkpoints": ((replace(COMPUTE, phases=PAUSES), {}), "async_save", [(COMPUTE, {})]),
    "communication": ((TALK, {}), "no_sync()", [(COMPUTE, {})]),
    "other_rank": (
        (replace(TALK, evidence=(Evidence("rank_gap", 0.5, "rank 1 waits 50%"),)), {}),
        "iofast monitor --pid",
        [(TALK, {}), (COMPUTE, {})],
    ),
}


@pytest.mark.parametrize("name", SPEAKS)
def test_when_it_speaks(name: str) -> None:
    (judged, changes), change, _ = SPEAKS[name]
    advice = given_(judged, **changes).get(name)
    assert advice is not None
    assert change in advice.change
    assert advice.text.endswith(".")
    assert advice.trigger
    assert (advice.value is None) == (name == "anomaly_detection"), "the figure that triggered it"
    assert any(letter.isdigit() for letter in advice.text) or advice.value is None
    assert advice.gain is None or 1.0 <= advice.gain <= MOST_GAIN
    if judged.bound is Bound.INPUT and advice.gain is not None:
        assert advice.gain <= gain(0.4) + 1e-9, "more than the proved stall"


def test_first_workers_of_a_fastloader_without_threads() -> None:
    alone = {**ALONE, "loaders": (replace(LOADER, kind="FastLoader", num_workers=0),)}
    assert given_(SINGLE, **alone)["first_workers"].change == 'FastLoader(..., num_workers="auto")'
    assert "first_workers" not in given_(SINGLE, **THREADS)


@pytest.mark.parametrize(("name", "case"), [(name, at) for name in SPEAKS for at in range(len(SPEAKS[name][2]))])
def test_when_it_is_silent(name: str, case: int) -> None:
    judged, changes = SPEAKS[name][2][case]
    assert name not in given_(judged, **changes)


def test_every_rule_is_tested() -> None:
    spoken = {advice for (judged, changes), *_ in SPEAKS.values() for advice in given_(judged, **changes)}
    assert spoken == set(SPEAKS)
    assert {rule.name for rule in RULES} == set(SPEAKS)


def test_the_largest_gain_comes_first() -> None:
    changes: Changes = {**BUSY, **DECODES, "file_bytes": 400_000, "doing": LATE, "idle": 0.6}
    gains = [advice.gain or 0.0 for advice in advised(training(4, **changes), WORKERS)]
    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)


ACCURACY = ("mixed_precision", "tf32", "batch_size", "stem", "pack_resize", "gpu_decode")


@pytest.mark.parametrize("name", [*ACCURACY, "num_workers", "pack", "fastloader", "pin_memory", "sync", "compile"])
def test_changes_of_accuracy_are_marked(name: str) -> None:
    (judged, changes), *_ = SPEAKS[name]
    assert given_(judged, **changes)[name].changes_accuracy == (name in ACCURACY)


@pytest.mark.parametrize("bound", [Bound.UNKNOWN, Bound.IDLE])
def test_no_advice_without_a_verdict(bound: Bound) -> None:
    assert given_(verdict(bound), **{**BUSY, **DECODES, "file_bytes": 400_000}) == {}


def test_a_wait_bounds_no_gain_where_training_gets_the_loaders_processors() -> None:
    """Both compute on the same two cores: taking the loader's work away is worth more than the wait."""
    alone = replace(CPU, stall=StallBounds(0.4, 0.5, Tier.STACKS, host_wait=True))
    changes: Changes = {**BUSY, **DECODES, "file_bytes": 400_000, **system(throttled_s=0.2)}
    judged = advised(training(4, **{"doing": LATE, "idle": None, **changes}), alone)
    assert [(one.name, one.gain) for one in judged[:2]] == [("pack_resize", None), ("fastloader", None)]
    assert judged[2].gain is not None
    assert "share the cores" in judged[1].text
    beside = given_(CPU, **{**BUSY, **DECODES, "file_bytes": 400_000})
    assert beside["fastloader"].gain == beside["pack_resize"].gain == pytest.approx(gain(0.4))


def test_gain() -> None:
    assert list(map(gain, (0.0, 0.5, 1.0, 7.0, -1.0))) == pytest.approx([1.0, 2.0, MOST_GAIN, MOST_GAIN, 1.0])


def test_more_workers_bring_no_more_than_their_number() -> None:
    """One more worker beside two makes a loader half as fast again, whatever the stall."""
    starved = verdict(Bound.INPUT, Cause.WORKERS, low=0.8, high=0.9)
    advice = given_(starved, **{**BUSY, **system(idle_cores=1.0)})["num_workers"]
    assert "num_workers=3" in advice.change
    assert advice.gain == pytest.approx(1.5)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(Bound)), st.sampled_from([None, *Cause]), st.sampled_from(list(SPEAKS)), st.booleans())
def test_no_verdict_makes_it_raise(bound: Bound, cause: Cause | None, name: str, measured: bool) -> None:
    judged = replace(verdict(bound, cause), stall=StallBounds(0.0, 1.0, Tier.OUTSIDE) if measured else None)
    for advice in given_(judged, **SPEAKS[name][0][1]).values():
        assert advice.gain is None or 1.0 <= advice.gain <= MOST_GAIN
    assert isinstance(advised([], judged), tuple)
