"""Packing 500 images and packing 50,000 both stay under 400 MiB, parent and workers together.

Counted is proportional set size: memory that several processes share is divided between them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tools import sample_photographs
from tools.torture import Failed

COUNTS = (500, 50_000)
LIMIT = 400 << 20


def run() -> list[str]:
    findings = []
    with tempfile.TemporaryDirectory() as name:
        originals = sample_photographs.make(Path(name, "originals"), per_class=50, val=1, quiet=True)
        for count in COUNTS:
            images = Path(name, str(count))
            _copies(originals, images, count)
            start = time.monotonic()
            peak = _peak([sys.executable, "-m", "iofast", "pack", str(images), f"{images}.lmdb", "--resize", "256"])
            seconds = time.monotonic() - start
            findings.append(
                f"- {count:,} images: peak {peak / 2**20:.0f} MiB, {seconds:.0f} s (allowed: {LIMIT >> 20})"
            )
            if peak > LIMIT:
                raise Failed(findings[-1])
    return findings


def _copies(originals: list[Path], folder: Path, count: int) -> None:
    """`count` hard links to the images, spread over their classes: other names, the same work."""
    for number in range(count):
        original = originals[number % len(originals)]
        target = folder / original.parent.name / f"{number:06d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(original, target)


def _peak(command: list[str]) -> int:
    """The most memory, in bytes, that the command and its children held at once; looked at 20 times a second."""
    process, peak = psutil.Popen(command), 0
    while process.poll() is None:
        family = [process, *process.children(recursive=True)]
        peak = max(peak, sum(map(_proportional, family)))
        time.sleep(0.05)
    if process.returncode:
        raise Failed(f"iofast pack ended with {process.returncode}")
    return peak


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
