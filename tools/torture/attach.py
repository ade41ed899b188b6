"""1000 attachments in half an hour, stacks included, lengthen the median step of a training by less than 0.5 %.

One process watches, as `iofast monitor` does: it finds the training, looks for a second, and lets go of it. Ten
attachments in a row and shorter stretches without any take turns, in random order within each pair; the steps of a
stretch are compared with those of the other one of its pair, so that what else the machine does counts on both sides.
The training computes on one core and its worker uses half of the other one. It must never stop.
"""

from __future__ import annotations

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
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.watching import Watch, WatchOptions
from tools.torture import Failed

ATTACHMENTS = 1000
IN_A_ROW = 10
LOOK_S = 1.25  # an attachment: a burst of stacks takes a second, and py-spy's start before it
UNWATCHED = 0.3  # of a watched stretch: 1000 attachments take 23 minutes, with these 29
SETTLE_S = 0.3  # at the beginning of a stretch, that is in neither
ALLOWED = 0.005
LONGEST_S = 1.0  # a step of 25 ms; a training that was stopped by its watcher would stand for longer
MOST_STEPS = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


class Stretch(NamedTuple):
    """A stretch of time, and whether the training was watched in it."""

    begin: float
    end: float
    watched: bool


class Images(Dataset[torch.Tensor]):
    """Costs a worker half of the time that the training takes for it."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + 0.0125
        while time.thread_time() < end:
            pass
        return torch.zeros(16)


def train(path: str) -> None:
    """Steps of about 25 ms of work that is always the same; when each began and how long it took goes to `path`."""
    torch.set_num_threads(1)
    steps = np.memmap(path, np.float64, "w+", shape=(MOST_STEPS, 2))
    weights = torch.randn(384, 384)
    begin = time.monotonic()
    for number, batch in zip(range(MOST_STEPS), DataLoader(Images(), batch_size=1, num_workers=1), strict=False):
        for _ in range(20):
            torch.mm(weights, weights)
        now = time.monotonic()
        steps[number] = begin, now - begin
        begin = now
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
    return attached(ATTACHMENTS)


def attached(attachments: int) -> list[str]:
    seen: list[Snapshot] = []
    stretches: list[Stretch] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps")
        with training(path) as process:
            cpu, start = os.times(), time.monotonic()
            for _ in tqdm(range(-(-attachments // IN_A_ROW)), desc="attach", unit="pair"):
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
    """The findings. Raises Failed."""
    medians: dict[bool, list[float]] = {True: [], False: []}
    longest = {True: 0.0, False: 0.0}
    for stretch in stretches:
        inside = (steps[:, 0] >= stretch.begin + SETTLE_S) & (steps[:, 0] + steps[:, 1] <= stretch.end)
        its = steps[inside, 1]
        if not len(its):
            raise Failed(f"no step in {stretch.end - stretch.begin:.1f} s, watched: {stretch.watched}")
        medians[stretch.watched].append(float(np.median(its)))
        longest[stretch.watched] = max(longest[stretch.watched], float(its.max()))
    ratios = [with_ / without for with_, without in zip(medians[True], medians[False], strict=True)]
    longer = median(ratios) - 1
    rng = np.random.default_rng(0)
    spread = np.percentile([np.median(rng.choice(ratios, len(ratios))) for _ in range(2000)], [2.5, 97.5]) - 1
    stacks = sum(snapshot.stacks.looks for snapshot in seen if snapshot.stacks is not None)
    workers = sum(any(each.role == "worker" for each in snapshot.processes) for snapshot in seen)
    lines = [
        f"- {len(seen)} attachments, {len(steps)} steps; looks at stacks: {stacks}; the worker was seen in {workers}",
        f"- median step {1e3 * median(medians[False]):.3f} ms unwatched, {1e3 * median(medians[True]):.3f} ms watched",
        f"- longer by {longer:+.2%} in the median of {len(ratios)} pairs (95 %: {spread[0]:+.2%} to {spread[1]:+.2%})",
        f"- longest step {1e3 * longest[False]:.0f} ms unwatched, {1e3 * longest[True]:.0f} ms watched",
        f"- the watching process and py-spy used {cpu:.1%} of a core, over watched and unwatched stretches",
    ]
    if longer > ALLOWED or longest[True] > LONGEST_S or workers < len(seen) or not stacks:
        raise Failed("; ".join(line.removeprefix("- ") for line in lines))
    return lines


if __name__ == "__main__":
    train(sys.argv[1])
