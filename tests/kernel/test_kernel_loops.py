"""The pixel loops of the resampler against the scalar ones, in C: equal on every instruction set and machine."""

import os
import re
import shutil
import subprocess

import pytest
from places import ROOT

SCRIPT = ROOT / "tools" / "compare_loops.sh"
ROUNDS = 1500

needs_compiler = pytest.mark.skipif(not shutil.which(os.environ.get("CC", "cc")), reason="no C compiler")
needs_qemu = pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="no gcc-aarch64-linux-gnu and qemu-user",
)


def compare_loops(kind: str) -> str:
    run = subprocess.run(
        [str(SCRIPT), kind, str(ROUNDS)], capture_output=True, text=True, timeout=300, env={**os.environ, "LC_ALL": "C"}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow  # 3 s to compile; pixels of whole images are compared in test_kernel_decode and test_exact
@needs_compiler
def test_every_instruction_set_of_this_machine_equals_scalar() -> None:
    lines = compare_loops("native").splitlines()
    assert re.match(r"scalar is compared with:( [a-z0-9]+)*; 0\.5\d+ levels; copies \d+, ", lines[0])


@pytest.mark.slow  # 14 s
@needs_compiler
@needs_qemu
def test_neon_equals_scalar_and_an_arm_machine_gives_the_same_pixels() -> None:
    """Weights are computed in floating point, without operations that differ between machines."""
    neon = compare_loops("neon")
    assert "compared with: neon;" in neon
    assert compare_loops("native").splitlines()[1] == neon.splitlines()[1]
