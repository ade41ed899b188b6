"""What does watching cost: `iofast monitor` from outside, with and without stacks, and `iofast.watch` inside?

    python -m benchmarks.bench_watching [--rounds 3] [--seconds 60]

Outside: monitors watch a training with two workers and steps of 20 ms, one after another. The processor time of a
monitor and of py-spy's processes is measured for `--seconds`, from 15 seconds after its start on.
Inside: a loop over batches with 5 ms of arithmetic a step runs plainly, under `watch`, and with three phases a step.
The figure is what a step takes beyond its arithmetic, so that the arithmetic's own noise is left out.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import torch

from benchmarks import measure
from iofast import watch

START_S = 15
STEPS = 400  # of a run inside
STEP_S = 0.005
ROOT = Path(__file__).parent.parent
OUTSIDE = {"/proc and NVML only": ("--no-stacks",), "with stacks": ()}
INSIDE = ("plain", "watch", "watch, three phases a step")
PHASES = ("forward", "backward", "optimizer")


def monitored(pid: int, options: Iterable[str], seconds: float) -> tuple[float, float]:
    """Watch with JSON output: the share of a core while it runs, and the seconds of a core to start.

    Both are of the monitor and of its children that have ended.
    """
    command = [sys.executable, "-m", "iofast", "monitor", "--json", *options, "--pid", str(pid)]
    monitor = psutil.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        time.sleep(START_S)
        begun, since = sum(monitor.cpu_times()[:4]), time.monotonic()
        time.sleep(seconds)
        used, passed = sum(monitor.cpu_times()[:4]) - begun, time.monotonic() - since
        if monitor.poll() is not None:
            raise SystemExit(f"iofast monitor ended with {monitor.returncode}")
        return used / passed, begun - START_S * used / passed
    finally:
        monitor.terminate()
        monitor.wait()


def outside(rounds: int, seconds: float) -> list[list[str]]:
    """Rows: share of a core, time to start."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in OUTSIDE}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.torture.attach", "device", str(Path(folder, "steps"))]
        training = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            time.sleep(8)  # it imports torch
            for _ in range(rounds):
                for name, options in OUTSIDE.items():
                    found[name].append(monitored(training.pid, options, seconds))
            if training.poll() is not None:
                raise SystemExit(f"the training ended with {training.returncode}")
        finally:
            training.kill()
            training.wait()
    rows = []
    for name, each in found.items():
        shares, starts = zip(*each, strict=True)
        rows.append([name, measure.spread([100 * share for share in shares], 2), f"{statistics.median(starts):.2f}"])
    return rows


def inside(kind: str) -> Callable[[], float]:
    """Microseconds of a step beyond its arithmetic, in the mean of a run."""
    phased = kind == INSIDE[2]
    weights = torch.randn(256, 256)
    batches = [(torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64))] * (1 + STEPS)

    def compute(seconds: float) -> float:
        start = now = time.perf_counter()
        while now - start < seconds:
            torch.mm(weights, weights)
            now = time.perf_counter()
        return now - start

    def run() -> float:
        loader = batches if kind == "plain" else watch(batches, name="bench")
        coming = iter(loader)
        next(coming)  # the first batch creates the telemetry page, once, in some 40 ms
        gc.collect()
        worked, start = 0.0, time.perf_counter()
        for _ in coming:
            for phase in PHASES:
                if phased:
                    with loader.step(phase):  # type: ignore[union-attr] # a meter
                        worked += compute(STEP_S / len(PHASES))
                else:
                    worked += compute(STEP_S / len(PHASES))
        return 1e6 * (time.perf_counter() - start - worked) / STEPS

    return run


def main() -> None:
    arguments = measure.arguments(__doc__, photos=False, rounds=3, seconds=60.0)
    torch.set_num_threads(1)
    figures = measure.in_turn({kind: inside(kind) for kind in INSIDE}, 3 * arguments.rounds)
    plain = statistics.median(figures["plain"])
    rows = []
    for kind in INSIDE:
        beyond = statistics.median(figures[kind]) - plain
        shares = ("", "") if kind == "plain" else (f"{beyond / STEP_S / 1e4:.2f}%", f"{beyond / 0.02 / 1e4:.2f}%")
        rows.append([kind, measure.spread(figures[kind], 1), *shares])
    watches = outside(arguments.rounds, arguments.seconds)
    text = f"""# What watching costs

## From outside

{measure.table(("", "% of one core", "s to start"), watches)}

Processor time of the monitor and of py-spy's processes, from {START_S} s after its start on, for
{arguments.seconds:.0f} s: median (least – most) of {arguments.rounds} watches each.

## Inside

{measure.table(("", "us a step beyond its work", "of 5 ms", "of 20 ms"), rows)}

- On the CPU's clock; on a CUDA device, phases are events in its stream.
"""
    measure.publish("watching", text, arguments.output, figures)


if __name__ == "__main__":
    main()
