"""Artificial jobs, for the tests of watching and judging."""

import time
from collections.abc import Sequence

from monitor_moments import snapshot, starved, unknown

from iofast.monitor.findings import Verdict
from iofast.monitor.live import Sources
from iofast.monitor.snapshot import Job, Snapshot
from iofast.monitor.watching import Watch


class Watcher(Watch):
    """Takes a hundred snapshots per second of a job that ends after `last` of them."""

    def __init__(self, job: Job, last: float = float("inf")) -> None:
        self._job, self._last, self._number = job, last, 0
        self.closed = False

    def interval(self) -> Snapshot:
        time.sleep(0.01)
        self._number += 1
        if self._number > self._last:
            raise ProcessLookupError(f"{self._job.pid} has ended")
        return snapshot(self._number, job=self._job)

    def close(self) -> None:
        self.closed = True


def made(verdict: Verdict | None = None, jobs: int = 1, last: float = float("inf")) -> Sources:
    """Sources of `jobs` jobs with this verdict (default: starved); it is unknown for the first two intervals."""
    found = [Job(4242 + number, 77, f"python train{number}.py") for number in range(jobs)]

    def judge(snapshots: Sequence[Snapshot], _before: Verdict | None) -> Verdict:
        return unknown() if len(snapshots) < 3 else verdict or starved()

    return Sources(lambda: found, lambda job: Watcher(job, last), judge)
