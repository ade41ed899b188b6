"""The model that all views share: a job's newest interval, verdict and history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iofast.monitor.findings import Verdict
from iofast.monitor.render.figures import Figures
from iofast.monitor.render.history import History
from iofast.monitor.snapshot import Job, Snapshot


@dataclass(frozen=True, slots=True)
class Moment:
    """The newest interval of one job with its figures, its verdict, and the history before it."""

    job: Job
    snapshot: Snapshot
    figures: Figures
    verdict: Verdict
    history: History  # it grows, so a view must read it at once
    ended: bool = False


class MomentView:
    """Base class of all views: ignores every call. All calls come from one thread."""

    def update(self, moment: Moment, /) -> None:
        """Show one more interval of a job."""

    def waiting(self, message: str, /) -> None:
        """Show `message` while no job is watched."""

    def close(self, moments: Sequence[Moment], /) -> None:
        """End the view; `moments` has the last moment of every job."""
