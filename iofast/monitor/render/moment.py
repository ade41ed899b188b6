"""A job as it stands now, and what a view of it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from iofast.monitor.findings import Verdict
from iofast.monitor.render.history import History
from iofast.monitor.snapshot import Job, Snapshot


@dataclass(frozen=True, slots=True)
class Moment:
    """The newest interval of one job, what is judged of it, and what came before."""

    job: Job
    snapshot: Snapshot
    verdict: Verdict
    history: History  # grows: a view reads it at once, or never
    ended: bool = False


class MomentView(Protocol):
    """Something that shows what was found. Called from one thread."""

    def update(self, moment: Moment, /) -> None:
        """An interval of one job more."""

    def waiting(self, message: str, /) -> None:
        """Nothing is watched at the moment; `message` says what is waited for."""

    def close(self, moments: Sequence[Moment], /) -> None:
        """The end, with the last moment of every job."""


class Silent:
    """A view that shows nothing; a base for those that care for some of the calls only."""

    def update(self, moment: Moment, /) -> None:
        """An interval of one job more."""

    def waiting(self, message: str, /) -> None:
        """Nothing is watched at the moment; `message` says what is waited for."""

    def close(self, moments: Sequence[Moment], /) -> None:
        """The end, with the last moment of every job."""
