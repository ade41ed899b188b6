"""Parts of the torture that run drivers for a time, on a build with sanitizers."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tools.torture import ROOT, Failed
from tools.torture.drivers import kind

SECONDS = 600
_FIGURES = ("slowest ms", "most MiB")
_HEADER = """\
| driver | steps | minutes | how they ended | slowest step | memory |
|---|---|---|---|---|---|"""


def run(*names: str, seconds: int = SECONDS, sanitized: bool = True) -> list[str]:
    """Run these drivers, two at once. Returns a table. Raises `Failed` if a step fails."""
    with tempfile.TemporaryDirectory() as folder:
        program = [Path(__file__).with_name("run.py"), str(seconds), folder, *names]
        python = [ROOT / "tools" / "sanitize.sh", sys.executable, "--"] if sanitized else [sys.executable, "-P"]
        environment = os.environ | ({} if sanitized else {"PYTHONPATH": str(ROOT)})
        ended = subprocess.run([*python, *program], cwd=ROOT, env=environment)
        if ended.returncode:
            raise Failed(f"exit status {ended.returncode}; the output above names driver, seed and step")
        return [_HEADER, *(row(name, json.loads(Path(folder, name).read_text())) for name in names)]


def row(name: str, counted: dict[str, int]) -> str:
    """A row of the table."""
    counts = Counter(counted)
    steps, seconds = counts.pop("steps"), counts.pop("seconds")
    ends = ", ".join(f"{word} {number:,}" for word, number in sorted(counts.items()) if word not in _FIGURES)
    memory = "–" if kind(name).MEMORY is None else f"{counts['most MiB']} MiB"
    return f"| {name} | {steps:,} | {seconds / 60:.1f} | {ends} | {counts['slowest ms'] / 1000:.1f} s | {memory} |"
