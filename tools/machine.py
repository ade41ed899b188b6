"""The machine, the versions and the commit that a result was measured on."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("iofast", "torch", "numpy", "pillow", "lmdb", "opencv-python-headless", "simplejpeg")


def describe() -> str:
    """Processor, cores, memory, kernel, versions, commit and date as a markdown list."""
    from iofast import kernel

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = ", ".join(f"{name} {found}" for name in PACKAGES if (found := version(name)))
    used = ", ".join(f"{name} {value}" for name, value in kernel.describe().items() if value)
    return f"""\
- Machine: {processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.platform()}
- Python {platform.python_version()}, {versions}
- Kernel: {used}
- Commit {commit()}, {datetime.date.today().isoformat()}"""


def version(package: str) -> str | None:
    """The installed version; None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Model name, family and model number."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields.get('cpu family')}, model {fields.get('model')})"


def commit() -> str:
    """The short hash, and "with changes" and a hash of these if tracked files other than results differ from it.

    `IOFAST_COMMIT` names the commit of a copy without history.
    """
    if named := os.environ.get("IOFAST_COMMIT"):
        return named
    changes = _git("diff", "HEAD", "--", ".", ":!benchmarks/results")
    changed = f" with changes {zlib.crc32(changes.encode()):08x}" if changes else ""
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _git(*words: str) -> str:
    try:
        run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return ""
    return run.stdout.strip()
