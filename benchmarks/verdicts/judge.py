"""A monitor that watches one program from outside and keeps its observations, so that they can be judged again.

    python -m benchmarks.verdicts.judge PID SECONDS FILE

A process of its own, because the stand-in NVML is found by its environment. `FILE` gets an `Observation` as JSON.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.verdicts import kept
from iofast.monitor.find import job_of
from iofast.monitor.probe.nvml import NvmlProbe
from iofast.monitor.probe.states import Gone
from iofast.monitor.request import WatchOptions
from iofast.monitor.snapshot import Snapshot
from iofast.monitor.watching import Watch


@dataclass(frozen=True)
class Observation:
    """Snapshots between two monotonic times (nanoseconds), and the processor time that they took."""

    since: int
    until: int
    snapshots: tuple[Snapshot, ...]
    cpu_s: float


def observe(pid: int, seconds: float) -> Observation:
    """Watch the process `pid` for that long, or until it ends."""
    watch = Watch(job_of(pid), WatchOptions(), NvmlProbe())
    since, used = time.monotonic_ns(), time.process_time()
    until, snapshots = since, []
    try:
        while until < since + 1e9 * seconds:
            snapshots.append(watch.interval())
            until = time.monotonic_ns()
    except Gone:
        pass
    finally:
        watch.close()
    return Observation(since, until, tuple(snapshots), time.process_time() - used)


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(kept.plain(observe(int(sys.argv[1]), float(sys.argv[2])))))
