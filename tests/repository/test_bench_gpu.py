"""bench_gpu.py: what a lost device would cost, and every part on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import write_folder
from places import ROOT

from benchmarks import bench_gpu
from benchmarks.gpu import data, decode, finishing, pixels, record, resident, stress, training, transfer
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.record import Figure, Lack
from iofast.beside import window
from iofast.meter import MeterStats, Stall

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The data of the parts, from a few given photographs."""
    folder = tmp_path_factory.mktemp("gpu")
    write_folder(folder / "photos", [jpeg(photo(300 + number, 260, number)) for number in range(40)])
    job = Job(folder, folder / "data.jsonl", CPU, 60, quick=True)
    data.run(job, folder / "photos")
    return job


@pytest.fixture
def job(made: Job, tmp_path: Path) -> Job:
    return Job(made.data, tmp_path / "log.jsonl", CPU, 60, quick=True)


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [
        (0.4, {"least": 0.4}, True),
        (0.39, {"least": 0.4}, False),
        (1.51, {"most": 1.5}, False),
        (1.0, {}, None),
        (float("nan"), {"most": 0.01}, False),
    ],
)
def test_goals(value: float, goal: dict[str, float], met: bool | None) -> None:
    assert Figure("a", value, "%", **goal).met is met


def test_a_window_of_the_meter() -> None:
    """10 steps of 1 second, half of it waiting, then 30 of 2 seconds with 1.5 seconds of waiting in all."""
    begun = MeterStats("cuda", 1, 11, 10, None, 1.0, 1.0, 0.5, Stall(0.5, 0.5), None, None, {})
    ended = replace(begun, steps=40, step_mean_s=1.75, stall=Stall(6.5 / 70, 6.5 / 70))
    assert window(begun, ended) == pytest.approx(1.5 / 60)
    with pytest.raises(RuntimeError, match="saw no step: 10 before, 10 after"):
        window(begun, begun)


def figures(job: Job) -> set[str]:
    found, _ = record.read(job.log)
    assert all(np.isfinite(figure.value) and figure.met is None for figure in found)
    return {figure.name for figure in found}


def lacks(job: Job) -> dict[str, str]:
    """What a GPU or a library is missing for, and why."""
    return {lack.what: lack.why for lack in record.read(job.log)[1]}


@pytest.mark.parametrize(
    ("part", "lacking", "but"),
    [
        (transfer, set(), ()),
        (decode, {"packed, decode='gpu'"}, ()),  # and decoders that are not installed
        (pixels, set(), ()),
        (finishing, {"decoding alone, batches of 8"}, ("decoding",)),
        (resident, set(), ()),
        (stress, {"decode='gpu'", "compute-sanitizer"}, ("gpu", "sanitizer")),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_every_goal_has_a_figure(job: Job, part: Any, lacking: set[str], but: tuple[str, ...]) -> None:
    part.run(job)
    found = figures(job)
    assert lacks(job).keys() == lacking or (part is decode and lacks(job).keys() > lacking)
    (its,) = (each for each in PARTS if each.name == part.__name__.rpartition(".")[2])
    goals = [ask for ask in its.asks if not any(word in ask for word in but)]
    assert [goal for goal in goals if not any(each.startswith(goal) for each in found)] == []
    if part in (pixels, stress):  # pixels that differ, batches that are wrong
        assert {figure.value for figure in record.read(job.log)[0]} == {0}


@pytest.mark.slow  # 8 s
def test_training(job: Job) -> None:
    training.run(job)
    assert "three convolutions, FastLoader, packed: exposed stall, beside a batch that stays" in figures(job)
    assert "CUDA" in lacks(job)["torchvision: decoded on the GPU, into nothing"]


def test_stress_finds_a_wrong_batch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = stress.quiet

    def damaged(job: Job, loader: object) -> list[torch.Tensor]:
        batches = quiet(job, loader)  # type: ignore[arg-type]
        batches[3][1, 2, 5, 5] ^= 1
        return batches

    monkeypatch.setattr(stress, "quiet", damaged)
    stress.stressed(job, "cpu")
    assert record.read(job.log)[0][0].value == 1


def test_a_part_that_hangs_or_dies_keeps_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, log = Part("resident", "", 30, 30), tmp_path / "resident.jsonl"
    line = f'echo \'{{"Figure": {{"name": "a", "value": 1, "unit": ""}}}}\' > {log}'
    for rest, ended in (("sleep 60", "Stopped after 2 s"), ("echo bad luck; exit 3", "It ended with status 3.")):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{line}\n{rest}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        outcome = bench_gpu.run(part, tmp_path, 2, [])
        assert outcome.figures == (Figure("a", 1, ""),)
        assert outcome.ended.startswith(ended)
    assert outcome.lacks == (Lack("what it said last", "bad luck"),)


@pytest.mark.slow
def test_the_command(made: Job, tmp_path: Path) -> None:
    """As a user gives it, on the data of an earlier run."""
    output = tmp_path / "page.md"
    options = ["--device=cpu", "--quick", f"--data={made.data}", f"--output={output}", "--only=resident"]
    own = os.environ | {"PYTHON": sys.executable, "WHEELS": str(tmp_path), "IOFAST_COMMIT": "abc1234"}
    run = subprocess.run(
        ["tools/gpu_session.sh", *options], cwd=ROOT, env=own, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    text = output.read_text()
    assert run.stdout.strip() == text.strip()
    assert "| different photographs | 32 |" in text
    assert "- Commit abc1234, " in text
