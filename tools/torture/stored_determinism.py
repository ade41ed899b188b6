"""Global batches from an object store are those of the local LMDB, ids and pixels, whatever its cache holds.

Ranks {1, 2, 4} x workers {1, 2, 5} x resume points {0, 1, middle, last, next epoch} x orders x {local files, a cache
that is cold, warm, so small that it evicts all the time, none}. Containers take turns. Blocks are small, so that the
sets have some sixty. One process has all ranks, except in a part under torchrun.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from small_blocks import blocks_of
from tqdm import tqdm
from web_server import web_server

from iofast import FastDataset, order
from iofast.mirror import cache
from tools.torture import Failed, determinism
from tools.torture.determinism import CONTAINERS, EPOCHS, POINTS, GlobalBatch

RANKS, WORKERS = (1, 2, 4), (1, 2, 5)
ORDERS = ("sequential", "shuffled", "blocks", "by epoch", "grouped")  # of `determinism.modes()`
CACHES = {"cold": "1GB", "warm": "1GB", "tiny": "100kB", "no cache": "0"}  # and how many bytes they may take
BLOCK = 8 << 10  # bytes
_EVICTING = {"_AT_A_TIME": 1, "_PAUSE": 0.0}  # of the cache: one block at a time, and without pauses
TORCHRUN = {2: "tar", 4: "LMDB"}  # processes, and the container that they read with one cold cache


class Case(NamedTuple):
    """An order and a place to resume at, for all ranks and workers.

    wanted  the batches of the local LMDB from there on
    states  by the number of ranks that resume; each was taken by another number of ranks, from the local LMDB
    """

    ordering: order.Mode
    name: str
    container: str
    wanted: list[GlobalBatch]
    states: dict[int, dict[str, Any]]


class Place:
    """Opens datasets in `root`, a folder or a URL, with one kind of cache in `folder`; the environment names it."""

    def __init__(self, root: Path | str, folder: Path, kind: str) -> None:
        self.root, self.folder, self.kind = root, folder, kind
        self._open: dict[str, FastDataset] = {}

    def dataset(self, container: str) -> FastDataset:
        """The dataset in a container; with a cold cache a new one."""
        if self.kind == "cold":
            shutil.rmtree(self.folder, ignore_errors=True)
            self._open.clear()
        if container not in self._open:
            self._open[container] = determinism.dataset(self.root, container)
        return self._open[container]


def run() -> list[str]:
    with tempfile.TemporaryDirectory() as name, blocks_of(BLOCK):
        folder, lines, compared = Path(name), list[str](), 0
        (folder / "sets").mkdir()
        cases = [*_cases(determinism.datasets(folder / "sets")["LMDB"])]
        with web_server(folder / "sets") as url:
            for kind in ("local files", *CACHES):
                place = Place(url if kind in CACHES else folder / "sets", folder / kind, kind)
                environment = {cache.FOLDER: str(place.folder), cache.SIZE: CACHES.get(kind, "0")}
                with patch.dict(os.environ, environment), patch.multiple(cache, **_EVICTING):
                    if kind == "warm":
                        _fill(place)
                    before, evictions = _sent(url), cache.current().evictions()
                    for case in tqdm(cases, desc=kind):
                        compared += _compare(case, place)
                    sent, evicted = _sent(url) - before, cache.current().evictions() - evictions
                lines.append(f"- {kind}: {sent:,} bytes were sent, and {evicted:,} times blocks were evicted")
                if (kind in ("local files", "warm")) != (sent == 0) or (kind == "tiny") != (evicted > 0):
                    raise Failed(f"the caches were not as they should be: {lines[-1]}")
            lines += [_compare_torchrun(folder, url, *each) for each in TORCHRUN.items()]
    count = len(cases) * len(RANKS) * len(WORKERS) * (1 + len(CACHES))
    return [
        f"- {count:,} cases: {', '.join(ORDERS)} x {len(POINTS)} resume points x ranks {RANKS} x workers {WORKERS} x "
        f"{{local files, {', '.join(CACHES)}}}, with {', '.join(CONTAINERS)} in turn; states were taken from the local "
        "LMDB at another number of ranks",
        f"- {compared:,} global batches compared, ids and SHA-256 of pixels in sequence: all equal",
        *lines,
    ]


def _cases(data: FastDataset) -> Iterator[Case]:
    containers = itertools.cycle(CONTAINERS)
    for mode in ORDERS:
        ordering = determinism.modes()[mode]
        whole = list(determinism.batches([determinism.loader(data, ordering, 1, 0, 1)]))
        for point in POINTS:
            returned = determinism.point(point, len(whole) // EPOCHS)
            others = zip(RANKS, (*RANKS[1:], RANKS[0]), strict=True)
            states = {ranks: determinism.state_after(data, ordering, other, returned) for ranks, other in others}
            yield Case(ordering, f"{mode}, resumed at {point}", next(containers), whole[returned:], states)


def _compare(case: Case, place: Place) -> int:
    """Compare one case with all ranks and workers. Return the number of batches."""
    for ranks, workers in itertools.product(RANKS, WORKERS):
        data = place.dataset(case.container)
        if determinism.resumed(data, case.ordering, case.states[ranks], ranks, workers) != case.wanted:
            where = f"{case.container}, {place.kind}, {case.name}, {ranks} ranks of {workers} workers"
            raise Failed(f"{where}: other batches than the local LMDB gives")
    return len(case.wanted) * len(RANKS) * len(WORKERS)


def _fill(place: Place) -> None:
    for container in CONTAINERS:
        for _ in determinism.loader(place.dataset(container), order.Sequential(), 1, 0, 2):
            pass


def _compare_torchrun(folder: Path, url: str, processes: int, container: str) -> str:
    program = ("-m", "tools.torture.stored_determinism", url)
    with patch.dict(os.environ, {cache.FOLDER: str(folder / f"{processes} processes"), cache.SIZE: "1GB"}):
        before = _sent(url)
        line = determinism.compare_torchrun(folder / "sets", processes, container, program)
    suffixes = tuple(set(CONTAINERS[container]))
    size = sum(path.stat().st_size for path in (folder / "sets").iterdir() if path.name.endswith(suffixes))
    return f"{line}; {_sent(url) - before:,} bytes were sent, the set has {size:,}"


def _sent(url: str) -> int:
    """Bytes that the server has sent."""
    with urllib.request.urlopen(f"{url}/-/counts") as answer:
        return int(json.load(answer)["bytes"])


if __name__ == "__main__":
    with blocks_of(BLOCK):
        determinism.one_rank(Path(sys.argv[2]), *sys.argv[3:], sys.argv[1])
