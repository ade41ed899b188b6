"""Advice on what a late loader reads and decodes: smaller images, packed, with FastLoader, from memory."""

from __future__ import annotations

import json
import shlex
from functools import partial

from iofast.monitor.advice.rule import Match, Rule, on
from iofast.monitor.advice.situation import Situation
from iofast.monitor.findings import Cause
from iofast.monitor.snapshot import LoaderSource, WorkerTask, traffic_of

OVERSIZED = 60_000  # bytes: photographs of short side 256 have 28 kB on average, of short side 512 about 90
SMALL_FILE = SMALL_REQUEST = 1 << 20
_WORTH_IT = 0.40  # smallest share of the loader's work that a change must concern
_READING = (Cause.STORAGE, Cause.PAGE_CACHE)


def _pack_smaller(now: Situation) -> Match | None:
    """Not if images are small already, and not if decoding is a small part of the work."""
    size, known = now.file_bytes, bool(now.training.work)
    decoding = now.work(WorkerTask.DECODE, WorkerTask.RESIZE)
    if size is not None and size < OVERSIZED:
        return None
    if known and decoding < _WORTH_IT and not now.caused_by(*_READING):
        return None
    if size is None and (not known or decoding < _WORTH_IT or now.fast_loader):  # FastLoader reads a packed file
        return None
    words = {
        "what": f"Decoding and resizing are {decoding:.0%} of the loader's work" if known else "The loader decodes",
        "size": "" if size is None else f", images have {size / 1000:.0f} kB",
        "unless": ", nor where images are that small already" if size is None else "",
    }
    return Match(decoding if known else size, now.relief, words, "decode" if known else "file_bytes")


def _pack_small_files(now: Situation) -> Match | None:
    """Only for small files, and not if they should be packed smaller."""
    size = now.file_bytes
    if size is None or size > SMALL_FILE or PACK_SMALLER.advice(now) is not None:
        return None
    return Match(size, now.wait_gain, {"kB": size / 1000})


def _fast_loader(now: Situation) -> Match | None:
    """Not if FastLoader runs already, and not if the workers do what FastLoader does no faster."""
    packing = PACK_SMALLER.advice(now) or PACK_SMALL_FILES.advice(now)
    if now.caused_by(*_READING):
        return None if packing is None or now.fast_loader else Match(now.low, now.wait_gain, _lines(now, packed=True))
    tasks = (WorkerTask.DECODE, WorkerTask.RESIZE, WorkerTask.AUGMENT, WorkerTask.COLLATE, WorkerTask.SEND)
    if now.fast_loader or (now.training.work and now.work(*tasks) < _WORTH_IT):
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
        "options": "".join(f", {option}" for option in options),
        "source": json.dumps("train.lmdb" if packed else now.image_root or "FOLDER", ensure_ascii=False),
        "why": f"At least {now.low:.0%} of the time is lost to reading file by file: read the packed file.",
    }


def _short_of_memory(now: Situation) -> tuple[bool, str]:
    """Whether the page cache is too small, and the memory that is left, in a clause."""
    available = now.training.system(lambda one: one.system.memory_available)
    if available is None:
        return False, ""
    left = f", and {available / 2**30:.1f} GiB of memory are left to keep it in"
    return available < now.thresholds.memory_short, left


def _cached(now: Situation) -> Match:
    trigger, value = now.figure("uncached", "major_faults", "worker_disk")
    rate = trigger == "major_faults"
    share = "" if value is None else f" ({value:.0f} page faults a second)" if rate else f" to {value:.0%}"
    folder = "train.lmdb" if now.folder is None else shlex.quote(now.folder)
    return Match(value, now.wait_gain, {"share": share, "left": _short_of_memory(now)[1], "folder": folder}, trigger)


def _is_later_epoch(now: Situation) -> bool:
    return any((one.epoch or 0) >= 1 for one in now.training.loaders)


def _uncached(now: Situation, *, again: bool) -> Match | None:
    """Bytes come from an object store, in the first epoch or `again` in a later one."""
    asked = traffic_of(now.training.snapshots)
    if asked is None or asked.hit_rate is None or again != _is_later_epoch(now):
        return None
    return Match(asked.hit_rate, now.wait_gain, {"rate": asked.bytes / now.training.seconds / 1e6})


def _small_requests(now: Situation) -> Match | None:
    if _is_later_epoch(now):  # the cache may hold the set by now
        return None
    asked = traffic_of(now.training.snapshots)
    size = asked.bytes / asked.gets if asked is not None and asked.gets else SMALL_REQUEST
    return Match(size, now.wait_gain, {"kB": size / 1000}) if size < SMALL_REQUEST else None


PACK_SMALLER = Rule(
    name="pack_resize",
    on=on(Cause.WORKERS, Cause.CPU, Cause.TAKEN, Cause.SINGLE, *_READING),
    match=_pack_smaller,
    text="{what}{size}: smaller images are read and decoded in a fraction of the time.",
    change="iofast pack {now.images} train.lmdb --resize 256",
    trigger="decode",
    changes_accuracy=True,
    risk="not where training crops need more than 256 pixels{unless}",
)
PACK_SMALL_FILES = Rule(
    name="pack",
    on=on(*_READING),
    match=_pack_small_files,
    text="Each sample is a file of {kB:.0f} kB, opened and read on its own from a storage that is slow.",
    change="iofast pack {now.images} train.lmdb",
    trigger="file_bytes",
)
FAST_LOADER = Rule(
    name="fastloader",
    on=on(Cause.WORKERS, Cause.CPU, Cause.TAKEN, Cause.COLLATE, Cause.SINGLE, Cause.PIN, *_READING),
    match=_fast_loader,
    text="{why}",
    change="from iofast import FastDataset, FastLoader, transforms as T\n"
    "{own.dataset} = FastDataset({source})\n"
    "{own.loader} = FastLoader({own.dataset}, {own.batch_size}{options},\n"
    "    transform=T.train({own.side}), dtype=torch.float32)",
    trigger="stall",
    risk="T.train is a random crop, a flip and ImageNet's normalisation: name your own steps",
)
DATA_RULES = (
    PACK_SMALLER,
    PACK_SMALL_FILES,
    FAST_LOADER,
    Rule(
        name="page_cache",
        on=on(Cause.PAGE_CACHE),
        match=lambda now: _cached(now) if _short_of_memory(now)[0] else None,
        text="The data comes from the disk{share}{left}: make it smaller.",
        change="iofast pack {now.images} train.lmdb --resize 256",
        trigger="uncached",
        changes_accuracy=True,
        risk="FastLoader(..., order=order.Blocks()) reads in long runs what memory cannot hold",
    ),
    Rule(
        name="page_cache",
        on=on(Cause.PAGE_CACHE),
        match=lambda now: None if _short_of_memory(now)[0] else _cached(now),
        text="The data comes from the disk{share}{left}: read it once before training.",
        change="find {folder} -type f -exec cat {{}} + > /dev/null",
        trigger="uncached",
    ),
    Rule(
        name="stage",
        on=on(Cause.REMOTE),
        match=partial(_uncached, again=False),
        text="{value:.0%} of the bytes read are in the cache, and the store delivers {rate:.0f} MB/s.",
        change="iofast stage URL",
        trigger="store_hits",
    ),
    Rule(
        name="cache_size",
        on=on(Cause.REMOTE),
        match=partial(_uncached, again=True),
        text="{value:.0%} of the bytes read are in the cache in a later epoch: it is new, or too small.",
        change="export IOFAST_CACHE_SIZE=...  # several nodes: FastLoader(..., order=order.Grouped(64))",
        trigger="store_hits",
    ),
    Rule(
        name="blocks_first",
        on=on(Cause.REMOTE),
        match=_small_requests,
        text="Requests are of {kB:.0f} kB: an order without neighbours fetches image by image.",
        change="FastLoader(..., order=order.Blocks(1024, 4))",
        trigger="store_rate",
        risk="an epoch mixes less than a full shuffle",
    ),
)
PACKING = (PACK_SMALLER.name, PACK_SMALL_FILES.name)
FREES_CORES = frozenset({*PACKING, FAST_LOADER.name})  # advice that takes the loader's work away
