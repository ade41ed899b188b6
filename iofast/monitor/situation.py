"""Facts that predictions and advice look at: the intervals, the verdict on them, and the gain of removing a wait."""

import shlex

from iofast.monitor.findings import Bound, Cause, Verdict
from iofast.monitor.snapshot import WorkerTask
from iofast.monitor.training import Training

MOST_GAIN = 20.0  # a larger prediction is a division by almost nothing


class Situation:
    """A verdict that names a limit, and its intervals: `every` has all, `training` those that the verdict rests on."""

    def __init__(self, every: Training, training: Training, verdict: Verdict) -> None:
        self.every, self.training, self.verdict = every, training, verdict
        self.thresholds = every.thresholds
        self.last = every.snapshots[-1]  # the newest interval, which knows most of the program and its files
        stall = verdict.stall
        self.low = stall.low if stall is not None else 0.0  # the part of the stall that is proved
        self.wait_gain = gain(self.low)  # of a loader that is never late
        # Whether training computes on the same processors that its loader has exhausted. A loader that costs next to
        # nothing leaves them to it, and no gain is known then: a small network on two cores, with a wait of 18 to 23 %,
        # ran 3.1 times as fast after packing.
        self.shares_cores = stall is not None and stall.host_wait and self.caused_by(Cause.CPU, Cause.TAKEN)
        self.relief = None if self.shares_cores else self.wait_gain
        threads = every.thread_cpu("iofast") is not None
        self.fast_loader = threads or any(loader.kind == "FastLoader" for loader in every.loaders)
        self.ranks = 1 + len(self.last.peers)  # on this machine: they share its cores, and each gets the same advice
        self.cores = (training.cores or 0.0) / self.ranks  # of this rank; 0 if unknown
        self.free_cores = None if training.idle_cores is None else training.idle_cores / self.ranks
        looks = sum(one.worker_looks for one in training.stacks)
        self.starved = 1.0 - training.work_looks / looks if looks else None  # stack samples without work for workers
        sizes = sorted(one.file_bytes for one in every.snapshots if one.file_bytes is not None)
        self.file_bytes = sizes[len(sizes) // 2] if sizes else None  # of the images that workers had open
        # Packs all images smaller; the word FOLDER stands for their folder if it is not certain.
        folder = "FOLDER" if self.last.image_root is None else shlex.quote(self.last.image_root)
        self.packing = f"iofast pack {folder} train.lmdb --resize 256"

    def caused_by(self, *causes: Cause) -> bool:
        """Whether the verdict is input-bound by one of these causes."""
        return self.verdict.bound is Bound.INPUT and self.verdict.cause in causes

    def work(self, *tasks: WorkerTask) -> float:
        """Share of these tasks in the workers' work."""
        return sum(self.training.work.get(task, 0.0) for task in tasks)


def gain(removed: float) -> float:
    """Upper bound of the speed-up of training when this share of its time goes away."""
    return min(MOST_GAIN, 1.0 / max(1e-9, 1.0 - min(1.0, max(0.0, removed))))
