"""Advice on how a late loader works: workers, threads, prefetch, handing over."""

from __future__ import annotations

from math import ceil, floor

from iofast.monitor.advice.rule import EVERY, INPUT, Match, Rule, on
from iofast.monitor.advice.situation import Situation
from iofast.monitor.findings import Cause, Phase
from iofast.monitor.snapshot import WaitSource, WorkerTask

MOST_WORKERS = 64
_UINT8 = "return uint8 tensors from __getitem__"


def _more_workers(now: Situation) -> Match | None:
    """Not without a free core, and not if no worker works."""
    workers, free = now.training.workers, now.free_cores
    if workers is None or not workers.count or free is None:
        return None
    waiting = now.caused_by(Cause.STORAGE)
    if waiting and workers.busy >= now.thresholds.worker_asleep:
        return None
    # A worker that waits for storage needs no core of its own.
    wanted = _enough(now, workers.count, free / max(workers.cpu, 0.1) if waiting else free + 0.5)
    if wanted <= workers.count:
        return None
    why = f"wait {1 - workers.busy:.0%} of the time and more of them would wait side by side"
    if not waiting:
        why = f"are busy {workers.busy:.0%} of the time and {free:.1f} cores are idle{_each_rank(now)}"
    words = {"count": workers.count, "why": why, "wanted": wanted}
    return Match(workers.busy, min(now.wait_gain, wanted / workers.count), words)


def _more_threads(now: Situation) -> Match | None:
    """Not for loaders of processes, and not without a free core."""
    count = max((one.num_workers or 0 for one in now.training.loaders if one.kind == "FastLoader"), default=0)
    free = now.free_cores
    if not count or free is None or (wanted := _enough(now, count, free + 0.5)) <= count:
        return None
    words = {"count": count, "wanted": wanted, "each_rank": _each_rank(now)}
    return Match(free, min(now.wait_gain, wanted / count), words)


def _each_rank(now: Situation) -> str:
    return " for each rank" if now.ranks > 1 else ""


def _enough(now: Situation, count: int, room: float) -> int:
    """Number of workers that keeps up, by the upper bound of the stall and the room for more."""
    return min(count + floor(room), ceil(count / max(0.02, 1.0 - now.high)), MOST_WORKERS)


def _first_workers(now: Situation) -> Match | None:
    """Not if a second process would have no core."""
    ours = any(one.kind == "FastLoader" and one.num_workers == 0 for one in now.training.loaders)
    if (now.fast_loader and not ours) or now.cores < 1.5:
        return None
    wanted = max(1, min(floor(now.cores) - 1, ceil(now.high / max(0.02, 1.0 - now.high)) + 1, MOST_WORKERS))
    beside = 1.0 / max(1.0 - now.low, now.low / wanted, 1e-9)  # loading beside training, on so many cores
    change = f"DataLoader(..., num_workers={wanted}, persistent_workers=True)"
    words = {"change": 'FastLoader(..., num_workers="auto")' if ours else change}
    return Match(now.low, min(now.wait_gain, beside), words)


def _prefetch(now: Situation) -> Match | None:
    """Not if workers never rest: then they are too slow on average, and a buffer does not help."""
    workers, starved = now.training.workers, now.starved
    if workers is None or workers.busy >= now.thresholds.worker_busy:
        return None
    if starved is None or starved < now.thresholds.severe or now.caused_by(Cause.EPOCH_START, Cause.RANK_SKEW):
        return None
    known = [one.prefetch for one in now.training.loaders if one.prefetch]
    factor = 4 * max(2, max(known, default=2) // max(1, workers.count))
    return Match(starved, now.wait_gain, {"factor": factor})


def _persistent_workers(now: Situation) -> Match | None:
    """Not while the same workers go on."""
    gaps, starts = now.phase(Phase.BETWEEN), now.caused_by(Cause.EPOCH_START)
    if now.fast_loader or (not starts and gaps < 0.02) or not now.renewed_workers:
        return None
    return Match(gaps, now.wait_gain if starts else None)


def _collate(now: Situation) -> Match:
    return Match(now.work(WorkerTask.COLLATE, WorkerTask.SEND), now.wait_gain)


def _pin_thread(now: Situation) -> Match:
    trigger, value = now.figure("pin_cpu", "pin")
    share = "" if value is None else f", {value:.0%} of the time,"
    return Match(value, now.wait_gain, {"share": share}, trigger)


def _worker_threads(now: Situation) -> Match | None:
    """Only if workers run several threads."""
    workers = now.training.workers
    return Match(workers.cpu) if workers is not None and workers.cpu >= 1.2 else None


def _slow_rank(now: Situation) -> Match:
    trigger, value = now.figure("rank_gap")
    more = "" if value is None else f" {value:.0%} of the time longer than any other"
    return Match(value, now.wait_gain, {"more": more}, trigger)


_BESIDE = {  # by what the loader is made of: why reading is slow, and the change
    WaitSource.THREADS: (
        "one thread at a time waits for what it reads, and several would wait side by side",
        "concurrent.futures.ThreadPoolExecutor(8).map(load, samples)  # or several of the threads that fill the queue",
    ),
    WaitSource.EVENTS: (
        "an asyncio loop reads nothing while a step computes in its thread",
        "run the loop in a thread of its own, with several requests at once, and take batches from a queue.Queue",
    ),
}


def _reading_ahead(now: Situation) -> Match | None:
    """Not if processes or another program read."""
    site = now.verdict.waits
    if site is None or not site.loader or site.source not in _BESIDE or now.training.workers is not None:
        return None
    why, change = _BESIDE[site.source]
    return Match(site.share, now.wait_gain, {"site": site, "why": why, "change": change})


def _sender(now: Situation) -> Match | None:
    site = now.verdict.waits
    return None if site is None else Match(site.share, now.wait_gain, {"site": site})


WORKER_RULES = (
    Rule(
        name="first_workers",
        on=on(Cause.SINGLE),
        match=_first_workers,
        text="The training thread loads its samples itself, at least {value:.0%} of the time; nothing overlaps.",
        change="{change}",
        trigger="stall",
    ),
    Rule(
        name="num_workers",
        on=on(Cause.WORKERS, Cause.STORAGE),
        match=_more_workers,
        text="The {count} workers {why}.",
        change="DataLoader(..., num_workers={wanted})",
        trigger="worker_cpu",
        risk="each worker holds its own copy of what the data set keeps in memory",
    ),
    Rule(
        name="num_threads",
        on=on(Cause.WORKERS),
        match=_more_threads,
        text="FastLoader's {count} threads are the limit and {value:.1f} cores are idle{each_rank}.",
        change='FastLoader(..., num_workers={wanted})  # or "auto"',
        trigger="idle_cores",
    ),
)
LOADER_RULES = (
    Rule(
        name="prefetch_factor",
        on=INPUT,
        match=_prefetch,
        text="Workers have nothing to do {value:.0%} of the time and are late at others: some batches take longer.",
        change="DataLoader(..., prefetch_factor={factor})",
        trigger="starved",
        risk="memory for the batches that are ready",
    ),
    Rule(
        name="persistent_workers",
        on=EVERY,
        match=_persistent_workers,
        text="Workers are started anew for each epoch; {value:.0%} of the time is in intervals in which that happens.",
        change="DataLoader(..., persistent_workers=True)",
        trigger="gap",
        risk="a data set that is changed between epochs must be changed in the workers",
    ),
    Rule(
        name="collate",
        on=on(Cause.COLLATE),
        match=_collate,
        text="Putting batches together and handing them over is {value:.0%} of what workers do.",
        change=f"{_UINT8}, and turn them to float32 on the device",
        trigger="collate",
    ),
    Rule(
        name="pin_thread",
        on=on(Cause.PIN),
        match=_pin_thread,
        text="One thread copies every batch to page-locked memory{share} and does not keep up.",
        change=f"{_UINT8}: a quarter of the bytes of float32",
        trigger="pin_cpu",
    ),
    Rule(
        name="worker_threads",
        on=on(Cause.CPU),
        match=_worker_threads,
        text="Each worker uses {value:.1f} cores: its library's threads compete with those of the other workers.",
        change="cv2.setNumThreads(0)  # in worker_init_fn; or OMP_NUM_THREADS=1",
        trigger="worker_cpu",
    ),
    Rule(
        name="slow_rank",
        on=on(Cause.RANK_SKEW),
        match=_slow_rank,
        text="This rank waits for its data{more}, and all others wait for this rank.",
        change="compare its storage, its cores (taskset -p PID) and its share of the samples with another rank's",
        trigger="rank_gap",
    ),
    Rule(
        name="reading_ahead",
        on=on(Cause.STORAGE),
        match=_reading_ahead,
        text="Training waits in `{site.function}` {value:.0%} of the time: {why}.",
        change="{change}",
        trigger="waits_at",
    ),
    Rule(
        name="sender",
        on=on(Cause.FEEDER),
        match=_sender,
        text="Another program sends the batches; training waits {value:.0%} of the time in `{site.call}`.",
        change="look at that program where it runs: its processors, its storage, and the network between",
        trigger="waits_at",
    ),
)
