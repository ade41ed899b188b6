"""Facts that predictions and advice look at: the intervals, the verdict on them, and the gain of removing a wait."""

import shlex
from dataclasses import dataclass

from iofast.monitor.findings import Bound, Cause, Verdict
from iofast.monitor.snapshot import Snapshot, WorkerTask
from iofast.monitor.thresholds import Thresholds
from iofast.monitor.training import Training

MOST_GAIN = 20.0  # a larger prediction is a division by almost nothing


@dataclass(frozen=True)
class Situation:
    """A verdict and its intervals: `every` has all of them, `training` those that the verdict rests on."""

    every: Training
    training: Training
    verdict: Verdict

    @property
    def thresholds(self) -> Thresholds:
        return self.every.thresholds

    @property
    def last(self) -> Snapshot | None:
        """The newest interval, which knows most of the program and its files."""
        return self.every.snapshots[-1] if self.every.snapshots else None

    @property
    def low(self) -> float:
        """Lower bound of the stall: the part that is proved."""
        return self.verdict.stall.low if self.verdict.stall is not None else 0.0

    @property
    def wait_gain(self) -> float:
        """Gain of a loader that is never late."""
        return gain(self.low)

    @property
    def relief(self) -> float | None:
        """Gain of a loader that costs next to nothing; None if training gets the loader's cores as well.

        A small network on two cores, with a wait of 18 to 23 %, ran 3.1 times as fast after packing.
        """
        return None if self.shares_cores else self.wait_gain

    @property
    def shares_cores(self) -> bool:
        """Whether training computes on the same processors that its loader has exhausted."""
        stall = self.verdict.stall
        return stall is not None and stall.host_wait and self.caused_by(Cause.CPU, Cause.TAKEN)

    def caused_by(self, *causes: Cause) -> bool:
        """Whether the verdict is input-bound by one of these causes."""
        return self.verdict.bound is Bound.INPUT and self.verdict.cause in causes

    @property
    def fast_loader(self) -> bool:
        threads = self.every.thread_cpu("iofast") is not None
        return threads or any(loader.kind == "FastLoader" for loader in self.every.loaders)

    @property
    def ranks(self) -> int:
        """Ranks of this job on this machine. They share its cores, and each gets the same advice."""
        return 1 + (len(self.last.peers) if self.last is not None else 0)

    @property
    def cores(self) -> float:
        """Cores of this rank; 0 if unknown."""
        return (self.training.system(lambda one: one.system.cores) or 0.0) / self.ranks

    @property
    def free_cores(self) -> float | None:
        """Idle cores that this rank may take; None if unknown."""
        idle = self.training.system(lambda one: one.system.idle_cores)
        return None if idle is None else idle / self.ranks

    @property
    def starved(self) -> float | None:
        """Share of stack samples in which workers had nothing to do; None without stacks."""
        looks = sum(one.worker_looks for one in self.training.stacks)
        return 1.0 - self.training.work_looks / looks if looks else None

    def work(self, *tasks: WorkerTask) -> float:
        """Share of these tasks in the workers' work."""
        return sum(self.training.work.get(task, 0.0) for task in tasks)

    @property
    def file_bytes(self) -> int | None:
        """Median size of the images that workers had open; None if none was seen."""
        known = sorted(one.file_bytes for one in self.every.snapshots if one.file_bytes is not None)
        return known[len(known) // 2] if known else None

    @property
    def image_root(self) -> str | None:
        """Folder of all images; None if that is not certain."""
        return self.last.image_root if self.last is not None else None

    @property
    def packing(self) -> str:
        """The command that packs all images smaller; the word FOLDER stands for their folder if it is not certain."""
        folder = "FOLDER" if self.image_root is None else shlex.quote(self.image_root)
        return f"iofast pack {folder} train.lmdb --resize 256"


def gain(removed: float) -> float:
    """Upper bound of the speed-up of training when this share of its time goes away."""
    return min(MOST_GAIN, 1.0 / max(1e-9, 1.0 - min(1.0, max(0.0, removed))))
