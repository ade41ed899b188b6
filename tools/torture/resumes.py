"""Thirty minutes of random breaks and resumes: every id of every epoch comes exactly once, in its place.

A reference has the ids of each global batch. Loaders of all orders, with random workers and ranks, are left at random
batches, their state goes through JSON, and other loaders, often of another number of ranks, continue.
"""

from __future__ import annotations

import gc
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from iofast import FastLoader
from iofast.dataset import FastDataset
from tools.torture import Failed, determinism

MINUTES = 30
EPOCHS = 1000  # at least
WARM = 100  # epochs after which memory must not grow
ALLOWED = 24 << 20


class Life:
    """One training by many loaders in turn; `place`: the number of the next global batch, over all epochs."""

    def __init__(self, dataset: FastDataset, mode: str, rng: random.Random) -> None:
        self.dataset, self.mode, self.rng = dataset, determinism.modes()[mode], rng
        probe = self.make(1, 0)
        self.count = len(probe)
        self.state: dict[str, Any] = probe.state_dict()
        self.place = self.breaks = 0

    def make(self, ranks: int, rank: int) -> FastLoader:
        return determinism.loader(self.dataset, self.mode, ranks, rank, self.rng.choice((1, 2, 5)))

    def expected(self, place: int) -> list[int]:
        """The ids of a global batch, from the order alone."""
        loader = self.make(1, 0)
        epoch, batch = divmod(place, self.count)
        positions, valid = loader._epochs.batch(epoch, batch)  # without the filling of Buckets
        return loader._epochs.indices(epoch, positions)[valid].tolist()

    def stretch(self, batches: int) -> None:
        """Take `batches` batches with a fresh set of ranks, then leave them and keep their state."""
        ranks = self.rng.choice(determinism.RANKS)
        loaders = [self.make(ranks, rank) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(self.state)
        left = batches
        while left:
            epoch = self.place // self.count
            for number, parts in enumerate(zip(*loaders, strict=True), 1):
                self.check(loaders, parts)
                if number == left:
                    break
            left -= number
            if left and self.place // self.count == epoch:
                raise Failed(f"an epoch of {self.mode} ended at batch {self.place % self.count} of {self.count}")
        self.state = json.loads(json.dumps(self.rng.choice(loaders).state_dict()))
        self.breaks += 1

    def check(self, loaders: list[FastLoader], parts: tuple[Any, ...]) -> None:
        ids = []
        for loader, (_, labels) in zip(loaders, parts, strict=True):
            assert loader.last_valid is not None
            ids += labels[loader.last_valid].tolist()
        if ids != self.expected(self.place):
            raise Failed(f"{self.mode}: batch {self.place % self.count} of epoch {self.place // self.count} has {ids}")
        self.place += 1


def run() -> list[str]:
    rng, start = random.Random(11), time.monotonic()
    minutes = float(os.environ.get("IOFAST_TORTURE_MINUTES", MINUTES))
    resident: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        dataset = determinism.datasets(Path(name))["LMDB"]
        lives = [Life(dataset, mode, rng) for mode in determinism.modes()]
        while time.monotonic() - start < 60 * minutes or _epochs(lives) < EPOCHS:
            life = min(lives, key=lambda each: each.place / each.count)
            life.stretch(rng.randint(1, 3 * life.count))
            gc.collect()
            if _epochs(lives) >= WARM:
                resident.append(psutil.Process().memory_info().rss)
    growth = max(resident) - resident[0]
    if growth > ALLOWED:
        raise Failed(f"resident memory grew by {growth / 2**20:.1f} MiB after epoch {WARM}")
    return [
        f"- {_epochs(lives):,} epochs of {len(lives)} orders in {(time.monotonic() - start) / 60:.0f} minutes",
        f"- {sum(life.breaks for life in lives):,} breaks and resumes at random batches, ranks {determinism.RANKS}",
        f"- {sum(life.place for life in lives):,} global batches: the ids of each were those of its place",
        f"- resident memory after epoch {WARM}: {resident[0] / 2**20:.0f} MiB, grown by {growth / 2**20:.1f} at most",
    ]


def _epochs(lives: list[Life]) -> int:
    return sum(life.place // life.count for life in lives)
