"""A stand-in for the NVIDIA driver's library, built from standin.c (which documents the scripts that drive it)."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import time
from pathlib import Path

_HEADER = struct.Struct("<8sIIQ")
_ENTRY = struct.Struct("<QII")


def build(folder: Path) -> Path:
    """`folder`/libnvidia-ml.so.1, compiled. Raises CalledProcessError where there is no compiler that can."""
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("standin.c")
    command = ["cc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return library


def environment(library: Path, script: Path) -> dict[str, str]:
    """This process's environment, for a child whose pynvml finds `library`, driven by `script`."""
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), "NVML_STANDIN": str(script)}


def write(script: Path, text: str) -> None:
    """Put `text` into `script` in one step: a watcher that reads it meanwhile sees the old or the new one."""
    fresh = script.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(script)


class Ring:
    """The writing side of a ring file: a program that plays a GPU says what share of each period it was busy."""

    def __init__(self, path: Path, capacity: int = 1024, period_us: int = 20_000) -> None:
        self._capacity, self._count = capacity, 0
        size = _HEADER.size + capacity * _ENTRY.size
        path.write_bytes(_HEADER.pack(b"NVMLRING", capacity, period_us, 0).ljust(size, b"\0"))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def put(self, busy: float, end_us: int | None = None) -> None:
        """A sample that ends now, or at `end_us` of CLOCK_REALTIME: `busy` is a share from 0 to 1."""
        end_us = time.time_ns() // 1000 if end_us is None else end_us
        at = _HEADER.size + self._count % self._capacity * _ENTRY.size
        _ENTRY.pack_into(self._map, at, end_us, round(100 * min(1.0, max(0.0, busy))), 0)
        self._count += 1
        struct.pack_into("<Q", self._map, 16, self._count)  # last: a reader trusts what is counted

    def close(self) -> None:
        self._map.close()
