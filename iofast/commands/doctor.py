"""Say what this machine has for packing and loading images, what it lacks, and what to do about it.

examples:
  iofast doctor                                          everything, with advice
  iofast doctor --json                                   for programs and bug reports
  iofast doctor --quiet && echo nothing is broken        the exit status alone

Exit status: 0, or 1 if something that iofast cannot work without is missing or broken.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from iofast import machine
from iofast.commands.text import size
from iofast.version import __version__

_STYLES = {"ok": "green", "note": "", "missing": "yellow", "broken": "bold red"}
_SHM_NEEDED = 1 << 30  # bytes; torch's DataLoader workers put their batches into /dev/shm
_FILES_NEEDED = 4096  # for a loader over a plain folder, torch's workers and a few hundred shards
_CAP_SYS_PTRACE = 19  # bit of CapEff, capability.h


class Check(NamedTuple):
    """One fact. `state`: ok, note (informative, or optional and absent), missing (something is lost), broken."""

    group: str
    name: str
    value: str
    state: str = "ok"
    advice: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing; exit status 0 if nothing is broken")


def run(args: argparse.Namespace) -> int:
    """Print the checks; exit status 1 if something indispensable is broken."""
    results = checks()
    if args.json:
        print(json.dumps({"version": 1, "checks": [check._asdict() for check in results]}))
    elif not args.quiet:
        _show(results)
    return int(any(check.state == "broken" for check in results))


def _show(results: list[Check]) -> None:
    from rich.console import Console  # here: it may be what is missing
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for group, members in groupby(results, key=lambda check: check.group):
        if table.row_count:
            table.add_row()
        table.add_row(Text(group, "bold"))
        for check in members:
            table.add_row(f"  {check.name}", Text(check.state, _STYLES[check.state]), Text(check.value))
            if check.advice:
                table.add_row("", "", Text(f"-> {check.advice}", "italic"))
    Console(highlight=False).print(table)


def checks() -> list[Check]:
    """Return all checks, in the order of the output. Imports torch if it is installed."""
    return [check for group in (_kernel, _libraries, _optional, _gpu, _machine) for check in _safely(group)]


def _safely(group: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from group()
    except Exception as error:  # a broken library can raise anything on import
        yield Check(group.__name__.strip("_"), "this group", _first_line_of(error), "broken")


def _kernel() -> Iterator[Check]:
    from iofast import kernel

    yield Check("iofast", "version", f"{__version__} in {Path(__file__).parents[1]}")
    facts = kernel.describe()
    if kernel.backend == "native":
        yield Check("iofast", "kernel", kernel.backend)
    else:
        advice = "apt-get install gcc python3-dev libjpeg-dev, then install iofast again"
        yield Check("iofast", "kernel", f"{kernel.backend}: {facts['missing'] or 'slow'}", "missing", advice)
    for name, value in facts.items():
        if name not in ("backend", "missing") and value:
            yield Check("iofast", name, value)


def _libraries() -> Iterator[Check]:
    python = f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    yield Check("libraries", "Python", python)
    yield _library("numpy")
    yield _pillow()
    import lmdb

    yield _library("lmdb")._replace(value=f"{_version('lmdb')} with LMDB {'.'.join(map(str, lmdb.version()))}")
    for name in ("google-crc32c", "tqdm", "rich", "psutil"):
        yield _library(name)


def _pillow() -> Check:
    import PIL
    from PIL import features

    name = "Pillow-SIMD" if _version("Pillow-SIMD") else "Pillow"
    turbo = features.version_feature("libjpeg_turbo")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else "libjpeg without turbo"
    codecs = [codec for codec in ("webp", "avif") if features.check(codec)]
    check = Check("libraries", name, f"{PIL.__version__} with {', '.join([jpeg, *codecs])}")
    advice = "install Pillow from its wheels: they bundle libjpeg-turbo, which decodes 2 to 4 times as fast"
    return check if turbo else check._replace(state="missing", advice=advice)


def _library(name: str) -> Check:
    if version := _version(name):
        return Check("libraries", name, version)
    return Check("libraries", name, "absent", "broken", f"pip install {name}")


def _optional() -> Iterator[Check]:
    for name, extra, purpose in (
        ("torch", "torch", "FastDataset and FastLoader need it"),
        ("pyarrow", "parquet", "Parquet and Arrow files"),
        ("obstore", "remote", "object stores"),
        ("ray", "ray", "packing on a Ray cluster"),
        ("py-spy", "monitor", "Python stacks of a watched process"),
    ):
        if version := _version(name):
            yield Check("optional libraries", name, version)
        else:
            state = "missing" if name == "torch" else "note"
            advice = f"pip install 'iofast[{extra}]'"
            yield Check("optional libraries", name, f"absent ({purpose})", state, advice)


def _gpu() -> Iterator[Check]:
    driver = _first_line(Path("/proc/driver/nvidia/version"))
    yield Check("GPU", "driver", driver or "no NVIDIA driver", "ok" if driver else "note")
    yield from _cuda(bool(driver))
    if version := _version("cuda-bindings"):
        yield Check("GPU", "cuda-bindings", version)
    else:
        advice = "pip install 'iofast[cuda13]'" if driver else ""
        yield Check("GPU", "cuda-bindings", "absent (JPEGs and pixels on the GPU)", "note", advice)


def _cuda(driver: bool) -> Iterator[Check]:
    if not _version("torch"):
        yield Check("GPU", "CUDA", "not checked: torch is absent", "note")
        return
    try:
        import torch

        built: str | None = torch.version.cuda
        usable = torch.cuda.is_available()
        devices = [_device(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    except Exception as error:
        yield Check("GPU", "torch", _first_line_of(error), "broken", "reinstall torch")
        return
    if usable:
        yield Check("GPU", "CUDA", f"{built}, usable")
        for number, device in enumerate(devices):
            yield Check("GPU", f"device {number}", device)
    elif driver:
        advice = "install a CUDA build of torch" if built is None else "compare the driver with torch's CUDA version"
        yield Check("GPU", "CUDA", f"torch cannot use it (built for {built})", "missing", advice)
    else:
        yield Check("GPU", "CUDA", f"none; torch is built for {built or 'the CPU'}", "note")


def _device(properties: Any) -> str:
    return f"{properties.name}, {size(properties.total_memory)}, compute {properties.major}.{properties.minor}"


def _machine() -> Iterator[Check]:
    yield Check("machine", "system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    quota = machine.cpu_quota()
    limit = "no quota" if quota is None else f"quota of {quota:.2f} cores by its control group"
    cores = f"{machine.cores()} usable: {os.cpu_count()} in all, {machine.affinity()} allowed, {limit}"
    yield Check("machine", "cores", cores)
    memory = machine.memory_limit()
    bound = "" if memory is None else f", control group's limit {size(memory)}"
    yield Check("machine", "free memory", size(machine.free_memory()) + bound)
    yield _shared_memory()
    yield _open_files()
    yield _ptrace()


def _shared_memory() -> Check:
    try:
        total, _, free = shutil.disk_usage("/dev/shm")
    except OSError:
        return Check("machine", "/dev/shm", "absent (torch's DataLoader workers use it; FastLoader does not)", "note")
    check = Check("machine", "/dev/shm", f"{size(total)}, {size(free)} free")
    advice = "start the container with --shm-size=8g or --ipc=host"
    return check if total >= _SHM_NEEDED else check._replace(state="missing", advice=advice)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["unlimited" if value == resource.RLIM_INFINITY else f"{value:,}" for value in (soft, hard)]
    check = Check("machine", "open files", f"{words[0]} (hard limit {words[1]})")
    enough = soft == resource.RLIM_INFINITY or soft >= _FILES_NEEDED
    return check if enough else check._replace(state="missing", advice=f"ulimit -n {_FILES_NEEDED}")


def _ptrace() -> Check:
    """Check whether stacks of another process can be read, as `iofast monitor --pid` does."""
    from iofast.monitor.probe.stacks import pyspy

    scope = _first_line(Path("/proc/sys/kernel/yama/ptrace_scope"))
    capable = bool(_effective_capabilities() >> _CAP_SYS_PTRACE & 1)
    facts = f"yama ptrace_scope {scope or 'absent'}, CAP_SYS_PTRACE {'held' if capable else 'not held'}"
    state, advice, words = "ok", "", "stacks of own processes can be read"
    if pyspy() is None:
        words, state = "no stacks can be read, because py-spy is absent", "note"
        advice = "pip install 'iofast[monitor]'"
    elif scope == "3":
        words, state, advice = "stacks of no process can be read", "missing", "ptrace_scope 3 stays until the next boot"
    elif capable:
        words = "stacks of any process can be read"
    elif scope not in ("", "0"):
        words, state = "only stacks of children can be read", "missing"
        start = "start programs with `iofast monitor -- PROGRAM`, or " if scope == "1" else ""
        advice = f"{start}sudo sysctl kernel.yama.ptrace_scope=0, or in a container --cap-add SYS_PTRACE"
    return Check("machine", "ptrace", f"{facts}: {words}", state, advice)


def _effective_capabilities() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip().splitlines()[0]
    except (OSError, IndexError):
        return ""


def _first_line_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
