"""The kernel's C source on an NVIDIA GPU: compiled at run time by NVRTC, kept on disk, launched by the driver.

`cuda-bindings` brings both libraries' interfaces. A compiled file's name is a hash of all that it depends on: the
source, the options (which name the architecture) and NVRTC's version.
"""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.owned import cache_folder, writing

SOURCES = Path(__file__).parent.parent / "kernel" / "src"
OPTIONS = ("--fmad=false", "--std=c++17")  # no fused multiply-add: the CPU has none, and the pixels are the same


def source() -> str:
    """The text of device.c with the files that it includes, each once."""
    seen: set[str] = set()

    def inlined(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = (SOURCES / name).read_text("utf-8")
        return re.sub(r'^#include "(.+)"$', lambda found: inlined(found[1]), text, flags=re.M)

    return inlined("device.c")


def binary(architecture: str) -> bytes:
    """The device code for an architecture such as "sm_90", from the cache folder or compiled now.

    Raises `RuntimeError` with the compiler's messages.
    """
    from cuda.bindings import nvrtc

    options = (*OPTIONS, f"--gpu-architecture={architecture}")
    text = source()
    version = _done(nvrtc.nvrtcVersion())
    name = hashlib.sha256("\0".join((text, *options, str(version))).encode()).hexdigest()
    folder = cache_folder()
    kept = folder / f"device-{name}.cubin" if folder else None
    if kept is not None:
        with suppress(OSError):
            return kept.read_bytes()
    made = _compile(nvrtc, text, options)
    if kept is not None:
        with suppress(OSError), writing(kept, 0o600) as file:
            file.write(made)
    return made


def _compile(nvrtc: Any, text: str, options: tuple[str, ...]) -> bytes:
    program = _done(nvrtc.nvrtcCreateProgram(text.encode(), b"device.c", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _done(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC did not compile the kernel: {log.decode(errors='replace')}")
        made: bytes = b" " * _done(nvrtc.nvrtcGetCUBINSize(program))
        _done(nvrtc.nvrtcGetCUBIN(program, made))
        return made
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _done(result: tuple[Any, ...]) -> Any:
    """What a call of the bindings returned beside its status. Raises `RuntimeError` for a failure."""
    status, *rest = result
    if status.value:
        raise RuntimeError(f"CUDA: {status.name}")
    return rest[0] if rest else None


class Kernels:
    """The stages on one GPU, whose context is current. Each takes a batch by value."""

    def __init__(self, code: bytes, names: tuple[str, ...]) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._image = np.frombuffer(code, np.uint8)
        self._module = _done(driver.cuModuleLoadData(self._image.ctypes.data))
        self._functions = [_done(driver.cuModuleGetFunction(self._module, f"iof_{name}".encode())) for name in names]

    def launch(self, stages: Iterable[tuple[int, tuple[int, int], int]], batch: NDArray[np.void], stream: int) -> None:
        """Launch stages: the number of each, its grid of (blocks for an image, images), and threads of a block."""
        arguments, launch = np.array([batch.ctypes.data], np.uint64), self._driver.cuLaunchKernel
        address = arguments.ctypes.data
        for number, grid, block in stages:
            _done(launch(self._functions[number], *grid, 1, block, 1, 1, 0, stream, address, 0))
