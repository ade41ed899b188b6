"""Packing 500 images and packing 50,000 both stay under 400 MiB, parent and workers together.

The figure is the proportional set size: memory that several processes share is divided between them.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tools import sample_photographs
from tools.processes import peak_memory
from tools.torture import Failed

COUNTS = (500, 50_000)
LIMIT = 400 << 20


def run() -> list[str]:
    findings = []
    with tempfile.TemporaryDirectory() as name:
        originals = sample_photographs.make(Path(name, "originals"), per_class=83, val=1, quiet=True)
        for count in COUNTS:
            images = Path(name, str(count))
            _link(originals, images, count)
            start = time.monotonic()
            peak = peak_memory(
                [sys.executable, "-m", "iofast", "pack", str(images), f"{images}.lmdb", "--resize", "256"]
            )
            findings.append(
                f"- {count:,} images: peak {peak / 2**20:.0f} MiB, {time.monotonic() - start:.0f} s "
                f"(allowed: {LIMIT >> 20})"
            )
            if peak > LIMIT:
                raise Failed(findings[-1])
    return findings


def _link(originals: list[Path], folder: Path, count: int) -> None:
    """Make `count` hard links to the images, spread over their classes: other names, the same work."""
    for number in range(count):
        original = originals[number % len(originals)]
        target = folder / original.parent.name / f"{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(original, target)
