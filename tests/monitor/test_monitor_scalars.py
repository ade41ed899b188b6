"""TensorBoard and W&B: which tags, which runs, and what cannot be had."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from monitor_moments import HOSTILE, moment, starved

from iofast.errors import OptionError
from iofast.monitor.render.scalars import TensorBoard, WeightsAndBiases, scalars
from iofast.monitor.snapshot import Job


class _Log:
    def __init__(self, folder: str = "") -> None:
        self.folder, self.scalars, self.texts, self.closed = folder, {}, [], False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag, step] = value

    def add_text(self, _tag: str, text: str, step: int) -> None:
        self.texts.append((text, step))

    def close(self) -> None:
        self.closed = True


class TestScalars:
    def test_tags_hold_no_text_of_others(self) -> None:
        for text in HOSTILE:
            assert all(re.fullmatch(r"iofast/[a-z0-9_/]+", tag) for tag in scalars(moment(1, text, starved(text))))

    def test_tensorboard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = ModuleType("torch.utils.tensorboard")
        made: list[_Log] = []
        module.SummaryWriter = lambda folder: made.append(_Log(folder)) or made[-1]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
        board = TensorBoard("runs")
        for seconds in (5, 20, 30):
            board.update(moment(seconds))
        board.close([])
        assert [log.folder for log in made] == ["runs"]
        assert made[0].scalars["iofast/rank0/verdict_stall_high", 30] == 0.38
        assert made[0].texts == [("input-bound", 5)]
        assert made[0].closed

    @pytest.mark.parametrize(
        ("view", "package"), [(lambda: TensorBoard("runs"), "tensorboard"), (WeightsAndBiases, "wandb")]
    )
    def test_a_missing_package_is_one_line(self, view: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("torch.utils.tensorboard", "tensorboardX", "wandb"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(OptionError, match=rf"--{package} needs the package {package}.*pip install"):
            view()

    def test_a_run_that_cannot_begin_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def init(**_: Any) -> None:
            raise RuntimeError("api_key not configured (no-tty)\nmore")

        wandb = ModuleType("wandb")
        wandb.run, wandb.init = None, init  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        with pytest.raises(OptionError, match=r"^--wandb cannot begin a run: api_key not configured \(no-tty\)$"):
            WeightsAndBiases()

    @pytest.mark.parametrize("active", [True, False])
    def test_wandb(self, active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        class Run:
            logged: list[dict[str, Any]] = []  # noqa: RUF012
            finished = False

            def log(self, values: dict[str, Any]) -> None:
                self.logged.append(values)

            def finish(self) -> None:
                self.finished = True

        run = Run()
        run.logged = []
        wandb = ModuleType("wandb")
        wandb.run = run if active else None  # type: ignore[attr-defined]
        wandb.init = lambda **_: run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        view = WeightsAndBiases()
        alone, other = (moment(job=Job(pid, 1, "python a.py")) for pid in (7, 8))
        for each in (moment(), alone, other, alone):
            view.update(each)
        view.close([])
        prefixes = ["iofast/rank0", "iofast", "iofast/pid8", "iofast"]
        assert [next(iter(values)).rpartition("/")[0] for values in run.logged] == prefixes
        assert run.logged[0]["iofast/rank0/verdict"] == "input-bound"
        assert run.logged[1]["iofast/tier"] == "stacks"
        assert run.finished is not active
