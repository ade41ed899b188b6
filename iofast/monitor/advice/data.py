"""Advice on what a loader that is late is given to read and decode: smaller, packed, by other means, from memory."""

from __future__ import annotations

import json
import shlex

from iofast.monitor.advice.situation import Situation, gain
from iofast.monitor.findings import Advice, Cause
from iofast.monitor.snapshot import WorkerTask

OVERSIZED = 60_000  # bytes: photographs of short side 256 have 28 kB on average, of short side 512 about 90
SMALL_FILE = 1 << 20
FREES_CORES = frozenset({"pack_resize", "fastloader"})  # advice that takes the loader's work away


def pack_smaller(now: Situation) -> Advice | None:
    """Silent where images are small already, or where decoding is not what workers do."""
    if not now.is_input(Cause.WORKERS, Cause.CPU, Cause.SINGLE, Cause.STORAGE, Cause.PAGE_CACHE):
        return None
    size = now.file_bytes
    decoding = now.training.work.get(WorkerTask.DECODE, 0.0) + now.training.work.get(WorkerTask.RESIZE, 0.0)
    known = bool(now.training.work)
    if size is not None and size < OVERSIZED:
        return None
    if known and decoding < 0.40 and not now.is_input(Cause.STORAGE, Cause.PAGE_CACHE):
        return None
    if size is None and (not known or decoding < 0.40 or now.fast_loader):  # which was given a packed file
        return None
    figure = f"Decoding and resizing are {decoding:.0%} of the loader's work" if known else "The loader decodes"
    shown = f", images have {size / 1000:.0f} kB" if size is not None else ""
    unless = "" if size is not None else ", nor where images are that small already"
    return Advice(
        name="pack_resize",
        text=f"{figure}{shown}: smaller images are read and decoded in a fraction of the time.",
        change=f"iofast pack {now.images} train.lmdb --resize 256",
        trigger="decode" if known else "file_bytes",
        value=decoding if known else size,
        gain=now.relief,
        changes_accuracy=True,
        risk=f"not where training crops need more than 256 pixels{unless}",
    )


def pack_small_files(now: Situation) -> Advice | None:
    """Silent where the files are large, or where the disk is not what workers wait for."""
    size = now.file_bytes
    if not now.is_input(Cause.STORAGE, Cause.PAGE_CACHE) or size is None or size > SMALL_FILE:
        return None
    return Advice(
        name="pack",
        text=f"Each sample is a file of {size / 1000:.0f} kB, opened and read on its own from a storage that is slow.",
        change=f"iofast pack {now.images} train.lmdb",
        trigger="file_bytes",
        value=size,
        gain=gain(now.low),
    )


def fast_loader(now: Situation) -> Advice | None:
    """Silent where FastLoader runs already, and where storage is what is slow."""
    if not now.is_input(Cause.WORKERS, Cause.CPU, Cause.COLLATE, Cause.SINGLE, Cause.PIN) or now.fast_loader:
        return None
    work = now.training.work
    images = work.get(WorkerTask.DECODE, 0.0) + work.get(WorkerTask.RESIZE, 0.0) + work.get(WorkerTask.AUGMENT, 0.0)
    if work and images + work.get(WorkerTask.COLLATE, 0.0) + work.get(WorkerTask.SEND, 0.0) < 0.40:
        return None  # whatever the workers do, it is not what FastLoader does faster
    device = ', device="cuda"' if now.last is not None and now.last.devices else ""
    text = f"The loader's processors are the limit, at least {now.low:.0%} of the time is lost to it."
    if now.shares_cores:
        text = f"Loader and training share the cores: {now.low:.0%} of the time is waiting, the rest is slowed down."
    packed = pack_smaller(now) is not None or now.folder is None or now.file_bytes is None
    source = json.dumps("train.lmdb" if packed else now.folder, ensure_ascii=False)
    return Advice(
        name="fastloader",
        text=text,
        change=f"FastLoader(FastDataset({source}), batch_size=..., transform=[...]{device})",
        trigger="stall",
        value=now.low,
        gain=now.relief,
        risk="for images, with transforms that it knows",
    )


def page_cache(now: Situation) -> Advice | None:
    """Silent where the bytes come from memory, or where a storage is slow for another reason."""
    if not now.is_input(Cause.PAGE_CACHE):
        return None
    available = now.training.system(lambda one: one.system.memory_available)
    short = available is not None and available < now.thresholds.memory_short
    free = "" if available is None else f", and {available / 2**30:.1f} GiB of memory are left to keep it in"
    name, value = now.figure("uncached", "major_faults", "worker_disk")
    shown = (
        ""
        if value is None
        else f" ({value:.0f} page faults a second)"
        if name == "major_faults"
        else f" to {value:.0%}"
    )
    if short:
        advised, change = "make it smaller", f"iofast pack {now.images} train.lmdb --resize 256"
    else:
        folder = "train.lmdb" if now.folder is None else shlex.quote(now.folder)
        advised, change = "read it once before training", f"find {folder} -type f -exec cat {{}} + > /dev/null"
    return Advice(
        name="page_cache",
        text=f"The data comes from the disk{shown}{free}: {advised}.",
        change=change,
        trigger=name,
        value=value,
        gain=gain(now.low),
        changes_accuracy=short,
        risk="FastLoader(..., order=order.Blocks()) reads in long runs what memory cannot hold" if short else "",
    )


RULES = (pack_smaller, pack_small_files, fast_loader, page_cache)
