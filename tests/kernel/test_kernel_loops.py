"""The pixel loops of the resampler against the scalar ones, in C: equal on every instruction set and machine."""

import os
import re
import shutil
import subprocess

import pytest
from places import ROOT


def compare_loops(kind: str) -> str:
    command = [str(ROOT / "tools" / "compare_loops.sh"), kind, "1500"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "LC_ALL": "C"})
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow  # 17 s; pixels of whole images are compared in test_kernel_decode and test_exact
@pytest.mark.skipif(not shutil.which(os.environ.get("CC", "cc")), reason="no C compiler")
def test_every_instruction_set_equals_scalar_and_an_arm_machine_gives_the_same_pixels() -> None:
    """Weights are computed in floating point, without operations that differ between machines."""
    native = compare_loops("native").splitlines()
    assert re.match(r"scalar is compared with:( [a-z0-9]+)*; 0\.5\d+ levels; copies \d+, ", native[0])
    if not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")):
        pytest.skip("no gcc-aarch64-linux-gnu and qemu-user")
    neon = compare_loops("neon").splitlines()
    assert "compared with: neon;" in neon[0]
    assert native[1] == neon[1]
