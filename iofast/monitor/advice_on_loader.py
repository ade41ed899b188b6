"""Advice on a late loader: packing, FastLoader, workers, reading ahead. Each function says when it does not apply."""

import json
import shlex

from iofast.monitor import thresholds
from iofast.monitor.findings import Advice, Cause
from iofast.monitor.snapshot import LoaderSource, WaitSource, WorkerTask, traffic_of, workers_of
from iofast.monitor.what_if import FASTER, MOST_GAIN, Situation, times_of

OVERSIZED = 60_000  # bytes: photographs of short side 256 have 28 kB on average, of short side 512 about 90
SMALL_FILE = 1 << 20
READING = (Cause.STORAGE, Cause.PAGE_CACHE)


def pasted(*lines: str) -> str:
    """Lines to paste. A name of the watched process adds none."""
    return "\n".join(line.replace("\n", "\\n") for line in lines)


def pack_resize(now: Situation) -> Advice | None:
    """Not if images are small already, and not if decoding is a small part of the work."""
    size, known = now.file_bytes, bool(now.training.work)
    decoding = now.work(WorkerTask.DECODE, WorkerTask.RESIZE)
    little = decoding < thresholds.WORK
    if size is not None and size < OVERSIZED:
        return None
    if known and little and not now.caused_by(*READING):
        return None
    if size is None and (not known or little or now.fast_loader):  # FastLoader reads a packed file
        return None
    does = f"Decoding and resizing are {decoding:.0%} of the loader's work" if known else "The loader decodes"
    does = "The loader waits for what it reads" if little and now.caused_by(*READING) else does
    large = "" if size is None else f", images have {size / 1000:.0f} kB"
    unless = ", nor where images are that small already" if size is None else ""
    text = f"{does}{large}: smaller images are read and decoded in a fraction of the time."
    trigger, value = ("file_bytes", size) if little else ("decode", decoding)
    risk, change = f"not where training crops need more than 256 pixels{unless}", pasted(now.packing)
    return Advice("pack_resize", text, change, trigger, value, now.relief, changes_accuracy=True, risk=risk)


def pack(now: Situation) -> Advice | None:
    """Only for small files, and not if they should be packed smaller."""
    size = now.file_bytes
    if size is None or size > SMALL_FILE or pack_resize(now) is not None:
        return None
    text = f"Each sample is a file of {size / 1000:.0f} kB, opened and read on its own from a storage that is slow."
    change = pasted(now.packing.removesuffix(" --resize 256"))
    return Advice("pack", text, change, "file_bytes", size, now.wait_gain)


def fastloader(now: Situation) -> Advice | None:
    """Not if FastLoader runs already, and not if the workers do what FastLoader does no faster."""
    reading = now.caused_by(*READING)
    packed = pack_resize(now) is not None or (reading and pack(now) is not None)
    if now.fast_loader or (reading and not packed):
        return None
    if not reading and now.training.work and now.work(*FASTER) < thresholds.WORK:
        return None
    slower = ", and it slows down training, as both share the cores" if now.shares_cores else ""
    text = f"At least {now.low:.0%} of the time is lost to the loader{slower}."
    change = _fastloader_lines(now, packed=packed or now.file_bytes is None)
    risk = "T.train is a random crop, a flip and ImageNet's normalisation: name your own steps"
    return Advice("fastloader", text, change, "stall", now.low, now.relief, risk=risk)


def _fastloader_lines(now: Situation, *, packed: bool) -> str:
    """The lines that make a FastLoader, with the names of the program's own source."""
    own = now.last.source or LoaderSource("loader", "dataset", "64", shuffle=True, drop_last=True, side=224, root="")
    options = ", shuffle=True" * own.shuffle + ", drop_last=True" * own.drop_last
    options += ', device="cuda"' * bool(now.last.devices)
    data = json.dumps("train.lmdb" if packed else now.last.image_root or "FOLDER", ensure_ascii=False)
    return pasted(
        "from iofast import FastDataset, FastLoader, transforms as T",
        f"{own.dataset} = FastDataset({data})",
        f"{own.loader} = FastLoader({own.dataset}, {own.batch_size}{options},",
        f"    transform=T.train({own.side}), dtype=torch.float32)",
        f"# or, without editing, where Pillow opens JPEGs: iofast run -- {now.last.job.command}",
    )


def first_workers(now: Situation) -> Advice | None:
    """Not if a second process would have no core."""
    ours = any(one.kind == "FastLoader" and one.num_workers == 0 for one in now.training.loaders)
    times = times_of(now)
    if (times is not None and not times.enough.notable) or (now.fast_loader and not ours) or now.cores < 1.5:
        return None
    count, gain = 1, now.wait_gain
    if times is not None:
        count, gain = max(1, times.enough.count), min(now.wait_gain, times.enough.rate.high)
    text = f"The training thread loads its samples itself, at least {now.low:.0%} of the time; nothing overlaps."
    change = f"DataLoader(..., num_workers={count}, persistent_workers=True)"
    change = 'FastLoader(..., num_workers="auto")' if ours else change
    return Advice("first_workers", text, change, "stall", now.low, gain)


def num_workers(now: Situation) -> Advice | None:
    """Not without a free core, and not if no worker works."""
    workers, times, waiting = now.training.workers, times_of(now), now.caused_by(Cause.STORAGE)
    free = now.free_cores or 0.0
    if times is not None:
        count, wanted, notable, most = times.count, times.enough.count, times.enough.notable, times.enough.rate.high
    else:  # threads of ours that do other work than they report: one more for each free core
        ours = [one.num_workers or 0 for one in now.training.loaders if one.kind == "FastLoader"]
        count = 0 if workers else max(ours, default=0)
        wanted, notable, most = count + int(free), count > 0, MOST_GAIN
    if wanted <= count or not notable or (waiting and (workers is None or workers.busy >= thresholds.HALF)):
        return None
    each = " for each rank" if now.ranks > 1 else ""
    busy = "are the limit" if times is not None else "are late"
    busy = busy if workers is None else f"are busy {workers.busy:.0%} of the time"
    why = f"{busy} and {free:.1f} cores are idle{each}"
    if waiting and workers is not None:
        why = f"wait {1 - workers.busy:.0%} of the time and more of them would wait side by side"
    what, name = ("threads", "FastLoader") if workers is None else ("workers", "DataLoader")
    text, change = f"The {count} {what} {why}.", f"{name}(..., num_workers={wanted})"
    value = free if workers is None else workers.busy
    risk = "each worker holds its own copy of what the data set keeps in memory"
    return Advice("num_workers", text, change, "worker_cpu", value, min(now.wait_gain, most), risk=risk)


def prefetch_factor(now: Situation) -> Advice | None:
    """Not if workers never rest: then they are too slow on average, and a buffer does not help."""
    workers, starved = now.training.workers, now.starved
    if workers is None or starved is None or starved < thresholds.PART:
        return None
    if workers.busy >= 0.85 or now.caused_by(Cause.EPOCH_START, Cause.RANK_SKEW):
        return None
    known = [one.prefetch for one in now.training.loaders if one.prefetch]
    factor = 4 * max(2, max(known, default=2) // max(1, workers.count))
    text = f"Workers have nothing to do {starved:.0%} of the time and are late at others: some batches take longer."
    change, risk = f"DataLoader(..., prefetch_factor={factor})", "memory for the batches that are ready"
    return Advice("prefetch_factor", text, change, "starved", starved, now.wait_gain, risk=risk)


def persistent_workers(now: Situation) -> Advice | None:
    """Not while the same workers go on."""
    gap, sets = now.verdict.figure("gap"), list(filter(None, map(workers_of, now.every.snapshots)))
    every = frozenset[tuple[int, int]]().union(*sets)
    if now.fast_loader or gap is None or not sets or every in (sets[0], sets[-1]):
        return None
    text = f"Workers are started anew for each epoch; {gap.value:.0%} of the time goes into that."
    risk = "a data set that is changed between epochs must be changed in the workers"
    change = "DataLoader(..., persistent_workers=True)"
    return Advice("persistent_workers", text, change, gap.name, gap.value, now.wait_gain, risk=risk)


def page_cache(now: Situation) -> Advice | None:
    """Read once before training what memory can hold; where it cannot, make it smaller."""
    available = now.training.memory_available
    seen = now.verdict.figure("uncached", "major_faults", "worker_disk")
    if seen is None:
        return None
    faults = seen.name == "major_faults"
    share = f" ({seen.value:.0f} faults a second)" if faults else f" to {seen.value:.0%}"
    left = "" if available is None else f", and {available / 2**30:.1f} GiB of memory are left to keep it in"
    folder = now.last.image_root or now.last.data_folder or "train.lmdb"
    what, change = "read it once before training", f"find {shlex.quote(folder)} -type f -exec cat {{}} + > /dev/null"
    if available is not None and available < thresholds.MEMORY_SHORT:
        what, change = "make it smaller", now.packing
    text = f"The data comes from the disk{share}{left}: {what}."
    return Advice("page_cache", text, pasted(change), seen.name, seen.value, now.wait_gain)


def stage(now: Situation) -> Advice | None:
    """Not if all bytes come from this machine's disks."""
    asked = traffic_of(now.training.snapshots)
    if asked is None or asked.hit_rate is None:
        return None
    later = any((one.epoch or 0) >= 1 for one in now.training.loaders)
    change = "export IOFAST_CACHE_SIZE=...  # in a later epoch it is too small" if later else "iofast stage URL"
    rate = asked.bytes / now.training.seconds / 1e6
    text = f"{asked.hit_rate:.0%} of the bytes read are in the cache, and the store delivers {rate:.0f} MB/s."
    return Advice("stage", text, change, "store_hits", asked.hit_rate, now.wait_gain)


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


def reading_ahead(now: Situation) -> Advice | None:
    """Not if processes or another program read."""
    site = now.verdict.waits
    if site is None or not site.loader or site.source not in _BESIDE or now.training.workers is not None:
        return None
    why, change = _BESIDE[site.source]
    text = f"Training waits in `{site.function}` {site.share:.0%} of the time: {why}."
    return Advice("reading_ahead", text, change, "waits_at", site.share, now.wait_gain)


def sender(now: Situation) -> Advice | None:
    """Not if the line that waits is unknown."""
    site = now.verdict.waits
    if site is None:
        return None
    text = f"Another program sends the batches; training waits {site.share:.0%} of the time in `{site.call}`."
    change = "look at that program where it runs: its processors, its storage, and the network between"
    return Advice("sender", text, change, "waits_at", site.share, now.wait_gain)
