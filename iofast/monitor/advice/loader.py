"""Advice on how a late loader goes about its work. None of it is given where training does not wait for its loader."""

from __future__ import annotations

from math import ceil, floor

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Cause, Phase
from iofast.monitor.snapshot import WaitSource, WorkerTask

MOST_WORKERS = 64


def more_workers(now: Situation) -> Advice | None:
    """Silent where no core is left, and where nobody works."""
    workers, free = now.training.workers, now.free_cores
    if not now.is_input(Cause.WORKERS, Cause.STORAGE) or workers is None or not workers.count or free is None:
        return None
    waiting = now.verdict.cause is Cause.STORAGE
    if waiting and workers.busy >= now.thresholds.worker_asleep:
        return None
    # A worker that waits for storage needs no core of its own.
    wanted = _enough(now, workers.count, free / max(workers.cpu, 0.1) if waiting else free + 0.5)
    if wanted <= workers.count:
        return None
    why = f"are busy {workers.busy:.0%} of the time" if not waiting else f"wait {1 - workers.busy:.0%} of the time"
    more = f"{free:.1f} cores are idle{now.each_rank}" if not waiting else "more of them would wait side by side"
    return Advice(
        name="num_workers",
        text=f"The {workers.count} workers {why} and {more}.",
        change=f"DataLoader(..., num_workers={wanted})",
        trigger="worker_cpu",
        value=workers.busy,
        gain=min(gain(now.low), wanted / workers.count),
        risk="each worker holds its own copy of what the data set keeps in memory",
    )


def more_threads(now: Situation) -> Advice | None:
    """The same for FastLoader. Silent for loaders of processes, and where no core is left."""
    counts = [one.num_workers for one in now.training.loaders if one.kind == "FastLoader" and one.num_workers]
    free = now.free_cores
    if not now.is_input(Cause.WORKERS) or not counts or free is None:
        return None
    wanted = _enough(now, max(counts), free + 0.5)
    if wanted <= max(counts):
        return None
    return Advice(
        name="num_threads",
        text=f"FastLoader's {max(counts)} threads are the limit and {free:.1f} cores are idle{now.each_rank}.",
        change=f'FastLoader(..., num_workers={wanted})  # or "auto"',
        trigger="idle_cores",
        value=free,
        gain=min(gain(now.low), wanted / max(counts)),
    )


def _enough(now: Situation, count: int, room: float) -> int:
    """How many workers would keep up, by the upper bound of the stall; never more than there is room for."""
    return min(count + floor(room), ceil(count / max(0.02, 1.0 - now.high)), MOST_WORKERS)


def first_workers(now: Situation) -> Advice | None:
    """Silent where a second process would have no core."""
    ours = any(one.kind == "FastLoader" and one.num_workers == 0 for one in now.training.loaders)
    if not now.is_input(Cause.SINGLE) or (now.fast_loader and not ours):
        return None
    cores = (now.training.system(lambda one: one.system.cores) or 0.0) / now.ranks
    if cores < 1.5:
        return None
    wanted = max(1, min(floor(cores) - 1, ceil(now.high / max(0.02, 1.0 - now.high)) + 1, MOST_WORKERS))
    beside = 1.0 / max(1.0 - now.low, now.low / wanted, 1e-9)  # loading beside training, on so many cores
    return Advice(
        name="first_workers",
        text=f"The training thread loads its samples itself, at least {now.low:.0%} of the time; nothing overlaps.",
        change='FastLoader(..., num_workers="auto")'
        if ours
        else f"DataLoader(..., num_workers={wanted}, persistent_workers=True)",
        trigger="stall",
        value=now.low,
        gain=min(gain(now.low), beside),
    )


def prefetch(now: Situation) -> Advice | None:
    """Silent where workers never rest: then they are too slow on average, and no buffer helps."""
    workers, starved = now.training.workers, now.starved
    if not now.is_input() or workers is None or workers.busy >= now.thresholds.worker_busy:
        return None
    if starved is None or starved < now.thresholds.severe or now.is_input(Cause.EPOCH_START, Cause.RANK_SKEW):
        return None
    known = [one.prefetch for one in now.training.loaders if one.prefetch]
    factor = 4 * max(2, max(known, default=2) // max(1, workers.count))
    return Advice(
        name="prefetch_factor",
        text=f"Workers have nothing to do {starved:.0%} of the time and are late at others: some batches take longer.",
        change=f"DataLoader(..., prefetch_factor={factor})",
        trigger="starved",
        value=starved,
        gain=gain(now.low),
        risk="memory for the batches that are ready",
    )


def persistent_workers(now: Situation) -> Advice | None:
    """Silent while the same workers work on."""
    gaps = now.phase(Phase.BETWEEN)
    if now.fast_loader or (not now.is_input(Cause.EPOCH_START) and gaps < 0.02) or not now.renewed_workers:
        return None
    return Advice(
        name="persistent_workers",
        text=f"Workers are started anew for each epoch; {gaps:.0%} of the time is in intervals where that happens.",
        change="DataLoader(..., persistent_workers=True)",
        trigger="gap",
        value=gaps,
        gain=gain(now.low) if now.is_input(Cause.EPOCH_START) else None,
        risk="a data set that is changed between epochs must be changed in the workers",
    )


def collate(now: Situation) -> Advice | None:
    """Silent where workers compute or read."""
    if not now.is_input(Cause.COLLATE):
        return None
    handing = now.training.work.get(WorkerTask.COLLATE, 0.0) + now.training.work.get(WorkerTask.SEND, 0.0)
    return Advice(
        name="collate",
        text=f"Putting batches together and handing them over is {handing:.0%} of what workers do.",
        change="return uint8 tensors from __getitem__, and turn them to float32 on the device",
        trigger="collate",
        value=handing,
        gain=gain(now.low),
    )


def pin_thread(now: Situation) -> Advice | None:
    """Silent where the pin thread keeps up."""
    if not now.is_input(Cause.PIN):
        return None
    name, value = now.figure("pin_cpu", "pin")
    share = "" if value is None else f", {value:.0%} of the time,"
    return Advice(
        name="pin_thread",
        text=f"One thread copies every batch to page-locked memory{share} and does not keep up.",
        change="return uint8 tensors from __getitem__: a quarter of the bytes of float32",
        trigger=name,
        value=value,
        gain=gain(now.low),
    )


def worker_threads(now: Situation) -> Advice | None:
    """Silent where each worker runs one thread."""
    workers = now.training.workers
    if not now.is_input(Cause.CPU) or workers is None or workers.cpu < 1.2:
        return None
    return Advice(
        name="worker_threads",
        text=f"Each worker uses {workers.cpu:.1f} cores: its library's threads fight over them with the other workers.",
        change="cv2.setNumThreads(0)  # in worker_init_fn; or OMP_NUM_THREADS=1",
        trigger="worker_cpu",
        value=workers.cpu,
        gain=None,
    )


def slow_rank(now: Situation) -> Advice | None:
    """Silent where all ranks wait alike."""
    if not now.is_input(Cause.RANK_SKEW):
        return None
    name, value = now.figure("rank_gap")
    more = "" if value is None else f" {value:.0%} of the time longer than any other"
    return Advice(
        name="slow_rank",
        text=f"This rank waits for its data{more}, and all others wait for this rank.",
        change="compare its storage, its cores (taskset -p PID) and its share of the samples with another rank's",
        trigger=name,
        value=value,
        gain=gain(now.low),
    )


_BESIDE = {  # what to do, where a loader of the program's own waits for what it reads
    WaitSource.THREADS: (
        "one thread at a time waits for what it reads, and several would wait side by side",
        "concurrent.futures.ThreadPoolExecutor(8).map(load, samples)  # or several of the threads that fill the queue",
    ),
    WaitSource.EVENTS: (
        "an asyncio loop reads nothing while a step computes in its thread",
        "run the loop in a thread of its own, with several requests at once, and take batches from a queue.Queue",
    ),
}


def reading_ahead(now: Situation) -> Advice | None:
    """Silent where processes or another program read, and where threads compute."""
    site = now.verdict.waits
    if not now.is_input(Cause.STORAGE) or site is None or not site.loader or site.source not in _BESIDE:
        return None
    if now.training.workers is not None:
        return None
    why, change = _BESIDE[site.source]
    return Advice(
        name="reading_ahead",
        text=f"Training waits in `{site.function}` {site.share:.0%} of the time: {why}.",
        change=change,
        trigger="waits_at",
        value=site.share,
        gain=gain(now.low),
    )


def sender(now: Situation) -> Advice | None:
    """Silent where this machine makes the batches."""
    site = now.verdict.waits
    if not now.is_input(Cause.FEEDER) or site is None:
        return None
    return Advice(
        name="sender",
        text=f"Another program sends the batches; training waits {site.share:.0%} of the time in `{site.call}`.",
        change="look at that program where it runs: its processors, its storage, and the network between",
        trigger="waits_at",
        value=site.share,
        gain=gain(now.low),
    )


COUNTS = (first_workers, more_workers, more_threads)
RULES = (
    prefetch,
    persistent_workers,
    collate,
    pin_thread,
    worker_threads,
    slow_rank,
    reading_ahead,
    sender,
)
