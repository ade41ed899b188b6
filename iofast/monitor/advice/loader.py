"""Advice on loaders that are late. None of it is given where the training does not wait for its loader."""

from __future__ import annotations

from math import ceil, floor

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Cause, Phase
from iofast.monitor.snapshot import Work

OVERSIZED = 60_000  # bytes: photographs of short side 256 have 28 kB on average, of short side 512 about 90
SMALL_FILE = 1 << 20
MOST_WORKERS = 64
FREES_CORES = frozenset({"pack_resize", "fastloader"})  # advice that takes the loader's work away


def more_workers(now: Situation) -> Advice | None:
    """Silent where no core is left, and where nobody works."""
    workers, free = now.training.workers, now.free_cores
    if not now.is_input(Cause.WORKERS, Cause.STORAGE) or workers is None or not workers.count or free is None:
        return None
    waiting = now.verdict.cause is Cause.STORAGE
    if waiting and workers.busy >= now.thresholds.worker_asleep:
        return None
    # A worker that waits for storage needs no core of its own.
    room = floor(free / max(workers.cpu, 0.1)) if waiting else floor(free + 0.5)
    wanted = min(workers.count + room, ceil(workers.count / max(0.02, 1.0 - now.high)), MOST_WORKERS)
    if wanted <= workers.count:
        return None
    why = f"are busy {workers.busy:.0%} of the time" if not waiting else f"wait {1 - workers.busy:.0%} of the time"
    more = f"{free:.1f} cores are idle" if not waiting else "more of them wait at the same time"
    return Advice(
        name="num_workers",
        text=f"The {workers.count} workers {why} and {more}.",
        change=f"DataLoader(..., num_workers={wanted})",
        trigger="worker_cpu",
        gain=min(gain(now.low), wanted / workers.count),
        risk="each worker holds its own copy of what the data set keeps in memory",
    )


def first_workers(now: Situation) -> Advice | None:
    """Silent where a second process would have no core."""
    if not now.is_input(Cause.SINGLE) or now.fast_loader:
        return None
    cores = now.training.system(lambda one: one.system.cores) or 0.0
    if cores < 1.5:
        return None
    wanted = max(1, min(floor(cores) - 1, ceil(now.high / max(0.02, 1.0 - now.high)) + 1, MOST_WORKERS))
    beside = 1.0 / max(1.0 - now.low, now.low / wanted, 1e-9)  # loading beside training, on so many cores
    return Advice(
        name="first_workers",
        text=f"The training thread loads its samples itself, at least {now.low:.0%} of the time; nothing overlaps.",
        change=f"DataLoader(..., num_workers={wanted}, persistent_workers=True)",
        trigger="loader_inline",
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
        gain=gain(now.low),
        risk="memory for the batches that are ready",
    )


def persistent_workers(now: Situation) -> Advice | None:
    """Silent while no epoch ends."""
    gaps = now.phase(Phase.BETWEEN)
    if now.fast_loader or (not now.is_input(Cause.EPOCH_START) and gaps < 0.02) or not now.every.worker_count:
        return None
    return Advice(
        name="persistent_workers",
        text=f"Workers are started anew for each epoch; {gaps:.0%} of the time is in intervals where that happens.",
        change="DataLoader(..., persistent_workers=True)",
        trigger="gap",
        gain=gain(now.low) if now.is_input(Cause.EPOCH_START) else None,
        risk="a data set that is changed between epochs must be changed in the workers",
    )


def pack_smaller(now: Situation) -> Advice | None:
    """Silent where images are small already, or where decoding is not what workers do."""
    if not now.is_input(Cause.WORKERS, Cause.CPU, Cause.SINGLE, Cause.STORAGE, Cause.PAGE_CACHE):
        return None
    size = now.file_bytes
    decoding = now.training.work.get(Work.DECODE, 0.0) + now.training.work.get(Work.RESIZE, 0.0)
    known = bool(now.training.work)
    if size is not None and size < OVERSIZED:
        return None
    if known and decoding < 0.40 and not now.is_input(Cause.STORAGE, Cause.PAGE_CACHE):
        return None
    if size is None and (not known or decoding < 0.40):
        return None
    figure = f"Decoding and resizing are {decoding:.0%} of the loader's work" if known else "The loader decodes"
    shown = f", images have {size / 1000:.0f} kB" if size is not None else ""
    return Advice(
        name="pack_resize",
        text=f"{figure}{shown}: smaller images are read and decoded in a fraction of the time.",
        change=f"iofast pack {now.data} train.lmdb --resize 256",
        trigger="decode",
        gain=now.relief,
        changes_accuracy=True,
        risk="not where training crops need more than 256 pixels",
    )


def pack_small_files(now: Situation) -> Advice | None:
    """Silent where the files are large, or where the disk is not what workers wait for."""
    size = now.file_bytes
    if not now.is_input(Cause.STORAGE, Cause.PAGE_CACHE) or size is None or size > SMALL_FILE:
        return None
    return Advice(
        name="pack",
        text=f"Each sample is a file of {size / 1000:.0f} kB, opened and read on its own from a storage that is slow.",
        change=f"iofast pack {now.data} train.lmdb",
        trigger="worker_asleep",
        gain=gain(now.low),
    )


def fast_loader(now: Situation) -> Advice | None:
    """Silent where FastLoader runs already, and where storage is what is slow."""
    if not now.is_input(Cause.WORKERS, Cause.CPU, Cause.COLLATE, Cause.SINGLE, Cause.PIN) or now.fast_loader:
        return None
    work = now.training.work
    images = work.get(Work.DECODE, 0.0) + work.get(Work.RESIZE, 0.0) + work.get(Work.AUGMENT, 0.0)
    if work and images + work.get(Work.COLLATE, 0.0) + work.get(Work.SEND, 0.0) < 0.40:
        return None  # whatever the workers do, it is not what FastLoader does faster
    device = ', device="cuda"' if now.last is not None and now.last.devices else ""
    text = f"The loader's processors are the limit, at least {now.low:.0%} of the time is lost to it."
    if now.shares_cores:
        text = f"Loader and training share the cores: {now.low:.0%} of the time is waiting, the rest is slowed down."
    return Advice(
        name="fastloader",
        text=text,
        change=f'FastLoader(FastDataset("train.lmdb"), batch_size=..., transform=[...]{device})',
        trigger="worker_cpu",
        gain=now.relief,
        risk="for images, with transforms that it knows",
    )


def page_cache(now: Situation) -> Advice | None:
    """Silent where the bytes come from memory, or where a storage is slow for another reason."""
    if not now.is_input(Cause.PAGE_CACHE):
        return None
    available = now.training.system(lambda one: one.system.memory_available)
    short = available is not None and available < now.thresholds.memory_short
    if short:
        text = "The data set does not stay in memory, and there is too little left for it."
        change = f"iofast pack {now.data} train.lmdb --resize 256"
    else:
        text = "Bytes come from the disk that memory has room for: read the file once before training."
        change = f"cat {now.data} > /dev/null" if now.data != "IMAGES" else "cat train.lmdb > /dev/null"
    return Advice(
        name="page_cache",
        text=text,
        change=change,
        trigger="uncached",
        gain=gain(now.low),
        changes_accuracy=short,
        risk="reads block-local orders (FastLoader order=Blocks()) faster where it can not be held" if short else "",
    )


def collate(now: Situation) -> Advice | None:
    """Silent where workers compute or read."""
    if not now.is_input(Cause.COLLATE):
        return None
    return Advice(
        name="collate",
        text="Workers spend their time on putting batches together and handing them over.",
        change="return uint8 tensors from __getitem__, and turn them to float32 on the device",
        trigger="collate",
        gain=gain(now.low),
    )


def pin_thread(now: Situation) -> Advice | None:
    """Silent where the pin thread keeps up."""
    if not now.is_input(Cause.PIN):
        return None
    return Advice(
        name="pin_thread",
        text="One thread copies every batch to page-locked memory, and it does not keep up.",
        change="return uint8 tensors from __getitem__: a quarter of the bytes of float32",
        trigger="pin_cpu",
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
        gain=None,
    )


def slow_rank(now: Situation) -> Advice | None:
    """Silent where all ranks wait alike."""
    if not now.is_input(Cause.RANK_SKEW):
        return None
    return Advice(
        name="slow_rank",
        text="This rank waits for its data and all others wait for this rank.",
        change="compare its storage, its cores (taskset -p PID) and its share of the samples with another rank's",
        trigger="rank_gap",
        gain=gain(now.low),
    )


RULES = (
    first_workers,
    more_workers,
    pack_smaller,
    pack_small_files,
    fast_loader,
    prefetch,
    persistent_workers,
    page_cache,
    collate,
    pin_thread,
    worker_threads,
    slow_rank,
)
