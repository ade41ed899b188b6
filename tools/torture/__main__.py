"""`make torture [PART=name]`: run the parts, write benchmarks/results/torture-<name>.md with commit and machine."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path

from iofast import kernel
from iofast.machine import cores
from tools.torture import Failed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PARTS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem[0] != "_")


def main(wanted: list[str]) -> int:
    if unknown := sorted(set(wanted) - set(PARTS)):
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    return max([torture(name) for name in wanted or PARTS], default=0)


def torture(name: str) -> int:
    """Run one part and write its result; 0 where it held."""
    part = import_module(f"tools.torture.{name}")
    question = " ".join((part.__doc__ or "").split("\n\n")[0].split())
    print(f"\n{name}: {question}", flush=True)
    start, today = time.monotonic(), datetime.now(UTC).date()
    try:
        findings, verdict = part.run(), "held"
    except Failed as failure:
        findings, verdict = [f"- {failure}"], "FAILED"
    lines = [
        f"# Torture: {name}",
        "",
        question,
        "",
        f"**{verdict}** after {time.monotonic() - start:.0f} s, `make torture PART={name}`, {today}",
        "",
        *findings,
        "",
        *machine(),
    ]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"torture-{name}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[4:]), flush=True)
    return int(verdict != "held")


def machine() -> list[str]:
    """Commit, processor and versions, as a list."""
    versions = " · ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "pillow", "lmdb"))
    used = kernel.describe()
    return [
        f"- commit {commit()}",
        f"- {processor()}, {cores()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        f"- kernel {used['backend']} ({used['simd']}), libjpeg-turbo {used['libjpeg-turbo']} · {versions}",
    ]


def commit() -> str:
    """The commit that was tested, and whether anything but results differed from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' with changes' if changed else ''}"


def processor() -> str:
    info = Path("/proc/cpuinfo").read_text()
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
