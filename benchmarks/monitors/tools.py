"""The other tools: each in a training loop as in its documentation, and its verdict.

TraceML 0.5.0   `traceml run train.py`; in the script `traceml.init(mode="auto")` and `with traceml.trace_step(model):`
                round each step; a loader that is no DataLoader goes through `wrap_dataloader_fetch`
gpuprof 0.7.1   `with gpuprof.profile(name):` round the loop

Verdicts are read from their machine-readable output: TraceML's final_summary.json, gpuprof's `analyze`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol


class Tool(Protocol):
    """A tool in the training process. `said`: the report of a tool that judges in this process."""

    said: Any

    def start(self, folder: Path, /) -> None:
        """Switch it on; it may write into `folder`."""

    def loader(self, loader: Iterable[Any]) -> Iterable[Any]:
        """What training iterates over."""

    def step(self, model: Any, /) -> AbstractContextManager[Any]:
        """Goes round each step."""

    def stop(self) -> None:
        """Training is over."""


class TraceML:
    """Its runtime is loaded already: `traceml run` has started this script."""

    said: Any = None

    def start(self, _folder: Path) -> None:
        import traceml_ai

        traceml_ai.init(mode="auto")

    def loader(self, loader: Iterable[Any]) -> Iterable[Any]:
        import traceml_ai
        from torch.utils.data import DataLoader

        wrapped: Iterable[Any] = loader
        if not isinstance(loader, DataLoader):
            wrapped = traceml_ai.wrap_dataloader_fetch(loader)
        return wrapped

    def step(self, model: Any) -> AbstractContextManager[Any]:
        import traceml_ai

        step: AbstractContextManager[Any] = traceml_ai.trace_step(model)
        return step

    def stop(self) -> None:
        """Its summary is written after the script has ended."""


class Gpuprof:
    """It finds the steps by the optimizer's."""

    said: Any = None

    def start(self, folder: Path) -> None:
        import gpuprof

        self._database = str(folder / "gpuprof.db")
        self._context = gpuprof.profile(folder.name, db_path=self._database, summary=False)
        self._run = self._context.__enter__()._run_id

    def loader(self, loader: Iterable[Any]) -> Iterable[Any]:
        return loader

    def step(self, _model: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def stop(self) -> None:
        from gpuprof.insights import analyze

        self._context.__exit__(None, None, None)
        self.said = analyze(self._database, self._run)


INSIDE: Final = {"traceml": TraceML, "gpuprof": Gpuprof}


@dataclass(frozen=True)
class Said:
    """A tool's verdict on a run.

    verdict   in its own words
    input     whether it finds the training input-bound, possibly among other findings
    waiting   the share of time that training waits for its loader; None if it is not given
    """

    verdict: str
    input: bool
    waiting: float | None


def traceml(summary: Mapping[str, Any]) -> Said:
    """The verdict in final_summary.json. All findings about step time count, not only the first."""
    step = summary["step_time"]
    kinds = [issue["kind"] for issue in step["issues"]]
    average = step["global"]["average"]
    wait, whole = average.get("input_wait_ms"), average.get("step_time_ms")
    primary = summary["primary_diagnosis"]
    others = [issue["status"] for issue in step["issues"] if issue["kind"] != primary["kind"]]
    verdict = primary["status"] + (f", {', '.join(others)}" if others else "")
    return Said(verdict, "INPUT_BOUND" in kinds, None if wait is None or not whole else wait / whole)


def gpuprof(report: Mapping[str, Any]) -> Said:
    """Of the report of `gpuprof.insights.analyze`. All its findings about the loader count.

    Its shares are of a step without the wait for its batch; here, of the time from step to step.
    """
    summary, insights = report["summary"], report["insights"]
    stalls = [each for each in insights if {"inter_step_gap_s", "frac_starved"} & each.get("evidence", {}).keys()]
    step = summary["avg_step_s"]
    wait = max(summary["inter_step_gap_s"] or 0.0, summary["phase_avg_s"].get("dataloader_wait") or 0.0)
    titles = [each["title"] for each in stalls or insights if not each["title"].startswith("Estimated cost")]
    return Said("; ".join(titles[:2]) or "nothing", bool(stalls), wait / (wait + step) if step else None)


def read(tool: str, folder: Path) -> Said:
    """The verdict of `tool` in the folder of a run. Raises FileNotFoundError without one."""
    if tool == "gpuprof":
        return gpuprof(json.loads((folder / "said.json").read_text()))
    return traceml(json.loads((folder / "traceml" / "run" / "final_summary.json").read_text()))
