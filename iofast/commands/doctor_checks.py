"""The facts that `iofast doctor` shows: each a `Check`, none of them able to raise."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from iofast import machine
from iofast.commands.text import size
from iofast.version import __version__

_SHM_NEEDED = 1 << 30  # bytes; torch's DataLoader workers put their batches into /dev/shm
_FILES_NEEDED = 4096  # a loader over a plain folder, torch's workers and a few hundred shards
_CAP_SYS_PTRACE = 19  # bit of CapEff, capability.h


class Check(NamedTuple):
    """One fact. `state`: ok, note (optional and absent, or merely said), missing (something is lost), broken."""

    group: str
    name: str
    value: str
    state: str = "ok"
    advice: str = ""


def checks() -> list[Check]:
    """Everything, in the order in which it is shown. Imports torch where it is installed."""
    groups = (_kernel, _libraries, _optional, _gpu, _machine)
    return [check for group in groups for check in _safely(group)]


def _safely(group: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """What a group yields; a failure to find out is a finding too."""
    try:
        yield from group()
    except Exception as error:  # a broken library can raise anything on import
        name = group.__name__.strip("_")
        yield Check(name, "this group", f"{type(error).__name__}: {error}".splitlines()[0], "broken")


def _kernel() -> Iterator[Check]:
    from iofast import kernel

    yield Check("iofast", "version", f"{__version__} in {Path(__file__).parents[1]}")
    native = kernel.backend == "native"
    facts = kernel.describe()
    missing = facts["missing"] or "slow"
    advice = "install a C compiler and libjpeg-turbo's headers (libturbojpeg0-dev), then reinstall iofast"
    backend = kernel.backend if native else f"{kernel.backend}: {missing}"
    yield Check("iofast", "kernel", backend, "ok" if native else "missing", "" if native else advice)
    for name, value in facts.items():
        if name not in ("backend", "missing") and value:
            yield Check("iofast", name, value)


def _libraries() -> Iterator[Check]:
    group = "libraries"
    yield Check(
        group, "Python", f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"
    )
    yield _library(group, "numpy")
    yield _pillow(group)
    import lmdb

    yield _library(group, "lmdb")._replace(value=f"{_version('lmdb')} with LMDB {'.'.join(map(str, lmdb.version()))}")
    for name in ("google-crc32c", "tqdm", "rich", "psutil"):
        yield _library(group, name)


def _pillow(group: str) -> Check:
    import PIL
    from PIL import features

    simd = _version("Pillow-SIMD")
    name, advice = ("Pillow-SIMD", "") if simd else ("Pillow", "")
    turbo = features.version_feature("libjpeg_turbo")
    codecs = [codec for codec in ("webp", "avif") if features.check(codec)]
    jpeg = f"libjpeg-turbo {turbo}" if turbo else "libjpeg without turbo"
    if not turbo:
        advice = "install Pillow from its wheels: they bundle libjpeg-turbo, which decodes 2 to 4 times as fast"
    value = f"{PIL.__version__} with {', '.join([jpeg, *codecs])}"
    return Check(group, name, value, "missing" if advice else "ok", advice)


def _library(group: str, name: str) -> Check:
    version = _version(name)
    return Check(group, name, version) if version else Check(group, name, "absent", "broken", f"pip install {name}")


def _optional() -> Iterator[Check]:
    for name, purpose in (
        ("torch", "FastDataset and FastLoader need it"),
        ("pyarrow", "manifests in Parquet"),
        ("webdataset", "WebDataset shards by its own code"),
        ("simplejpeg", "a peer in the benchmarks"),
    ):
        version = _version(name)
        if version:
            yield Check("optional libraries", name, version)
        else:
            state = "missing" if name == "torch" else "note"
            yield Check("optional libraries", name, f"absent ({purpose})", state, f"pip install {name}")


def _gpu() -> Iterator[Check]:
    group = "GPU"
    driver = _first_line(Path("/proc/driver/nvidia/version"))
    yield Check(group, "driver", driver or "no NVIDIA driver", "ok" if driver else "note")
    yield from _cuda(group, bool(driver))
    decoders = [
        ("nvimgcodec", ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu11")),
        ("torchcodec", ("torchcodec",)),
        ("torchvision", ("torchvision",)),
    ]
    for name, packages in decoders:
        found = next((f"{package} {version}" for package in packages if (version := _version(package))), "")
        advice = f"pip install {packages[0]}" if driver and not found else ""
        yield Check(group, name, found or "absent (JPEG decoding on the GPU)", "ok" if found else "note", advice)


def _cuda(group: str, driver: bool) -> Iterator[Check]:
    if not _version("torch"):
        yield Check(group, "CUDA", "not looked at: torch is absent", "note")
        return
    try:
        import torch

        built: str | None = torch.version.cuda
        usable = torch.cuda.is_available()
        names = [_device(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
    except Exception as error:
        yield Check(group, "torch", f"{type(error).__name__}: {error}".splitlines()[0], "broken", "reinstall torch")
        return
    if usable:
        yield Check(group, "CUDA", f"{built}, usable")
        for number, name in enumerate(names):
            yield Check(group, f"device {number}", name)
    elif driver:
        advice = "install a CUDA build of torch" if built is None else "compare the driver with torch's CUDA version"
        yield Check(group, "CUDA", f"torch cannot use it (built for {built})", "missing", advice)
    else:
        yield Check(group, "CUDA", f"none; torch is built for {built or 'the CPU'}", "note")


def _device(properties: Any) -> str:
    return f"{properties.name}, {size(properties.total_memory)}, compute {properties.major}.{properties.minor}"


def _machine() -> Iterator[Check]:
    group = "machine"
    yield Check(group, "system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    quota = machine.cpu_quota()
    limit = "no quota" if quota is None else f"quota of {quota:.2f} cores by its control group"
    yield Check(
        group, "cores", f"{machine.cores()} usable: {os.cpu_count()} in all, {machine.affinity()} allowed, {limit}"
    )
    memory = machine.memory_limit()
    bound = "" if memory is None else f", control group's limit {size(memory)}"
    yield Check(group, "free memory", size(machine.free_memory()) + bound)
    yield _shared_memory(group)
    yield _open_files(group)
    yield _ptrace(group)


def _shared_memory(group: str) -> Check:
    try:
        total, _, free = shutil.disk_usage("/dev/shm")
    except OSError:
        return Check(group, "/dev/shm", "absent (torch's DataLoader workers use it; FastLoader does not)", "note")
    enough = total >= _SHM_NEEDED
    advice = "" if enough else "start the container with --shm-size=8g or --ipc=host"
    return Check(group, "/dev/shm", f"{size(total)}, {size(free)} free", "ok" if enough else "missing", advice)


def _open_files(group: str) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["unlimited" if value == resource.RLIM_INFINITY else f"{value:,}" for value in (soft, hard)]
    enough = soft == resource.RLIM_INFINITY or soft >= _FILES_NEEDED
    advice = "" if enough else f"ulimit -n {_FILES_NEEDED}"
    return Check(group, "open files", f"{words[0]} (hard limit {words[1]})", "ok" if enough else "missing", advice)


def _ptrace(group: str) -> Check:
    """Whether stacks of another process can be read, which `iofast monitor --pid` wants."""
    scope = _first_line(Path("/proc/sys/kernel/yama/ptrace_scope"))
    capable = bool(_effective_capabilities() >> _CAP_SYS_PTRACE & 1)
    said = f"yama ptrace_scope {scope or 'absent'}, CAP_SYS_PTRACE {'held' if capable else 'not held'}"
    if scope == "3":
        return Check(group, "ptrace", f"{said}: nobody may", "missing", "ptrace_scope 3 stays until the next boot")
    if capable or scope in ("", "0"):
        return Check(
            group, "ptrace", f"{said}: any process may be looked into" if capable else f"{said}: own processes"
        )
    advice = "sudo sysctl kernel.yama.ptrace_scope=0, or in a container --cap-add SYS_PTRACE"
    if scope == "1":
        advice = f"start programs with `iofast monitor -- PROGRAM`, or {advice}"
    return Check(group, "ptrace", f"{said}: only children", "missing", advice)


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
