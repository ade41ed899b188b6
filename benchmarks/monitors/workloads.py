"""The programs for the tools: the suite "tune" of benchmarks/verdicts, and programs that compute on the processor.

The tools are built into the training loop and read the host's clock, or CUDA events of a CUDA device. The simulated
device has none, so a program on it counts only if the host's clock agrees with the device's: each step waits for the
device before it gets the next batch. A late batch then leaves the device idle, and no tool can name the device's work.
If the host runs ahead, its waits do not show the device's, and CUDA events would help the tools: such programs are
shown and not counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.verdicts.programs import COMPUTE, INPUT, TUNE, Program
from iofast.monitor.findings import Cause

_ON_CPU: Final = Program("steady", COMPUTE, device=False)
_STARVED: Final = replace(_ON_CPU, bounds=INPUT)
_DECODING: Final = replace(_STARVED, load="decode")

CPU: Final = (
    replace(_DECODING, name="train-decode-0w", workers=0, compute=0.5, stall=0.65, causes=(Cause.SINGLE,)),
    replace(_DECODING, name="train-decode-1w", compute=0.6, stall=0.4, causes=(Cause.WORKERS, Cause.CPU)),
    replace(_STARVED, name="train-sleep-0w", load="sleep", workers=0, compute=1.5, stall=0.4),
    replace(_STARVED, name="train-sleep-1w", load="sleep", compute=0.75, stall=0.25, causes=(Cause.STORAGE,)),
    replace(_STARVED, name="train-collate-1w", load="collate", compute=0.55, stall=0.45, causes=(Cause.COLLATE,)),
    replace(_ON_CPU, name="train-compute", step_s=0.1),
    replace(_ON_CPU, name="train-compute-0w", load="sleep", workers=0, cost_s=0.002, step_s=0.1),
    replace(_ON_CPU, name="train-compute-decode", load="decode", batch=4, compute=1.6),
    replace(_ON_CPU, name="train-validation", extra="validation", step_s=0.06, batches=40),
    replace(_ON_CPU, name="train-checkpoint", extra="checkpoint", step_s=0.06, batches=40),
)
PROGRAMS: Final = (*CPU, *TUNE)
RUNNING_AHEAD: Final = "the host runs ahead of the device; CUDA events would tell, and the simulated device has none"
LOOKING: Final = "losses are read one by one, and neither tool has a verdict for that"


def find(name: str) -> Program:
    """The program `name`."""
    return next(program for program in PROGRAMS if program.name == name)


def unseen(program: Program) -> str | None:
    """Why a tool on the host's clock cannot judge this program; None if it can."""
    if not program.device or program.wait == "step":
        return None
    return LOOKING if program.wait == "loop" else RUNNING_AHEAD
