"""The true stall: the intersection of the intervals with an idle device and those with training in next().

All times are monotonic nanoseconds; a set of intervals is an array of (start, end) rows, in order and apart.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]


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
    def step_s(self) -> float:
        """Seconds of a step, without its wait for a batch."""
        return (1 - self.stall) * self.seconds / max(1, self.steps)


def intervals(rows: Any) -> Intervals:
    """The union of any (start, end) rows, in order and apart."""
    found = np.array(rows, np.int64).reshape(-1, 2)
    found = found[np.argsort(found[:, 0], kind="stable")]
    found = found[found[:, 1] > found[:, 0]]
    if not len(found):
        return found
    ends = np.maximum.accumulate(found[:, 1])
    first = np.concatenate(([True], found[1:, 0] > ends[:-1]))
    return np.stack((found[first, 0], ends[np.append(np.flatnonzero(first)[1:] - 1, len(found) - 1)]), axis=1)


def both(one: Intervals, other: Intervals) -> Intervals:
    """The intersection."""
    rows = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i, 0], other[j, 0]), min(one[i, 1], other[j, 1])
        if start < end:
            rows.append((start, end))
        if one[i, 1] < other[j, 1]:
            i += 1
        else:
            j += 1
    return intervals(rows)


def gaps(busy: Intervals, since: int, until: int) -> Intervals:
    """The gaps of `busy` between `since` and `until`."""
    return intervals(np.stack((np.append(since, busy[:, 1]), np.append(busy[:, 0], until)), axis=1))


def length(found: Intervals) -> int:
    """Nanoseconds."""
    return int((found[:, 1] - found[:, 0]).sum())


def read(folder: Path, since: int = 0, until: int = 1 << 62) -> Truth:
    """The truth of the program that ran in `folder`, between two times.

    Raises FileNotFoundError if the program or its device did not end by itself.
    """
    marks = json.loads((folder / "timeline.json").read_text())
    training = both(intervals(marks["training"]), intervals([(since, until)]))
    waits, starts = intervals(marks["next"]), intervals(marks["starts"])
    total = max(1, length(training))
    idle = None
    if marks["device"]:
        busy = intervals(np.fromfile(folder / "busy.bin", np.int64))
        idle = both(gaps(busy, 0, 1 << 62), training)
    stalled = both(waits, training if idle is None else idle)
    return Truth(
        stall=length(stalled) / total,
        starts=length(both(stalled, starts)) / total,
        wait=length(both(waits, training)) / total,
        idle=None if idle is None else length(idle) / total,
        seconds=total / 1e9,
        steps=sum(1 for start, _ in marks["next"] if any(a <= start < b for a, b in training.tolist())),
    )
