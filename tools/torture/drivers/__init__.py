"""Drivers: each makes sound input once, and every step damages some of it, reads it and checks what must hold.

Parsers read damaged files; the kernel reads damaged images and applies odd work to pixels. A step depends on driver,
seed and its own number alone, so that a failed step can be repeated. It raises `AssertionError` if a rule is broken.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from importlib import import_module
from pathlib import Path

PARSERS = {
    "manifest": "own.Manifests",
    "index": "own.Indexes",
    "pages": "lmdbs.Pages",
    "tar": "tars.Tars",
    "tfrecord": "tfrecords.Tfrecords",
    "lmdb": "lmdbs.Lmdbs",
    "arrow": "tables.Arrow",
    "cache": "caches.Caches",
    "table": "tables.Tables",
    "annotations": "annotations.Annotations",
    "arrays": "arrays.Arrays",
}
NATIVE = {  # need the C kernel
    "images": "images.Anywhere",
    "regions": "images.InPlaces",
    "steps": "kernel_steps.Steps",
    "device": "device.Device",
}
DRIVERS = PARSERS | NATIVE


class Driver(ABC):
    """Sound input, made once in `folder`; every step damages a part of it."""

    MEMORY: int | None = 32  # MiB of Python and NumPy that a step may take; None: not measured
    SLOW = 20.0  # seconds that a step may take on a sanitized build
    counts: Counter[str]  # figures beside the endings of the steps, for the table of results

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def step(self, chance: random.Random) -> str:
        """Damage, read and check; return in a word how it ended."""


def kind(name: str) -> type[Driver]:
    """The class of the driver of this name."""
    module, _, own = DRIVERS[name].partition(".")
    found: type[Driver] = getattr(import_module(f"{__name__}.{module}"), own)
    return found
