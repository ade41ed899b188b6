"""TensorBoard and W&B: the figures as scalars over time, beside those that the training logs itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from iofast.errors import OptionError, reason_of
from iofast.monitor.render.figures import NAMES
from iofast.monitor.render.moment import Moment, View

_WRITERS = ("torch.utils.tensorboard", "tensorboardX")


def scalars(moment: Moment, prefix: str | None = None) -> dict[str, float]:
    """What is known, by tag. The tags have no text of the watched process in them, at most its rank or pid."""
    prefix = prefix or _prefix(moment)
    now = moment.figures
    values = {f"{prefix}/{name}": getattr(now, name) for name in NAMES}
    stall = moment.verdict.stall
    if stall is not None:
        values |= {f"{prefix}/verdict_stall_low": stall.low, f"{prefix}/verdict_stall_high": stall.high}
    return {tag: value for tag, value in values.items() if value is not None}


def _prefix(moment: Moment) -> str:
    return "iofast" if moment.job.rank is None else f"iofast/rank{moment.job.rank}"


class TensorBoard(View):
    """Writes event files into `folder`; a step is a second of watching. Raises OptionError without a writer."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._make = _writer_class()
        self._writers: dict[int, Any] = {}
        self._verdicts: dict[int, str] = {}

    def update(self, moment: Moment) -> None:
        """The interval's scalars; a verdict that changed as text."""
        pid, step = moment.job.pid, int(moment.history.seconds)
        if pid not in self._writers:
            first = not self._writers  # one job: its curves lie directly in the folder
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
        """Write what is buffered."""
        for writer in self._writers.values():
            writer.close()


def _writer_class() -> Any:
    for name in _WRITERS:
        try:
            return import_module(name).SummaryWriter
        except ImportError:
            continue
    raise OptionError("--tensorboard needs the package tensorboard, or tensorboardX: pip install tensorboard")


class WeightsAndBiases(View):
    """Logs to the run that is active here, or to a new one, which `WANDB_RUN_ID` and the like describe."""

    def __init__(self) -> None:
        try:
            self._wandb: Any = import_module("wandb")
        except ImportError as error:
            raise OptionError("--wandb needs the package wandb: pip install wandb") from error
        self._prefixes: dict[tuple[int, int], str] = {}  # of jobs
        self._own = self._wandb.run is None
        try:
            self._run: Any = self._wandb.init(job_type="iofast-monitor") if self._own else self._wandb.run
        except Exception as error:  # of its own kinds: nobody has logged in, or the service does not answer
            raise OptionError(f"--wandb cannot begin a run: {reason_of(error)}") from error

    def update(self, moment: Moment) -> None:
        """The interval's scalars, the verdict and its tier; of several jobs that are no ranks each under its pid."""
        key, prefix = (moment.job.pid, moment.job.start_time), _prefix(moment)
        others = [used for other, used in self._prefixes.items() if other != key]
        if key not in self._prefixes:
            self._prefixes[key] = f"{prefix}/pid{moment.job.pid}" if prefix in others else prefix
        prefix, verdict = self._prefixes[key], moment.verdict
        judged = {f"{prefix}/verdict": verdict.bound.value, f"{prefix}/tier": verdict.tier.value}
        self._run.log({**scalars(moment, prefix), **judged})

    def close(self, _moments: Sequence[Moment]) -> None:
        """Finish the run, where it is ours."""
        if self._own:
            self._run.finish()
