"""The native kernel: the one thing about this package that pyproject.toml cannot say.

Without a compiler or without libjpeg-turbo's headers the build goes on without the kernel; iofast then packs and loads
on Pillow, several times slower, and refuses the rest. Environment variables:

    IOFAST_NO_NATIVE=1                   leave the kernel out
    IOFAST_REQUIRE_NATIVE=1              fail instead of going on without it
    IOFAST_WERROR=1                      compiler warnings are errors
    IOFAST_SANITIZE=address,undefined    build with these sanitizers
    IOFAST_JPEG=/opt/libjpeg-turbo       link the static libjpeg-turbo of this folder (made by tools/build_libjpeg.sh)
"""

from __future__ import annotations

import os
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PYTHON_ABI = 0x030B0000  # 3.11: one binary serves every later CPython
# The limited API does not exist for free-threaded builds.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
SANITIZE = os.environ.get("IOFAST_SANITIZE", "")
JPEG = os.environ.get("IOFAST_JPEG", "")


def flag(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def kernel() -> list[Extension]:
    sources = sorted(glob("iofast/kernel/src/*.c"))
    if flag("IOFAST_NO_NATIVE") or not sources:
        return []
    # No -march: SIMD is per function, chosen at run time. -Wfatal-errors: a missing header is one line, not 300.
    # -ffp-contract=off: not every machine has a fused multiply-add, and the pixels are the same on all of them.
    # -fno-trapping-math: nobody reads the flags of floating point, and comparisons of floats may be vectorised.
    compile_args = [
        "-std=gnu11",
        "-O3",
        "-ffp-contract=off",
        "-fno-trapping-math",
        "-fvisibility=hidden",
        "-Wfatal-errors",
    ]
    link_args = []
    if flag("IOFAST_WERROR"):
        compile_args += ["-Wall", "-Wextra", "-Werror"]
    if SANITIZE:
        compile_args += [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
        link_args += [f"-fsanitize={SANITIZE}"]
    if JPEG:  # its names stay inside: Pillow and OpenCV bring a libjpeg of their own into the process
        link_args += ["-Wl,--exclude-libs,ALL"]
    return [
        Extension(
            "iofast.kernel._native",
            sources=sources,
            depends=sorted(glob("iofast/kernel/src/*.h")),
            define_macros=[("Py_LIMITED_API", hex(PYTHON_ABI))] if LIMITED else [],
            py_limited_api=LIMITED,
            include_dirs=[f"{JPEG}/include"] if JPEG else [],
            libraries=["dl"] if JPEG else ["jpeg", "dl"],
            extra_objects=[f"{JPEG}/lib/libjpeg.a"] if JPEG else [],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            optional=not flag("IOFAST_REQUIRE_NATIVE"),
        )
    ]


class BuildKernel(build_ext):
    """build_ext that says plainly what it means when an optional extension could not be built."""

    def run(self) -> None:
        super().run()
        for extension in self.extensions:
            if not os.path.exists(self.get_ext_fullpath(extension.name)):
                print(NOT_BUILT, file=sys.stderr)


NOT_BUILT = f"""
{"*" * 100}
iofast: the native kernel was NOT built (the reason stands above). Packing with --resize, and loading with crops,
resizes, flips and Normalize, will work on Pillow, several times slower; nothing else. A C compiler, Python's headers
and libjpeg-turbo's headers are needed:
    apt-get install gcc python3-dev libjpeg-dev        (Debian, Ubuntu)
{"*" * 100}
"""

extensions = kernel()
setup(
    ext_modules=extensions,
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if extensions and LIMITED else {},
)
