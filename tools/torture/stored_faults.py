"""Training from a failing store gives the local pixels, or one clear error in time, and never leaves a bad cache.

Each run is an epoch in a process of its own. Drawn from its number are the container, the order, the cache (large,
tiny, none) and the faults: 503 and 429, resets, answers that stall, are cut, have wrong bits, ignore Range or are slow;
an object that is replaced; a store that fails for good; a cache that is removed. Then the store is healthy again, and
another process trains with the same cache: now the pixels must be right.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import itertools
import json
import multiprocessing
import os
import queue
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from object_store import Fault, FaultProxy, Request
from small_blocks import blocks_of
from tqdm import tqdm
from web_server import web_server

from iofast import order
from iofast.errors import IofastError
from iofast.mirror import cache
from iofast.remote.limits import VARIABLE
from tools.torture import Failed, determinism

RUNS, AT_ONCE = 200, 4
BLOCK = 8 << 10  # bytes: the sets have some sixty blocks
PATIENCE, READ = 6.0, 1.0  # seconds
# seconds beyond the patience until an error must have come: one of grace, ten in which a loader waits for its threads,
# and some because other programs use the processor, too
MARGIN = 20.0
LONGEST = 200.0  # seconds until a run counts as stuck
LIMITS = {True: f"connect={READ},read={READ},write={READ},patience={PATIENCE}", False: "read=60,patience=120"}
CACHES = ("1GB", "1GB", "100kB", "40kB", "0")
CONTAINERS = ("LMDB", "tar", "TFRecord")
ORDERS: Mapping[str, order.Mode] = {
    "shuffled": order.Shuffled(),
    "blocks": order.Blocks(block=8, window=3),
    "sequential": order.Sequential(),
}
FAILING = ("503", "429", "reset", "stall", "cut", "flips", "whole", "slow")  # answers
KINDS = (*FAILING, "mixture", "outage", "replaced", "removed")
_RARELY = 0.03

# the errors that a kind may end a run with, and what their texts must have; no error is always right
_STORAGE = {"StorageError": f"for {PATIENCE:g} s"}
_DAMAGE = {"DecodeError": "damaged", "ContainerError": ""}
_CONFLICT = {"ObjectConflictError": "has changed"}  # an object that is opened later differs from manifest and index
ERRORS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(KINDS, _STORAGE),
    "flips": _DAMAGE,
    "slow": {},
    "mixture": {**_STORAGE, **_DAMAGE},
    "replaced": {**_CONFLICT, **_DAMAGE},
}


class Run(NamedTuple):
    """One run, drawn from its number."""

    number: int
    kind: str
    container: str
    mode: str
    size: str
    workers: int
    chance: random.Random

    @classmethod
    def of(cls, number: int) -> Run:
        chance = random.Random(f"stored_faults {number}")
        container, mode, size = (chance.choice(each) for each in (CONTAINERS, tuple(ORDERS), CACHES))
        return cls(number, KINDS[number % len(KINDS)], container, mode, size, chance.choice((1, 2, 5)), chance)

    def __str__(self) -> str:
        return f"run {self.number} ({self.kind}, {self.container}, {self.mode}, cache {self.size})"


class Result(NamedTuple):
    """How a run ended: with an error ("" for none) after `seconds`, and how many answers failed."""

    kind: str
    error: str
    seconds: float
    failed: int


class Site:
    """A folder with all sets, its server, and a proxy with faults."""

    def __init__(self, sets: Path, folder: Path, stack: contextlib.ExitStack) -> None:
        self.sets, self.folder, self.cache = sets, folder, folder.with_name(f"{folder.name}-cache")
        shutil.copytree(sets, folder, copy_function=os.link)
        self.proxy = FaultProxy(stack.enter_context(web_server(folder)))
        stack.callback(self.proxy.close)

    def replace(self, chance: random.Random, container: str) -> None:
        """Replace an object of a set by another version."""
        suffixes = {f".{suffix}" for suffix in determinism.CONTAINERS[container]}
        path = self.folder / chance.choice([each.name for each in self.sets.iterdir() if each.suffix in suffixes])
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1
        path.with_name("new").write_bytes(data if chance.random() < 0.5 else data[: len(data) // 2])
        path.with_name("new").replace(path)

    def heal(self) -> None:
        """No more faults, and the objects as they were, with their ETags."""
        self.proxy.plan = lambda _: None
        for path in self.sets.iterdir():
            if not os.path.samestat(path.stat(), (self.folder / path.name).stat()):
                (self.folder / "new").unlink(missing_ok=True)
                os.link(path, self.folder / "new")
                (self.folder / "new").replace(self.folder / path.name)


class Faults:
    """What happens to the answers of a run; see `FaultProxy.plan`."""

    def __init__(self, run: Run, site: Site) -> None:
        self.run, self.site, self.chance = run, site, run.chance
        self.rates = dict.fromkeys(FAILING, _RARELY if run.kind == "mixture" else 0.0)
        if run.kind in FAILING:
            self.rates[run.kind] = self.chance.choice((0.05, 0.2, 0.4))
        self.moment = self.chance.randrange(40)  # the request from which on, or before which, something happens
        self.lasting = self.chance.choice([kind for kind in FAILING if kind not in ("cut", "flips", "slow")])
        self.failed, self.begun = 0, 0.0  # answers; when the first of them was due
        self._count, self._lock = 0, threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            kind, self._count = self._kind(request), self._count + 1
            if not kind:
                return None
            self.failed += 1
            self.begun = self.begun or time.monotonic()
            return fault(kind, self.chance)

    def _kind(self, request: Request) -> str:
        if self.run.kind == "outage" and self._count >= self.moment:
            return self.lasting if self.lasting != "whole" or "range" in request.headers else "503"
        if self._count == self.moment:
            if self.run.kind == "replaced":
                self.site.replace(self.chance, self.run.container)
            if self.run.kind == "removed":
                shutil.rmtree(self.site.cache, ignore_errors=True)
        drawn = self.chance.random()
        for kind, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                return kind
        return ""


def fault(kind: str, chance: random.Random) -> Fault:
    """One fault."""
    if kind in ("503", "429"):
        return Fault(status=int(kind), headers={"Retry-After": "1"} if chance.random() < 0.5 else {})
    if kind == "stall":
        return Fault(stall=chance.randrange(BLOCK), delay=2.5 * READ)
    if kind == "cut":
        return Fault(cut=chance.randrange(BLOCK))
    if kind == "flips":
        return Fault(flips=tuple(chance.randrange(1 << 30) for _ in range(chance.randint(1, 3))))
    return {
        "reset": Fault(reset=True),
        "whole": Fault(whole=True),
        "slow": Fault(delay=chance.uniform(0, READ / 2)),
    }[kind]


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "sets").mkdir()
        determinism.datasets(folder / "sets")
        wanted = {mode: list(epoch(folder / "sets", "LMDB", mode, 1)) for mode in ORDERS}
        sites = queue.SimpleQueue[Site]()
        for number in range(AT_ONCE):
            sites.put(Site(folder / "sets", folder / f"site{number}", stack))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        stack.callback(pool.shutdown, cancel_futures=True)
        tasks = [pool.submit(one, Run.of(number), sites, wanted) for number in range(RUNS)]
        return _report([task.result() for task in tqdm(tasks, desc="stored_faults")])


def one(run: Run, sites: queue.SimpleQueue[Site], wanted: Mapping[str, list[determinism.GlobalBatch]]) -> Result:
    """A run with faults and one without. Raises `Failed`."""
    site = sites.get()
    try:
        site.heal()
        shutil.rmtree(site.cache, ignore_errors=True)
        site.proxy.plan = faults = Faults(run, site)
        ended, batches, error = train(run, site, failing=True)
        _check(run, batches, wanted[run.mode], error)
        if error and run.kind == "outage" and ended - faults.begun > PATIENCE + MARGIN:
            raise Failed(f"{run}: an error {ended - faults.begun:.0f} s after the store failed: {error}")
        seconds = ended - faults.begun if run.kind == "outage" else 0.0
        site.heal()
        _, batches, healthy = train(run, site, failing=False)
        if healthy or batches != wanted[run.mode]:
            what = healthy or "other pixels"
            raise Failed(f"{run} and {error or 'no error'}; then, with the same cache and a healthy store: {what}")
        return Result(run.kind, error.partition(":")[0], seconds, faults.failed)
    finally:
        sites.put(site)


def _check(run: Run, batches: list[determinism.GlobalBatch], wanted: list[determinism.GlobalBatch], error: str) -> None:
    kind = error.partition(":")[0]
    if error and (kind not in ERRORS[run.kind] or ERRORS[run.kind][kind] not in error):
        raise Failed(f"{run} ended with {error}")
    if batches != wanted[: len(batches)] or (not error and len(batches) != len(wanted)):
        raise Failed(f"{run}: {len(batches)} batches, which are not those of the local set ({error or 'no error'})")


def train(run: Run, site: Site, *, failing: bool) -> tuple[float, list[determinism.GlobalBatch], str]:
    """Train in another process. Returns when it ended, its batches, and its error as "KIND: text"."""
    out, context = site.folder.with_name(f"{site.folder.name}-out"), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    environment = {cache.FOLDER: str(site.cache), cache.SIZE: run.size, VARIABLE: LIMITS[failing]}
    process = context.Process(
        target=_train, args=(site.proxy.url, run.container, run.mode, run.workers, out, environment)
    )
    process.start()
    process.join(LONGEST + 20)
    if process.exitcode != 0:
        process.kill()
        text = out.with_suffix(".log").read_text()
        raise Failed(f"{run} ended with status {process.exitcode} (healthy: {not failing}): {text[-4000:]}")
    found = json.loads(out.read_text())
    return found["ended"], [[(label, pixels) for label, pixels in each] for each in found["batches"]], found["error"]


def _train(url: str, container: str, mode: str, workers: int, out: Path, environment: Mapping[str, str]) -> None:
    with out.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    os.environ.update(environment)
    batches: list[determinism.GlobalBatch] = []
    error = ""
    try:
        with blocks_of(BLOCK):
            batches.extend(epoch(url, container, mode, workers))
    except IofastError as raised:
        error = f"{type(raised).__name__}: {raised}"
    out.write_text(json.dumps({"ended": time.monotonic(), "batches": batches, "error": error}))
    atexit._run_exitfuncs()  # which a process of `multiprocessing` leaves out


def epoch(place: Path | str, container: str, mode: str, workers: int) -> Iterator[determinism.GlobalBatch]:
    """The batches of one epoch."""
    made = determinism.loader(determinism.dataset(place, container), ORDERS[mode], 1, 0, workers)
    return itertools.islice(determinism.batches([made]), len(made))


def _report(results: list[Result]) -> list[str]:
    lines = ["| faults | runs | answers that failed | local pixels | errors |", "|---|--:|--:|--:|---|"]
    for kind in KINDS:
        own = [each for each in results if each.kind == kind]
        errors = [each.error for each in own if each.error]
        words = ", ".join(f"{errors.count(each)} {each}" for each in sorted(set(errors)))
        failed = sum(each.failed for each in own)
        lines.append(f"| {kind} | {len(own)} | {failed:,} | {len(own) - len(errors)} | {words} |")
    late = max(each.seconds for each in results if each.kind == "outage" and each.error)
    return [
        *lines,
        "",
        f"- {len(results)} epochs of {', '.join(CONTAINERS)} in the orders {', '.join(ORDERS)} with caches of "
        f"{', '.join(dict.fromkeys(CACHES))}: batches before an error were the local ones, ids and SHA-256 of pixels",
        f"- after each a second process with the same cache and a healthy store: {len(results)} times the local pixels",
        f"- a store that failed for good became an error within {late:.1f} s (patience {PATIENCE:g} s)",
        f"- no process took longer than {LONGEST:g} s",
    ]
