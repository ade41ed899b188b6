"""No work, size, layout or type makes the kernel's steps and its store crash, or read and write where they should not.

Twenty minutes on a build with address and undefined-behaviour sanitizers: images of 1 x 1 to 4096 x 4096 pixels, up
to 255 steps of every kind (unknown ones too) with usual, extreme, infinite and missing numbers, erased and mixed
anywhere, in and out of any layout and type, alone and in the call that decodes. Every instruction set gives the same
bits, steps give the same as torch, and an image finished as it is decoded equals one finished later. Then each
allocation fails once: the result is a MemoryError or a status, and the next call with the same context is right.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.torture import ROOT
from tools.torture.drivers.run import campaign

SECONDS = 1200


def run() -> list[str]:
    rows = campaign("steps", seconds=SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        library, source = Path(folder) / "memory_faults.so", Path(__file__).with_name("memory_faults.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source], check=True)
        command = [sys.executable, "-m", "tools.torture.steps", library]
        faulty = {**os.environ, "LD_PRELOAD": str(library)}
        failed = int(subprocess.run(command, cwd=ROOT, env=faulty, stdout=subprocess.PIPE, check=True).stdout)
    return [*rows, "", f"- {failed:,} allocations that failed, one at a time"]


def fail_allocations(library: str) -> int:
    """Fail each allocation once, in calls that use every scratch buffer. Return the number of allocations."""
    from kernel_images import batch_of, jpeg

    from iofast import work
    from iofast.kernel import native_batch
    from iofast.kernel.contract import DecodeOptions
    from tools.torture.drivers.kernel_steps import Drawing

    preloaded, draw = ctypes.CDLL(library), Drawing(np.random.default_rng(1))
    steps = np.tile(np.array([int(step) for step in work.Step if step > 0], np.int8), (2, 1))
    all_steps = replace(work.no_work(2), steps=steps, numbers=np.ones((*steps.shape, work.NUMBERS), np.float32))
    own = draw.finish(2, (48, 64), "float32")._replace(work=all_steps, amounts=np.zeros((0, 3), np.float32))
    mixed = own._replace(work=own.work.paired(np.array([1, 0])))
    images = draw.array((2, 48, 64, 3), np.uint8)
    source, _alive = batch_of([jpeg(draw.rng.integers(0, 256, (48, 64, 3), np.uint8))] * 2)
    boxes = np.tile(np.array([0, 0, 64, 48, 64, 48, 0, 0], np.int32), (2, 1))

    def succeeds(context: native_batch.Context, out: np.ndarray) -> bool:
        """Whether the memory sufficed for both calls."""
        status = np.zeros(2, np.int32)
        try:
            native_batch.finish_batch(context, images, mixed, out[0])
            native_batch.decode_batch(context, source, boxes, np.zeros(2, np.uint8), out[1], status, 0, 2, own)
        except MemoryError:
            return False
        return not status.any()

    expected = np.zeros((2, 2, 48, 64, 3), np.float32)
    assert succeeds(native_batch.Context(DecodeOptions()), expected)
    for number in itertools.count(1):
        context, out = native_batch.Context(DecodeOptions()), np.zeros_like(expected)
        preloaded.fail_allocation(number)
        enough = succeeds(context, out)
        met = preloaded.allocations()
        preloaded.fail_allocation(0)
        if met < number:
            break
        assert not enough, f"allocation {number} failed without an error"
        assert succeeds(context, out), f"after allocation {number} failed the context fails too"
        assert np.array_equal(out, expected, equal_nan=True), f"after allocation {number} failed the pixels differ"
    assert number > 6, f"only {number - 1} allocations were met"
    return number - 1


if __name__ == "__main__":
    print(fail_allocations(sys.argv[1]))
