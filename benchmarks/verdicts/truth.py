"""The true stall: the intersection of the intervals with an idle device and those with training in next().

All times are monotonic nanoseconds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Truth:
    """Shares of the training time that was watched.

    stall    the device was idle and the training thread in next(); without a device, it was in next()
    starts   the part of it that fell to the start of an epoch: workers started, first batch
    wait     the training thread was in next()
    idle     the device was idle; None without one
    seconds  of training; `steps` began in them
    """

    stall: float
    starts: float
    wait: float
    idle: float | None
    seconds: float
    steps: int

    @property
    def within_epochs(self) -> float:
        """The stall without the starts of epochs."""
        return (self.stall - self.starts) / max(1e-9, 1 - self.starts)

    @property
    def rate(self) -> float:
        """Batches a second."""
        return self.steps / self.seconds

    @property
    def step_s(self) -> float:
        """Seconds of a step, without its wait for a batch."""
        return (1 - self.stall) * self.seconds / max(1, self.steps)


def length(*sets: Any) -> int:
    """Nanoseconds in which all sets of (start, end) rows overlap; the rows of a set may overlap each other."""
    rows = [np.array(each, np.int64).reshape(-1, 2) for each in sets]
    times = np.unique(np.concatenate(rows))
    inside = np.ones(len(times), bool)
    for each in rows:
        depth = np.zeros(len(times), np.int64)
        np.add.at(depth, np.searchsorted(times, each[:, 0]), 1)
        np.add.at(depth, np.searchsorted(times, each[:, 1]), -1)
        inside &= depth.cumsum() > 0
    return int(np.diff(times)[inside[:-1]].sum())


def read(folder: Path, since: int = 0, until: int = 1 << 62) -> Truth:
    """The truth of the program that ran in `folder`, between two times.

    Raises FileNotFoundError if the program or its device did not end by itself.
    """
    marks = json.loads((folder / "timeline.json").read_text())
    waits, training = marks["next"], (marks["training"], [(since, until)])
    total = max(1, length(*training))
    busy = np.fromfile(folder / "busy.bin", np.int64) if marks["device"] else ()

    def idle(*sets: Any) -> float:
        """The share of the training in these intervals and with an idle device."""
        return (length(*training, *sets) - length(*training, *sets, busy)) / total

    return Truth(
        stall=idle(waits),
        starts=idle(waits, marks["starts"]),
        wait=length(*training, waits) / total,
        idle=idle() if marks["device"] else None,
        seconds=total / 1e9,
        steps=sum(
            since <= start < until and any(begin <= start < end for begin, end in marks["training"])
            for start, _ in waits
        ),
    )
