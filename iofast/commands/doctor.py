"""Say what this machine has for packing and loading images, what it lacks, and what to do about it.

examples:
  iofast doctor                                          everything, with advice
  iofast doctor --json                                   for programs and bug reports
  iofast doctor --quiet && echo nothing is broken        the exit status alone

Exit status: 0, or 1 if something that iofast cannot work without is missing or broken.
"""

import argparse
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from iofast import machine
from iofast.commands.shared import add_output, answer, say, size
from iofast.version import __version__

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


Facts = Iterator[tuple[str, ...]]  # checks without their group


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_output(parser, quiet="print nothing; exit status 0 if nothing is broken")


def run(args: argparse.Namespace) -> int:
    """Print the checks; exit status 1 if something indispensable is broken."""
    results = checks()
    answer(args, {"checks": [check._asdict() for check in results]}, lambda: _show(results))
    return int(any(check.state == "broken" for check in results))


def _show(results: list[Check]) -> None:
    width = max(len(check.name) for check in results)
    for group, members in groupby(results, key=lambda check: check.group):
        say(group)
        for check in members:
            say(f"  {check.name:<{width}}  {check.state:<7}  {check.value}")
            if check.advice:
                say(f"  {'':<{width}}  {'':<7}  -> {check.advice}")


def checks() -> list[Check]:
    """Return all checks, in the order of the output. Imports torch if it is installed."""
    groups = {
        "iofast": _kernel,
        "libraries": _libraries,
        "optional libraries": _optional,
        "GPU": _gpu,
        "machine": _machine,
    }
    found: list[Check] = []
    for group, facts in groups.items():
        try:
            found.extend(Check(group, *fact) for fact in facts())  # those before an error stay
        except Exception as error:  # a broken library can raise anything on import
            found.append(Check(group, "this group", _first_line_of(error), "broken"))
    return found


def _kernel() -> Facts:
    from iofast import kernel

    yield "version", f"{__version__} in {Path(__file__).parents[1]}"
    facts = kernel.describe()
    if kernel.backend == "native":
        yield "kernel", kernel.backend
    else:
        advice = "apt-get install gcc python3-dev libjpeg-dev, then install iofast again"
        yield "kernel", f"{kernel.backend}: {facts['missing'] or 'slow'}", "missing", advice
    yield from ((name, value) for name, value in facts.items() if name not in ("backend", "missing") and value)


def _libraries() -> Facts:
    import lmdb
    import PIL
    from PIL import features

    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    turbo = features.version_feature("libjpeg_turbo")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else "libjpeg without turbo"
    codecs = ", ".join([jpeg, *(codec for codec in ("webp", "avif") if features.check(codec))])
    advice = "install Pillow from its wheels: they bundle libjpeg-turbo, which decodes 2 to 4 times as fast"
    name = "Pillow-SIMD" if _version("Pillow-SIMD") else "Pillow"
    yield name, f"{PIL.__version__} with {codecs}", *(() if turbo else ("missing", advice))
    for name in ("numpy", "lmdb", "google-crc32c", "tqdm", "rich", "psutil"):
        if version := _version(name):
            yield name, version + (f" with LMDB {'.'.join(map(str, lmdb.version()))}" if name == "lmdb" else "")
        else:
            yield name, "absent", "broken", f"pip install {name}"


def _optional() -> Facts:
    for name, extra, purpose in (
        ("torch", "torch", "FastDataset and FastLoader need it"),
        ("pyarrow", "parquet", "Parquet and Arrow files"),
        ("obstore", "remote", "object stores"),
        ("ray", "ray", "packing on a Ray cluster"),
        ("py-spy", "monitor", "Python stacks of a watched process"),
    ):
        if version := _version(name):
            yield name, version
        else:
            state = "missing" if name == "torch" else "note"
            yield name, f"absent ({purpose})", state, f"pip install 'iofast[{extra}]'"


def _gpu() -> Facts:
    driver = _first_line(Path("/proc/driver/nvidia/version"))
    yield "driver", driver or "no NVIDIA driver", "ok" if driver else "note"
    yield from _cuda(bool(driver))
    if version := _version("cuda-bindings"):
        yield "cuda-bindings", version
    else:
        advice = "pip install 'iofast[cuda13]'" if driver else ""
        yield "cuda-bindings", "absent (JPEGs and pixels on the GPU)", "note", advice


def _cuda(driver: bool) -> Facts:
    if not _version("torch"):
        yield "CUDA", "not checked: torch is absent", "note"
        return
    try:
        import torch

        built: str | None = torch.version.cuda
        usable = torch.cuda.is_available()
        devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    except Exception as error:
        yield "torch", _first_line_of(error), "broken", "reinstall torch"
        return
    if usable:
        yield "CUDA", f"{built}, usable"
        for number, each in enumerate(devices):
            yield f"device {number}", f"{each.name}, {size(each.total_memory)}, compute {each.major}.{each.minor}"
    elif driver:
        advice = "install a CUDA build of torch" if built is None else "compare the driver with torch's CUDA version"
        yield "CUDA", f"torch cannot use it (built for {built})", "missing", advice
    else:
        yield "CUDA", f"none; torch is built for {built or 'the CPU'}", "note"


def _machine() -> Facts:
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    quota = machine.cpu_quota()
    limit = "no quota" if quota is None else f"quota of {quota:.2f} cores by its control group"
    yield "cores", f"{machine.cores()} usable: {os.cpu_count()} in all, {machine.affinity()} allowed, {limit}"
    memory = machine.memory_limit()
    bound = "" if memory is None else f", control group's limit {size(memory)}"
    yield "free memory", size(machine.free_memory()) + bound
    try:
        total, _, free = shutil.disk_usage("/dev/shm")
    except OSError:
        yield "/dev/shm", "absent (torch's DataLoader workers use it; FastLoader does not)", "note"
    else:
        advice = () if total >= _SHM_NEEDED else ("missing", "start the container with --shm-size=8g or --ipc=host")
        yield "/dev/shm", f"{size(total)}, {size(free)} free", *advice
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["unlimited" if value == resource.RLIM_INFINITY else f"{value:,}" for value in (soft, hard)]
    enough = soft == resource.RLIM_INFINITY or soft >= _FILES_NEEDED
    advice = () if enough else ("missing", f"ulimit -n {_FILES_NEEDED}")
    yield "open files", f"{words[0]} (hard limit {words[1]})", *advice
    yield "ptrace", *_ptrace()


def _ptrace() -> tuple[str, str, str]:
    """Whether stacks of another process can be read, as `iofast monitor --pid` does: value, state, advice."""
    from iofast.monitor.probe.stacks import pyspy

    scope = _first_line(Path("/proc/sys/kernel/yama/ptrace_scope"))
    capable = bool(_effective_capabilities() >> _CAP_SYS_PTRACE & 1)
    facts = f"yama ptrace_scope {scope or 'absent'}, CAP_SYS_PTRACE {'held' if capable else 'not held'}"
    if pyspy() is None:
        return f"{facts}: no stacks can be read, because py-spy is absent", "note", "pip install 'iofast[monitor]'"
    if scope == "3":
        return f"{facts}: stacks of no process can be read", "missing", "ptrace_scope 3 stays until the next boot"
    if capable or scope in ("", "0"):
        return f"{facts}: stacks of {'any process' if capable else 'own processes'} can be read", "ok", ""
    start = "start programs with `iofast monitor -- PROGRAM`, or " if scope == "1" else ""
    advice = f"{start}sudo sysctl kernel.yama.ptrace_scope=0, or in a container --cap-add SYS_PTRACE"
    return f"{facts}: only stacks of children can be read", "missing", advice


def _effective_capabilities() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # on macOS
        return 0
    return int(status.partition("CapEff:")[2].split()[0], 16)


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
