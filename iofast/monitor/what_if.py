"""What a change would bring: rates of the job after it, predicted from what the probes saw. Pure.

A batch takes the longer of two things that happen side by side: its step, and its making by the loader. The present
time between batches is 1. A step takes 1 - E, with the bounds of the stall E. Making a batch takes the loader's
processors `prep` (decoding, transforms, collating) and its waits `fetch` (bytes; the names of DS-Analyzer, VLDB 2021),
both in seconds of one worker; `count` workers share them, and `cores` limit `prep`. So

    batch = max(step, (prep + fetch) / count, prep / cores)

and a change replaces some of these. A training thread that makes its batches itself takes both in turn: their sum,
until workers make them beside it. An input-bound loader takes all of the present time: where its measured parts are
most of it, they are scaled to it, and where they are not, nothing is predicted. Where both sides are nearly equal,
their variation makes some batches late: the lower bound of a rate allows a tenth of the time for that. A band that is
wider than its effect is left out.

A training that computes on the loader's processors takes `host` of them, so (prep + host) / cores limits the rate, and
its step is longer by the interference, which shrinks with prep.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, fsum

from iofast.monitor import thresholds
from iofast.monitor.findings import Band, Bound, Cause, Prediction, Verdict
from iofast.monitor.snapshot import WorkerTask
from iofast.monitor.training import Training

_LATE = 0.10  # of a batch's time, lost where step and loader are nearly equal
_NOTABLE = 0.05  # a smaller effect is not shown
_EXPLAINED = 0.7  # of the present time, that a loader's processors and waits must account for
_MOST_WORKERS = 64
MOST_GAIN = 20.0  # a larger prediction is a division by almost nothing
_LEAST_CORES = 0.01  # that a loader can have
_PACKED = 28_000  # bytes of an average photograph of short side 256 (benchmarks/results/load.md)
_DECODING = (WorkerTask.DECODE, WorkerTask.RESIZE)
FASTER = (*_DECODING, WorkerTask.AUGMENT, WorkerTask.COLLATE, WorkerTask.SEND)  # work that a FastLoader does faster
# A FastLoader's processor time as a part of a Pillow DataLoader's: 1/11.4 of packed files, 1/3 of originals
# (benchmarks/results/load.md). The larger one allows for transforms that are not among those measured.
_FASTLOADER = (1 / 11.4, 1 / 3)
_MODELLED = (Cause.STORAGE, Cause.PAGE_CACHE, Cause.WORKERS, Cause.CPU, Cause.SINGLE, Cause.TAKEN)
Range = tuple[float, float]  # the least and the most


class Situation:
    """A verdict that names a limit, and its intervals: `every` has all, `training` those that the verdict rests on."""

    def __init__(self, every: Training, training: Training, verdict: Verdict) -> None:
        self.every, self.training, self.verdict = every, training, verdict
        self.last = every.snapshots[-1]  # the newest interval, which knows most of the program and its files
        stall = verdict.stall
        self.low = stall.low if stall is not None else 0.0  # the part of the stall that is proved
        self.wait_gain = gain(self.low)  # of a loader that is never late
        # Whether training computes on the same processors that its loader has exhausted. A loader that costs next to
        # nothing leaves them to it, and no gain is known then: a small network on two cores, with a wait of 18 to 23 %,
        # ran 3.1 times as fast after packing.
        self.shares_cores = stall is not None and stall.host_wait and self.caused_by(Cause.CPU, Cause.TAKEN)
        self.relief = None if self.shares_cores else self.wait_gain
        threads = every.thread_cpu("iofast") is not None
        self.fast_loader = threads or any(loader.kind == "FastLoader" for loader in every.loaders)
        self.ranks = 1 + len(self.last.peers)  # on this machine: they share its cores, and each gets the same advice
        self.cores = (training.cores or 0.0) / self.ranks  # of this rank; 0 if unknown
        self.free_cores = None if training.idle_cores is None else training.idle_cores / self.ranks
        looks = sum(one.workers.total() for one in training.stacks)
        self.starved = 1.0 - training.work_looks / looks if looks else None  # stack samples without work for workers
        sizes = sorted(one.file_bytes for one in every.snapshots if one.file_bytes is not None)
        self.file_bytes = sizes[len(sizes) // 2] if sizes else None  # of the images that workers had open
        # Packs all images smaller; the word FOLDER stands for their folder if it is not certain.
        folder = "FOLDER" if self.last.image_root is None else shlex.quote(self.last.image_root)
        self.packing = f"iofast pack {folder} train.lmdb --resize 256"

    def caused_by(self, *causes: Cause) -> bool:
        """Whether the verdict is input-bound by one of these causes."""
        return self.verdict.bound is Bound.INPUT and self.verdict.cause in causes

    def work(self, *tasks: WorkerTask) -> float:
        """Share of these tasks in the workers' work."""
        return sum(self.training.work.get(task, 0.0) for task in tasks)


def gain(removed: float) -> float:
    """Upper bound of the speed-up of training when this share of its time goes away."""
    return min(MOST_GAIN, 1.0 / max(1e-9, 1.0 - min(1.0, max(0.0, removed))))


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a batch, in units of the present time between batches; `cores` are those the loader can have."""

    step: Range
    prep: Range
    fetch: Range
    count: int
    cores: float
    beside: bool = True  # whether batches are made beside the steps
    host: float = 0.0  # of the same cores, that training computes on
    slowed: float = 0.0  # by this part of prep a step is longer, at most

    def loader(self, end: int) -> float:
        """Time in which the loader makes a batch; `end` is 0 for the least and 1 for the most."""
        prep, fetch = self.prep[end], self.fetch[end]
        return max((prep + fetch) / self.count, (prep + self.host) / self.cores)

    def stepping(self, end: int) -> float:
        """Time of a step beside that loader."""
        return self.step[end] + end * self.slowed * self.prep[end]

    def batch(self, end: int) -> float:
        """Time of a batch."""
        step, loader = self.stepping(end), self.loader(end)
        return max(step, loader) if self.beside else step + loader

    @property
    def rate(self) -> Band:
        """Multiples of the present rate."""
        short, long = sorted((self.loader(1), self.stepping(1)))
        # 1 if equal, 0 if one is half of the other or less, or if they do not wait for each other
        nearness = max(0.0, 2 * short / max(long, 1e-9) - 1) if self.beside else 0.0
        return Band(1.0 / (self.batch(1) * (1 + _LATE * nearness)), 1.0 / self.batch(0))

    @property
    def notable(self) -> bool:
        return self.rate.middle >= 1.0 + _NOTABLE

    @property
    def on_cores(self) -> float:
        """The time in which all cores make a batch, at most."""
        return (self.prep[1] + self.host) / self.cores

    @property
    def enough(self) -> "Times":
        """The same with the fewest workers that keep up with the step, or that use all cores."""
        wanted = 1.1 * (self.prep[1] + self.fetch[1]) / max(self.step[0], self.on_cores)
        return replace(self, count=min(_MOST_WORKERS, ceil(wanted)), beside=True)


def what_if(now: Situation) -> tuple[Prediction, ...]:
    """Predictions for an input-bound job, the largest gain first; () where the model does not hold."""
    stall, beside = now.verdict.stall, now.verdict.interference
    alone = stall is None or not stall.host_wait or beside is not None or now.verdict.cause is Cause.SINGLE
    times, found = times_of(now) if alone else None, []  # else it is unknown how long a step takes alone
    reported = [one.images for one in now.training.loaders if one.images is not None]
    for name, change, after, assumption in () if times is None else _changes(now, times):
        rate = after.rate
        if after.notable and rate.width <= rate.middle - 1.0:
            present = sum(reported) / now.training.seconds
            images = (present * rate.low, present * rate.high) if reported else None
            found.append(Prediction(name, change, rate.low, rate.high, assumption, images))
    return tuple(sorted(found, key=lambda one: -(one.low + one.high)))


def times_of(now: Situation) -> Times | None:
    """The times of a batch; None where the model does not hold.

    It does not where another cause than the work of workers or threads makes the loader late, or where other programs
    take the processors that training computes on as well.
    """
    stall, cause, free = now.verdict.stall, now.verdict.cause, now.free_cores
    if now.verdict.bound is not Bound.INPUT or stall is None or cause not in _MODELLED or free is None:
        return None
    if cause is Cause.TAKEN and stall.host_wait:
        return None
    step = (max(0.02, 1.0 - stall.high), max(0.02, 1.0 - stall.low))
    if cause is Cause.SINGLE:  # the training thread makes batches itself, in the time of the stall
        # Its core serves workers too: all of the time if it computes there as well, else while it made batches.
        cores = max(0.5, min(now.cores, free + (1.0 if stall.host_wait else stall.low)))
        host = step[1] if stall.host_wait else 0.0
        return Times(step, (stall.low, stall.high), (0.0, 0.0), 1, cores, beside=False, host=host)
    training, workers, seen = now.training, now.training.workers, None
    if workers is not None:
        prep = workers.count * workers.cpu
        # A worker that is neither on a processor, nor queued for one, nor out of work, waits for bytes.
        fetch = workers.count * max(0.0, 1.0 - workers.busy - (now.starved or 0.0))
        waits = 0.0 if now.starved is None else fetch, fetch
        seen = Times(step, (prep, prep), waits, workers.count, max(_LEAST_CORES, free + prep))
    elif threads := max((one.num_workers or 0 for one in training.loaders), default=0):
        read, decode = (
            fsum(one.stages.get(stage, 0.0) for one in training.loaders) / training.seconds
            for stage in ("read", "decode")
        )
        seen = Times(step, (decode, decode), (read, read), threads, max(_LEAST_CORES, free + decode))
    if seen is None or not (seen.prep[1] or seen.fetch[1]):
        return None
    times = _sharing(now, seen) if stall.host_wait else seen
    if (taken := times.loader(1)) < _EXPLAINED:
        return None
    both = [(low / taken, high / taken) for low, high in (times.prep, times.fetch)]  # the loader takes all of the time
    return replace(times, prep=both[0], fetch=both[1], host=times.host / taken, slowed=times.slowed * taken)


def _sharing(now: Situation, times: Times) -> Times:
    """The times of a training that computes on the same cores; as they are if its step by itself is unknown."""
    beside, (short, long), prep = now.verdict.interference, times.step, times.prep[1]
    if beside is None:
        return times
    host = max(0.0, now.training.cpu - (now.training.loader_cores or 0.0))
    alone = short / (1 + beside.high), long / (1 + beside.low)
    slowed = (long - alone[1]) / prep if prep else 0.0
    return replace(times, step=alone, cores=times.cores + host, host=host, slowed=slowed)


def _changes(now: Situation, times: Times) -> Iterator[tuple[str, str, Times, str]]:
    """Changes that may help: name, what to do, the times after it, the assumption."""
    cause, size, decoding = now.verdict.cause, now.file_bytes, now.work(*_DECODING)
    if cause is Cause.TAKEN:  # the rest rests on what the other programs leave
        alone = replace(times, cores=times.cores + (now.training.taken or 0.0) / now.ranks)
        yield "others", "the other programs gone", alone, "the loader gets all the cores that they use now"
        return
    after = times.enough
    if cause is not Cause.CPU and (after.count > times.count or cause is Cause.SINGLE):
        keeps_up = times.step[0] >= times.on_cores
        enough = "enough to keep up with the step" if keeps_up else "as many as the cores can run"
        text = f"{enough}; {now.free_cores or 0.0:.1f} of {now.cores:g} cores are free"
        yield "workers", f"num_workers={after.count}", after, text
    if cause is Cause.CPU:
        grown = replace(times, cores=2 * times.cores, count=2 * times.count)
        text = "the added cores are as fast as the present ones"
        yield "cores", f"twice the cores, num_workers={grown.count}", grown, text
    if cause in (Cause.STORAGE, Cause.PAGE_CACHE):
        least, most = times.fetch
        text = "rate and latency both improve, and workers wait for bytes alone"
        yield "storage", "storage twice as fast", replace(times, fetch=(least / 2, most / 2)), text
        text = "the data set fits into memory, and reading from there costs nothing"
        yield "page_cache", "all data in the page cache", replace(times, fetch=(0.0, 0.0)), text
    if size is not None and size >= 2 * _PACKED and now.training.work:
        shrunk = _PACKED / size
        left = 1 - decoding * (1 - shrunk)
        fetch = times.fetch[0] * shrunk, times.fetch[1]  # where latency is what costs, smaller files win nothing
        smaller = replace(times, prep=(times.prep[0] * left, times.prep[1] * left), fetch=fetch)
        kilobytes = f"{size / 1000:.0f} to {_PACKED / 1000:.0f} kB"
        text = f"files shrink from {kilobytes}, and decoding ({decoding:.0%} of the work) as much"
        yield "pack", now.packing, smaller, text
    if not now.fast_loader and now.work(*FASTER) >= thresholds.HALF:
        least, most = _FASTLOADER
        prep = times.prep[0] * least, times.prep[1] * most
        faster = replace(times, prep=prep, count=max(times.count, int(now.cores)), beside=True)
        text = "it has the script's transforms, and needs 1/11 to 1/3 of the processor time of Pillow in a DataLoader"
        yield "fastloader", "FastLoader with the same transforms", faster, text
    if now.training.devices:
        faster = replace(times, step=(times.step[0] / 2, times.step[1] / 2))
        yield "device", "a device twice as fast", faster, "every step takes half the time"
