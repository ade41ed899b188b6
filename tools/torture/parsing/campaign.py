"""Drivers for ten minutes each, as a part of the torture, on a build with sanitizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

from tools.torture import Failed
from tools.torture.__main__ import commit
from tools.torture.parsing import ROOT

SECONDS = 600
_FIGURES = ("slowest ms", "most MiB")


def run(*names: str, sanitized: bool = True) -> list[str]:
    """Run these drivers, two at once; what an interrupted run has done, on the same commit, counts."""
    mark = ROOT / "build" / f"parsing-{names[0]}.commit"
    files = {name: ROOT / "build" / f"parsing-{name}.json" for name in names}
    mark.parent.mkdir(exist_ok=True)
    if not mark.exists() or mark.read_text() != commit():
        for file in files.values():
            file.unlink(missing_ok=True)
    mark.write_text(commit())
    words = [ROOT / "tools" / "torture" / "parsing" / "__main__.py", str(SECONDS), *names]
    start = [ROOT / "tools" / "sanitize.sh", sys.executable, "--"] if sanitized else [sys.executable, "-P"]
    ended = subprocess.run(
        [*start, *words], cwd=ROOT, env=os.environ if sanitized else {**os.environ, "PYTHONPATH": str(ROOT)}
    )
    if ended.returncode:
        raise Failed(f"exit status {ended.returncode}; what did not hold stands above, with driver, seed and step")
    found = [finding(name, json.loads(file.read_text())) for name, file in files.items()]
    for file in (mark, *files.values()):
        file.unlink()
    head = [
        "| driver | steps | minutes | runs | how they ended | slowest step | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*head, *found]


def finding(name: str, state: dict[str, object]) -> str:
    """A line of the table."""
    counts = Counter(state["counts"])
    ends = ", ".join(f"{word} {number:,}" for word, number in sorted(counts.items()) if word not in _FIGURES)
    figures = f"{counts['slowest ms'] / 1000:.1f} s | {counts['most MiB']} MiB"
    return f"| {name} | {state['steps']:,} | {state['seconds'] / 60:.1f} | {state['runs']} | {ends} | {figures} |"
