"""Parts of the torture that run drivers for a time, on a build with sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tools import machine
from tools.torture import ROOT, Failed
from tools.torture._progress import Progress
from tools.torture.drivers import kind

SECONDS = 600
_FIGURES = ("slowest ms", "most MiB")
_HEADER = """\
| driver | steps | minutes | runs | how they ended | slowest step | memory |
|---|---|---|---|---|---|---|"""


def run(*names: str, seconds: int = SECONDS, sanitized: bool = True) -> list[str]:
    """Run these drivers, two at once; a run that was interrupted on the same commit continues.

    Returns a table. Raises `Failed` if a step fails.
    """
    program = [Path(__file__).with_name("__main__.py"), str(seconds), *names]
    python = [ROOT / "tools" / "sanitize.sh", sys.executable, "--"] if sanitized else [sys.executable, "-P"]
    commit = machine.commit()  # the checkout may change during the run
    environment = {**os.environ, "IOFAST_COMMIT": commit} | ({} if sanitized else {"PYTHONPATH": str(ROOT)})
    ended = subprocess.run([*python, *program], cwd=ROOT, env=environment)
    if ended.returncode:
        raise Failed(f"exit status {ended.returncode}; the output above names driver, seed and step")
    rows = []
    for name in names:
        done = Progress(f"driver-{name}", commit)
        rows.append(row(name, done))
        done.remove()
    return [_HEADER, *rows]


def row(name: str, done: Progress) -> str:
    """A row of the table."""
    counts = Counter(done["counts"])
    ends = ", ".join(f"{word} {number:,}" for word, number in sorted(counts.items()) if word not in _FIGURES)
    memory = "–" if kind(name).MEMORY is None else f"{counts['most MiB']} MiB"
    figures = f"{counts['slowest ms'] / 1000:.1f} s | {memory}"
    return f"| {name} | {done['steps']:,} | {done['seconds'] / 60:.1f} | {done['runs']} | {ends} | {figures} |"
