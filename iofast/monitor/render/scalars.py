"""TensorBoard and W&B: figures as scalars over time, beside those that the training logs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from iofast.errors import OptionError, reason_of
from iofast.monitor.render.figures import NAMES
from iofast.monitor.render.moment import Moment, MomentView

_WRITERS = ("torch.utils.tensorboard", "tensorboardX")


def scalars(moment: Moment, prefix: str | None = None) -> dict[str, float]:
    """Known figures by tag. Tags contain the rank or pid of the watched process, but none of its text."""
    prefix = prefix or _prefix(moment)
    now = moment.figures
    values = {f"{prefix}/{name}": getattr(now, name) for name in NAMES}
    stall = moment.verdict.stall
    if stall is not None:
        values |= {f"{prefix}/verdict_stall_low": stall.low, f"{prefix}/verdict_stall_high": stall.high}
    return {tag: value for tag, value in values.items() if value is not None}


def _prefix(moment: Moment) -> str:
    return "iofast" if moment.job.rank is None else f"iofast/rank{moment.job.rank}"


class TensorBoard(MomentView):
    """Writes event files into `folder`; a step is a second of watching. Raises OptionError without a writer package."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._make = _writer_class()
        self._writers: dict[int, Any] = {}
        self._verdicts: dict[int, str] = {}

    def update(self, moment: Moment) -> None:
        """Write the interval's scalars, and a new verdict as text."""
        pid, step = moment.job.pid, int(moment.history.seconds)
        if pid not in self._writers:
            first = not self._writers  # curves of a single job are directly in the folder
            self._writers[pid] = self._make(self._folder if first else f"{self._folder}/pid{pid}")
        writer = self._writers[pid]
        for tag, value in scalars(moment).items():
            writer.add_scalar(tag, value, step)
        verdict = moment.verdict.bound.value
        if self._verdicts.get(pid) != verdict:
            self._verdicts[pid] = verdict
            writer.add_text("iofast/verdict", verdict, step)
        if moment.ended:
            self._writers.pop(pid).close()
            del self._verdicts[pid]

    def close(self, _moments: Sequence[Moment]) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()


def _writer_class() -> Any:
    for name in _WRITERS:
        try:
            return import_module(name).SummaryWriter
        except ImportError:
            continue
    raise OptionError("--tensorboard needs the package tensorboard, or tensorboardX: pip install tensorboard")


class WeightsAndBiases(MomentView):
    """Logs to the active run, or to a new one (`WANDB_RUN_ID` and similar variables apply)."""

    def __init__(self) -> None:
        try:
            self._wandb: Any = import_module("wandb")
        except ImportError as error:
            raise OptionError("--wandb needs the package wandb: pip install wandb") from error
        self._prefixes: dict[tuple[int, int], str] = {}  # of jobs
        self._own = self._wandb.run is None
        try:
            self._run: Any = self._wandb.init(job_type="iofast-monitor") if self._own else self._wandb.run
        except Exception as error:  # wandb's own errors: no login, no answer from the service
            raise OptionError(f"--wandb cannot begin a run: {reason_of(error)}") from error

    def update(self, moment: Moment) -> None:
        """Log the interval's scalars, verdict and tier; several jobs without ranks are logged under their pids."""
        key, prefix = (moment.job.pid, moment.job.start_time), _prefix(moment)
        others = [used for other, used in self._prefixes.items() if other != key]
        if key not in self._prefixes:
            self._prefixes[key] = f"{prefix}/pid{moment.job.pid}" if prefix in others else prefix
        prefix, verdict = self._prefixes[key], moment.verdict
        judged = {f"{prefix}/verdict": verdict.bound.value, f"{prefix}/tier": verdict.tier.value}
        self._run.log({**scalars(moment, prefix), **judged})

    def close(self, _moments: Sequence[Moment]) -> None:
        """Finish the run if it was begun here."""
        if self._own:
            self._run.finish()
