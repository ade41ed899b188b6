"""What rules of advice look at: the training intervals, the verdict on them, and what removing a wait can gain."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from iofast.monitor.findings import Advice, Bound, Cause, Phase, Verdict
from iofast.monitor.snapshot import Snapshot, WorkerTask
from iofast.monitor.thresholds import Thresholds
from iofast.monitor.training import Training

MOST_GAIN = 20.0  # a prediction beyond it says more about the division than about the training


@dataclass(frozen=True)
class Situation:
    """A verdict and what it was drawn from. `every` has all intervals, `training` those that counted."""

    every: Training
    training: Training
    verdict: Verdict
    thresholds: Thresholds

    @property
    def last(self) -> Snapshot | None:
        return self.every.snapshots[-1] if self.every.snapshots else None

    @property
    def low(self) -> float:
        """The part of the stall that is proved."""
        return self.verdict.stall.low if self.verdict.stall is not None else 0.0

    @property
    def high(self) -> float:
        return self.verdict.stall.high if self.verdict.stall is not None else 1.0

    def is_input(self, *causes: Cause) -> bool:
        """Input-bound, by one of these causes; by any where none is named."""
        return self.verdict.bound is Bound.INPUT and (not causes or self.verdict.cause in causes)

    @property
    def shares_cores(self) -> bool:
        """Whether training computes on the very processors that its loader has exhausted."""
        stall = self.verdict.stall
        return stall is not None and stall.host_wait and self.is_input(Cause.CPU)

    @property
    def relief(self) -> float | None:
        """What a loader gains that costs next to nothing. None where training gets its processors as well: a small
        network on two cores, with a wait of 18 to 23 %, ran 3.1 times as fast after packing."""
        return None if self.shares_cores else gain(self.low)

    def phase(self, phase: Phase) -> float:
        """Share of all time in a phase."""
        whole = sum(self.verdict.phases.values())
        return self.verdict.phases.get(phase, 0.0) / whole if whole else 0.0

    @property
    def fast_loader(self) -> bool:
        threads = any(one.name.startswith("iofast") for shot in self.every.snapshots for one in shot.threads)
        return threads or any(loader.kind == "FastLoader" for loader in self.every.loaders)

    @property
    def pinned(self) -> bool:
        return self.fast_loader or self.every.thread_cpu("pt_data_pin") is not None

    @cached_property
    def ranks(self) -> int:
        """Ranks of this job on this machine: each is told the same, and all of them share its cores."""
        return 1 + (len(self.last.peers) if self.last is not None else 0)

    @property
    def each_rank(self) -> str:
        """What is said behind cores where ranks share them."""
        return " for each rank" if self.ranks > 1 else ""

    @cached_property
    def free_cores(self) -> float | None:
        """Idle cores that this rank may take."""
        idle = self.training.system(lambda one: one.system.idle_cores)
        return None if idle is None else idle / self.ranks

    def figure(self, *names: str) -> tuple[str, float | None]:
        """The first of these figures that the verdict rests on, by name; the first name where it has none of them."""
        known = {one.name: one.value for one in self.verdict.evidence}
        name = next((name for name in names if name in known), names[0])
        return name, known.get(name)

    @property
    def renewed_workers(self) -> bool:
        """Whether workers were seen to go and others to come."""
        sets = [
            alive
            for one in self.every.snapshots
            if (alive := {(each.pid, each.start_time) for each in one.processes if each.role == "worker"})
        ]
        every = set().union(*sets)
        return bool(sets) and bool(every - sets[0]) and bool(every - sets[-1])

    @property
    def starved(self) -> float | None:
        """Share of the looks at workers that had nothing to do; None without stacks."""
        seen = [one for one in self.training.stacks if one.worker_looks]
        looks = sum(one.worker_looks for one in seen)
        return (
            sum(one.workers.get(WorkerTask.STARVED, 0.0) * one.worker_looks for one in seen) / looks if looks else None
        )

    @property
    def file_bytes(self) -> int | None:
        known = sorted(one.file_bytes for one in self.every.snapshots if one.file_bytes is not None)
        return known[len(known) // 2] if known else None

    @property
    def folder(self) -> str | None:
        """Where most of the data files lie that were seen open; the newest interval knows most of them."""
        known = [one.dataset_paths for one in self.every.snapshots if one.dataset_paths]
        return known[-1][0] if known else None

    @property
    def images(self) -> str:
        """The folder of images, ready for a shell; a word to be replaced where images were not seen open."""
        folder = self.folder if self.file_bytes is not None else None
        return "IMAGES" if folder is None else shlex.quote(folder)

    @property
    def convolutions(self) -> bool:
        return any(one.convolutions for one in self.every.stacks)

    @property
    def compiled(self) -> bool:
        return any(one.compiled for one in self.every.stacks)

    @property
    def memory(self) -> float | None:
        """Share of the device's memory that is in use, at most."""
        shares = [
            one.memory_used / one.memory_total
            for one in self.every.devices
            if one.memory_used is not None and one.memory_total
        ]
        return max(shares, default=None)

    @property
    def capability(self) -> tuple[int, int] | None:
        return min((one.capability for one in self.every.devices if one.capability is not None), default=None)


Rule = Callable[[Situation], Advice | None]


def gain(removed: float) -> float:
    """How many times as fast the training is at most when this share of its time goes away."""
    return min(MOST_GAIN, 1.0 / max(1e-9, 1.0 - min(1.0, max(0.0, removed))))
