"""300 attachments with stacks in half an hour lengthen the median step of a training by less than 0.5 %.

One process watches as `iofast monitor` does: it finds the training, looks for four seconds, and detaches. Stretches of
three attachments and shorter stretches without any form pairs in random order; the steps of both stretches are
compared, so that other work of the machine affects both. The training must never stop. It launches a step of 20 ms on a
device (a clock here) during the step before, and has two workers: one and a half cores are in use, half a one is free.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from iofast.monitor.find import job_of
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.watching import Watch
from tools.torture import ROOT, Failed

ATTACHMENTS = 300
IN_A_ROW = 3
LOOK_S = 4.0  # an attachment: a burst of stacks takes three seconds, and py-spy's start before it
UNWATCHED = 0.3  # of a watched stretch: 300 attachments take 20 minutes, 26 with these
SETTLE_S = 0.3  # at the beginning of a stretch, which does not count
ALLOWED = 0.005
DEVICE_S = 0.02
LONGEST_S = 1.0  # a step of 20 ms; a watcher that stops the training takes longer
MOST_STEPS = 1 << 20


class Stretch(NamedTuple):
    """A stretch of time, and whether the training was watched in it."""

    begin: float
    end: float
    watched: bool


class Images(Dataset[torch.Tensor]):
    """Samples that take a worker `work_s` of processor time each."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + self._work_s
        while time.thread_time() < end:
            pass
        return torch.zeros(16)


def train(path: str) -> None:
    """Equal steps; `path` gets the start and the duration of each."""
    torch.set_num_threads(1)
    steps = np.memmap(path, np.float64, "w+", shape=(MOST_STEPS, 2))
    weights, free_at, begin = torch.randn(384, 384), 0.0, time.monotonic()
    loader = DataLoader(Images(0.025), batch_size=1, num_workers=2)
    for number, batch in zip(range(MOST_STEPS), loader, strict=False):
        torch.mm(weights, weights)  # the host's work for a step
        now = time.monotonic()
        time.sleep(max(0.0, free_at - now))
        end = free_at = max(free_at, now) + DEVICE_S
        steps[number] = begin, end - begin
        begin = end
        del batch


@contextlib.contextmanager
def training(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tools.torture.attach", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while not path.exists() or not np.fromfile(path, np.float64, 200).any():
            if process.poll() is not None:
                raise Failed(f"the training ended with {process.returncode}")
            time.sleep(0.1)
        time.sleep(3)
        yield process
    finally:
        process.kill()
        process.wait()


def run() -> list[str]:
    seen: list[Snapshot] = []
    stretches: list[Stretch] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps")
        with training(path) as process:
            cpu, start = os.times(), time.monotonic()
            for _ in tqdm(range(-(-ATTACHMENTS // IN_A_ROW)), desc="attach", unit="pair"):
                pair = [True, False]
                random.shuffle(pair)
                length = IN_A_ROW * LOOK_S
                for watched in pair:
                    begin = time.monotonic()
                    if watched:
                        seen += [attach(process.pid) for _ in range(IN_A_ROW)]
                        length = time.monotonic() - begin
                    else:
                        time.sleep(UNWATCHED * length)
                    stretches.append(Stretch(begin, time.monotonic(), watched))
            seconds, spent = time.monotonic() - start, sum(os.times()[:4]) - sum(cpu[:4])
            if process.poll() is not None:
                raise Failed(f"the training ended with {process.returncode}")
        steps = np.fromfile(path, np.float64).reshape(-1, 2)
    return judged(steps[steps[:, 1] > 0], stretches, seen, spent / seconds)


def attach(pid: int) -> Snapshot:
    """As `iofast monitor --once` does, with stacks."""
    watch = Watch(job_of(pid), WatchOptions(interval=LOOK_S))
    try:
        return watch.interval()
    finally:
        watch.close()


def judged(steps: np.ndarray, stretches: list[Stretch], seen: list[Snapshot], cpu: float) -> list[str]:
    """Compare the stretches. Raises `Failed` if steps are longer, one has no step, or the training was not seen."""
    medians, longest = ({True: [], False: []} for _ in range(2))
    for stretch in stretches:
        inside = (steps[:, 0] >= stretch.begin + SETTLE_S) & (steps[:, 0] + steps[:, 1] <= stretch.end)
        its = steps[inside, 1]
        if not len(its):
            raise Failed(f"no step in {stretch.end - stretch.begin:.1f} s, watched: {stretch.watched}")
        medians[stretch.watched].append(float(np.median(its)))
        longest[stretch.watched].append(float(its.max()))
    ratios = [with_ / without for with_, without in zip(medians[True], medians[False], strict=True)]
    longer = median(ratios) - 1
    rng = np.random.default_rng(0)
    spread = np.percentile([np.median(rng.choice(ratios, len(ratios))) for _ in range(2000)], [2.5, 97.5]) - 1
    stacks = sum(snapshot.stacks.looks for snapshot in seen if snapshot.stacks is not None)
    watched = sum(snapshot.stacks is not None for snapshot in seen)
    workers = sum(any(each.role == "worker" for each in snapshot.processes) for snapshot in seen)
    lines = [
        f"- {len(seen)} attachments, {len(steps)} steps; looks at stacks: {stacks}, in {watched} of them; "
        f"workers were seen in {workers}",
        f"- median step {1e3 * median(medians[False]):.3f} ms unwatched, {1e3 * median(medians[True]):.3f} ms watched",
        f"- longer by {longer:+.2%} in the median of {len(ratios)} pairs (95 %: {spread[0]:+.2%} to {spread[1]:+.2%})",
        f"- longest step {1e3 * max(longest[False]):.0f} ms unwatched, {1e3 * max(longest[True]):.0f} ms watched",
        f"- the watching process and py-spy used {cpu:.1%} of a core, over watched and unwatched stretches",
    ]
    if longer > ALLOWED or max(longest[True]) > LONGEST_S or workers < len(seen) or not watched:
        raise Failed("; ".join(line.removeprefix("- ") for line in lines))
    return lines


if __name__ == "__main__":
    train(sys.argv[1])
