"""When advice on a late loader applies: packing, FastLoader, workers, reading ahead."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from iofast.monitor.advice.situation import Situation
from iofast.monitor.findings import Cause
from iofast.monitor.snapshot import LoaderSource, WaitSource, WorkerTask, traffic_of

OVERSIZED = 60_000  # bytes: photographs of short side 256 have 28 kB on average, of short side 512 about 90
SMALL_FILE = 1 << 20
MOST_WORKERS = 64
_READING = (Cause.STORAGE, Cause.PAGE_CACHE)


@dataclass(frozen=True)
class Match:
    """A rule applies: its figure, the predicted gain, and words for its texts."""

    value: float | None
    gain: float | None = None
    words: Mapping[str, object] = field(default_factory=dict)
    trigger: str = ""  # the rule's trigger unless given


def pack_smaller(now: Situation) -> Match | None:
    """Not if images are small already, and not if decoding is a small part of the work."""
    size, known = now.file_bytes, bool(now.training.work)
    decoding = now.work(WorkerTask.DECODE, WorkerTask.RESIZE)
    little = decoding < now.thresholds.work
    if size is not None and size < OVERSIZED:
        return None
    if known and little and not now.caused_by(*_READING):
        return None
    if size is None and (not known or little or now.fast_loader):  # FastLoader reads a packed file
        return None
    words = {
        "what": f"Decoding and resizing are {decoding:.0%} of the loader's work" if known else "The loader decodes",
        "size": "" if size is None else f", images have {size / 1000:.0f} kB",
        "unless": ", nor where images are that small already" if size is None else "",
    }
    return Match(decoding if known else size, now.relief, words, "decode" if known else "file_bytes")


def pack_small_files(now: Situation) -> Match | None:
    """Only for small files, and not if they should be packed smaller."""
    size = now.file_bytes
    if size is None or size > SMALL_FILE or pack_smaller(now) is not None:
        return None
    return Match(size, now.wait_gain, {"kB": size / 1000})


def fast_loader(now: Situation) -> Match | None:
    """Not if FastLoader runs already, and not if the workers do what FastLoader does no faster."""
    packing = pack_smaller(now) or (pack_small_files(now) if now.caused_by(*_READING) else None)
    tasks = (WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT, WorkerTask.COLLATE, WorkerTask.SEND)
    if now.fast_loader:
        return None
    if now.caused_by(*_READING):
        why = f"At least {now.low:.0%} of the time is lost to reading file by file: read the packed file."
        return None if packing is None else Match(now.low, now.wait_gain, {**_lines(now, packed=True), "why": why})
    if now.training.work and now.work(*tasks) < now.thresholds.work:
        return None
    why = f"The loader's processors are the limit, at least {now.low:.0%} of the time is lost to it."
    if now.shares_cores:
        why = f"Loader and training share the cores: {now.low:.0%} of the time is waiting, the rest is slowed down."
    packed = packing is not None or now.file_bytes is None
    return Match(now.low, now.relief, {**_lines(now, packed=packed), "why": why})


def _lines(now: Situation, *, packed: bool) -> dict[str, object]:
    """Words for the lines that make a FastLoader, with the names of the program's own source."""
    source = now.last.source if now.last is not None else None
    own = source or LoaderSource("loader", "dataset", "64", shuffle=True, drop_last=True, side=224, root="")
    options = ["shuffle=True"] * own.shuffle + ["drop_last=True"] * own.drop_last
    options += ['device="cuda"'] * bool(now.last is not None and now.last.devices)
    return {
        "own": own,
        "command": "COMMAND" if now.last is None else now.last.job.command,
        "options": "".join(f", {option}" for option in options),
        "source": json.dumps("train.lmdb" if packed else now.image_root or "FOLDER", ensure_ascii=False),
    }


def first_workers(now: Situation) -> Match | None:
    """Not if a second process would have no core."""
    ours = any(one.kind == "FastLoader" and one.num_workers == 0 for one in now.training.loaders)
    if (now.fast_loader and not ours) or now.cores < 1.5:
        return None
    wanted = max(1, min(floor(now.cores) - 1, ceil(now.high / max(0.02, 1.0 - now.high)) + 1, MOST_WORKERS))
    beside = 1.0 / max(1.0 - now.low, now.low / wanted, 1e-9)  # loading beside training, on so many cores
    change = f"DataLoader(..., num_workers={wanted}, persistent_workers=True)"
    words = {"change": 'FastLoader(..., num_workers="auto")' if ours else change}
    return Match(now.low, min(now.wait_gain, beside), words)


def more_workers(now: Situation) -> Match | None:
    """Not without a free core, and not if no worker works."""
    workers, free = now.training.workers, now.free_cores
    threads = max((one.num_workers or 0 for one in now.training.loaders if one.kind == "FastLoader"), default=0)
    count, waiting = workers.count if workers is not None else threads, now.caused_by(Cause.STORAGE)
    if not count or free is None or (waiting and (workers is None or workers.busy >= now.thresholds.half)):
        return None
    # A worker that waits for storage needs no core of its own.
    room = free / max(workers.cpu, 0.1) if waiting and workers is not None else free + 0.5
    wanted = min(count + floor(room), ceil(count / max(0.02, 1.0 - now.high)), MOST_WORKERS)
    if wanted <= count:
        return None
    each = " for each rank" if now.ranks > 1 else ""
    name = "FastLoader" if workers is None else "DataLoader"
    busy = f"are busy {workers.busy:.0%} of the time" if workers is not None else "are the limit"
    why = f"{busy} and {free:.1f} cores are idle{each}"
    if waiting and workers is not None:
        why = f"wait {1 - workers.busy:.0%} of the time and more of them would wait side by side"
    words = {"count": count, "what": "workers" if workers is not None else "threads", "why": why}
    words["change"] = f"{name}(..., num_workers={wanted})"
    return Match(workers.busy if workers is not None else free, min(now.wait_gain, wanted / count), words)


def prefetch(now: Situation) -> Match | None:
    """Not if workers never rest: then they are too slow on average, and a buffer does not help."""
    workers, starved = now.training.workers, now.starved
    if workers is None or starved is None or starved < now.thresholds.part:
        return None
    if workers.busy >= 0.85 or now.caused_by(Cause.EPOCH_START, Cause.RANK_SKEW):
        return None
    known = [one.prefetch for one in now.training.loaders if one.prefetch]
    factor = 4 * max(2, max(known, default=2) // max(1, workers.count))
    return Match(starved, now.wait_gain, {"factor": factor})


def persistent_workers(now: Situation) -> Match | None:
    """Not while the same workers go on."""
    value = now.figure("gap")[1]
    return None if now.fast_loader or not now.renewed_workers or value is None else Match(value, now.wait_gain)


def page_cache(now: Situation) -> Match | None:
    """Read once before training what memory can hold; where it cannot, make it smaller."""
    available = now.training.system(lambda one: one.system.memory_available)
    trigger, value = now.figure("uncached", "major_faults", "worker_disk")
    share = (
        "" if value is None else f" to {value:.0%}" if trigger != "major_faults" else f" ({value:.0f} faults a second)"
    )
    left = "" if available is None else f", and {available / 2**30:.1f} GiB of memory are left to keep it in"
    short = available is not None and available < now.thresholds.memory_short
    folder = "train.lmdb" if now.folder is None else shlex.quote(now.folder)
    change = f"find {folder} -type f -exec cat {{}} + > /dev/null"
    words = {"share": share, "left": left, "what": "make it smaller" if short else "read it once before training"}
    words["change"] = f"iofast pack {now.images} train.lmdb --resize 256" if short else change
    return Match(value, now.wait_gain, words, trigger)


def stage(now: Situation) -> Match | None:
    """Bytes come from an object store."""
    asked = traffic_of(now.training.snapshots)
    if asked is None or asked.hit_rate is None:
        return None
    later = any((one.epoch or 0) >= 1 for one in now.training.loaders)
    change = "export IOFAST_CACHE_SIZE=...  # in a later epoch it is too small" if later else "iofast stage URL"
    rate = asked.bytes / now.training.seconds / 1e6
    return Match(asked.hit_rate, now.wait_gain, {"rate": rate, "change": change})


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


def reading_ahead(now: Situation) -> Match | None:
    """Not if processes or another program read."""
    site = now.verdict.waits
    if site is None or not site.loader or site.source not in _BESIDE or now.training.workers is not None:
        return None
    why, change = _BESIDE[site.source]
    return Match(site.share, now.wait_gain, {"site": site, "why": why, "change": change})


def sender(now: Situation) -> Match | None:
    """The line that waits is known."""
    site = now.verdict.waits
    return None if site is None else Match(site.share, now.wait_gain, {"site": site})
