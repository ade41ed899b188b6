"""Drivers that damage what a parser reads, one module for each kind of file; the parts `parsers_*` run them for long.

A driver makes sound files of several shapes once. Each `step` damages one of them, blindly or in known places with the
checksums made again, reads everything that can be reached, and raises `AssertionError` where a rule of `reading` does
not hold. A step is told by the driver, a seed and a number alone.
"""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DRIVERS = {
    "manifest": "own.Manifests",
    "index": "own.Indexes",
    "pages": "pages.Pages",
    "journal": "journals.Journals",
    "tar": "tars.Tars",
    "tfrecord": "tfrecords.Tfrecords",
    "lmdb": "lmdbs.Lmdbs",
    "mds": "samples.Mds",
    "beton": "samples.Beton",
    "cache": "caches.Caches",
    "table": "tables.Tables",
    "annotations": "annotations.Annotations",
}


class Driver(ABC):
    """Sound files in `folder`, made once; every step damages one of them."""

    MEMORY = 32  # MiB that a step may take, files of less than a hundredth of it

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def step(self, chance: random.Random) -> str:
        """Damage, read; in a word, how it ended."""


def make(name: str, folder: Path) -> Driver:
    """The driver of this name."""
    if str(ROOT / "tests" / "support") not in sys.path:
        sys.path.append(str(ROOT / "tests" / "support"))  # where the makers of sound files are
    module, _, kind = DRIVERS[name].partition(".")
    driver: Driver = getattr(import_module(f"{__name__}.{module}"), kind)(folder)
    return driver


def chance_of(name: str, seed: int, number: int) -> random.Random:
    """The chance of one step."""
    return random.Random(f"{name} {seed} {number}")
