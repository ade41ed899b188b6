"""Random records as a writer notes them."""

from __future__ import annotations

import numpy as np

from iofast.containers.entries import RecordEntry
from iofast.record import LONGEST_SIDE, ImageInfo

ENTRY_FIELDS = ("cls", "jpg", "json", "rgb")


def some_entries(count: int, seed: int = 0, fields: tuple[str, ...] = ENTRY_FIELDS, step: int = 3) -> list[RecordEntry]:
    """Records with some of the fields, at positions with holes of up to `step` - 1."""
    rng = np.random.default_rng(seed)
    position, entries = -1, []
    for _ in range(count):
        position += int(rng.integers(1, step + 1))
        own = [name for name in fields if rng.integers(4)] or ["json"]
        sides = rng.integers(0, LONGEST_SIDE + 1, 2).tolist()
        info = ImageInfo(int(rng.integers(-1, 1000)) if seed % 3 else -1, *sides, int(rng.integers(1, 9)))
        places = [(name, *rng.integers(0, 1 << 32, 2).tolist(), int(rng.integers(0, 1 << 46))) for name in own]
        entries.append(RecordEntry(position, info, tuple(places)))
    return entries
