"""bench_gpu.py: its arithmetic, its page, parts that fail, and every part on a CPU."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import write_folder
from places import ROOT

from benchmarks import bench_gpu
from benchmarks.gpu import clock, data, decode, finishing, pixels, record, resident, stress, training, transfer
from benchmarks.gpu.job import ONE_LINE, Job, one_line
from benchmarks.gpu.page import lacking, page, slug
from benchmarks.gpu.parts import NAMES, PARTS, Part
from benchmarks.gpu.record import Figure, Lack, Outcome, written
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


class TestGpuFigures:
    @pytest.mark.parametrize(
        ("value", "goal", "met"),
        [
            (0.4, {"least": 0.4}, True),
            (0.39, {"least": 0.4}, False),
            (1.5, {"most": 1.5}, True),
            (1.51, {"most": 1.5}, False),
            (1.0, {}, None),
            (float("nan"), {"most": 0.01}, False),
        ],
    )
    def test_goals(self, value: float, goal: dict[str, float], met: bool | None) -> None:
        assert Figure("a", value, "%", **goal).met is met

    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [(0.0123, "%", "1.23%"), (21_512.4, "images/s", "21,512 images/s"), (1.456, "×", "1.46×"), (3, "", "3")],
    )
    def test_text(self, value: float, unit: str, text: str) -> None:
        assert written(value, unit) == text
        assert Figure("a", 0, unit, least=value).asked == f"at least {text}"

    def test_a_log_loses_only_a_line_that_was_cut_off(self, tmp_path: Path) -> None:
        path, figure, lack = tmp_path / "log", Figure("a", 1.5, "GB/s", most=2.0), Lack("b", "why | not")
        for each in (figure, lack):
            record.append(path, each)
        whole = path.read_text()
        path.write_text(whole + whole.splitlines()[0][:30])
        assert record.read(path) == ((figure,), (lack,))
        assert record.read(tmp_path / "none") == ((), ())


class TestArithmetic:
    def test_a_window_of_the_meter(self) -> None:
        """10 steps of 1 second, half of it waiting, then 30 of 2 seconds with 1.5 seconds of waiting in all."""
        begun = MeterStats("cuda", 1, 11, 10, None, 1.0, 1.0, 0.5, Stall(0.5, 0.5), None, None, {})
        ended = replace(begun, steps=40, step_mean_s=1.75, stall=Stall(6.5 / 70, 6.5 / 70))
        assert window(begun, ended) == pytest.approx(1.5 / 60)
        with pytest.raises(RuntimeError, match="saw no step: 10 before, 10 after"):
            window(begun, begun)

    @pytest.mark.parametrize(("count", "errors"), [("3 errors\n", 3), ("0 errors", 0), ("", None)])
    def test_errors_of_compute_sanitizer(self, count: str, errors: int | None) -> None:
        assert stress.errors_in(f"========= ERROR SUMMARY: {count}") == errors


class TimedDevice:
    """The part of torch.cuda that times a sample: each call takes `launching` cycles of the host."""

    def __init__(self, launching: int) -> None:
        self.launching, self.busy, self.now = launching, 0, 0

    def sleep(self, cycles: int) -> None:
        self.busy, self.now = cycles, 0

    def call(self) -> None:
        self.now += self.launching

    def event(self, enable_timing: bool) -> TimedDevice:
        assert enable_timing
        return self

    def record(self) -> None:
        """Events stand for their order alone."""

    def query(self) -> bool:
        return self.now > self.busy

    def elapsed_time(self, end: TimedDevice) -> float:
        return 4.0


class TestTheDevicesTime:
    @pytest.mark.parametrize("launching", [clock.BUSY // 2, 2 * clock.BUSY])
    def test_a_host_that_is_late_gets_more_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launching: int
    ) -> None:
        assert self.timed(tmp_path, monkeypatch, TimedDevice(launching)) == pytest.approx(4e-3)

    def test_a_host_that_waits_for_the_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(RuntimeError, match="the host took longer to launch it"):
            self.timed(tmp_path, monkeypatch, TimedDevice(2 * clock.LONGER))

    def timed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: TimedDevice) -> float:
        monkeypatch.setattr(torch.cuda, "Event", device.event)
        monkeypatch.setattr(torch.cuda, "_sleep", device.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        return clock.on_device(Job(tmp_path, tmp_path / "log", torch.device("cuda"), 60), device.call)


class TestPage:
    def outcomes(self) -> dict[str, Outcome]:
        figures = (
            Figure("the best, batches of 8", 5e5, "images/s", least=1e6),
            Figure("batches of 8", 5e5, "images/s"),
        )
        return {
            "resident": Outcome(figures, (), 12.3),
            "stress": Outcome((), (Lack("compute-sanitizer", "not on the PATH"),), 50.0, "Stopped after 50 s."),
        }

    def test_asked_found_and_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchmarks.gpu.page.device_name", lambda _: "NVIDIA H100 80GB HBM3")
        monkeypatch.setattr("benchmarks.gpu.page.about", lambda _: ["80 GiB"])
        text = page(self.outcomes(), torch.device("cuda"), "the command", quick=False)
        assert "| the best, batches of 8 | 500,000 images/s | at least 1,000,000 images/s | **no** |" in text
        assert "| compute-sanitizer: errors | not measured |  | **no** |" in text
        assert "- stress: compute-sanitizer: not on the PATH\n- stress: Stopped after 50 s." in text
        assert "- Command: `the command`" in text
        assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"

    def test_a_trial_asks_nothing(self) -> None:
        text = page(self.outcomes(), CPU, "", quick=True)
        assert "nothing is asked" in text
        assert "**no**" not in text

    def test_the_command_names_no_folder_of_the_machine(self) -> None:
        asked = argparse.Namespace(
            only=["resident"], quick=True, device=torch.device("cpu"), seconds=9.0, data=Path("/a"), output=Path("/b")
        )
        assert bench_gpu.options_of(asked) == ["--only", "resident", "--quick", "--device", "cpu", "--seconds", "9"]

    def test_every_part_has_its_time(self) -> None:
        assert sum(part.seconds for part in PARTS[:-1]) < bench_gpu.SECONDS < 480
        assert lacking({}) == "Everything was."


class TestParts:
    """Each on a CPU. Parts note that a GPU or a library is missing."""

    def figures(self, job: Job) -> set[str]:
        figures, _ = record.read(job.log)
        assert all(np.isfinite(figure.value) and figure.met is None for figure in figures)
        return {figure.name for figure in figures}

    def lacks(self, job: Job) -> dict[str, str]:
        return {lack.what: lack.why for lack in record.read(job.log)[1]}

    def test_data(self, made: Job) -> None:
        assert self.lacks(made) == {}
        assert "packed photographs: bytes each" in self.figures(made)
        assert len(list((made.data / "files").rglob("*.jpg"))) == data.FEW

    @pytest.mark.parametrize(
        ("part", "lacks", "but"),
        [
            (transfer, set(), ()),
            (decode, set(), ()),
            (pixels, set(), ()),
            (finishing, {"decoding alone, batches of 8"}, None),
            (resident, set(), ()),
            (stress, {"decode='gpu'", "compute-sanitizer"}, ("gpu", "sanitizer")),
        ],
        ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
    )
    def test_every_goal_has_a_figure(self, job: Job, part: Any, lacks: set[str], but: tuple[str, ...] | None) -> None:
        part.run(job)
        name, found = part.__name__.rpartition(".")[2], self.figures(job)
        missing = self.lacks(job)
        if part is decode:  # other decoders may be missing too
            assert "NVIDIA GPU" in missing["packed, decode='gpu'"]
        else:
            assert missing.keys() == lacks
        (its,) = (each for each in PARTS if each.name == name)
        if but is None:
            assert found == {f"8 decoded images, {recipe}" for recipe in finishing.RECIPES}
        else:
            goals = [ask for ask in its.asks if not any(word in ask for word in but)]
            assert [goal for goal in goals if not any(each.startswith(goal) for each in found)] == []
        if part in (pixels, stress):  # pixels that differ, batches that are wrong
            assert {figure.value for figure in record.read(job.log)[0]} == {0}

    @pytest.mark.slow  # 8 s
    def test_training(self, job: Job) -> None:
        training.run(job)
        found = self.figures(job)
        assert "three convolutions, FastLoader, packed: exposed stall, beside a batch that stays" in found
        assert "into nothing, FastLoader, originals" in found
        assert "CUDA" in self.lacks(job)["torchvision: decoded on the GPU, into nothing"]

    def test_stress_finds_a_wrong_batch(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        quiet = stress.quiet

        def damaged(job: Job, loader: object) -> list[torch.Tensor]:
            batches = quiet(job, loader)  # type: ignore[arg-type]
            batches[3][1, 2, 5, 5] ^= 1
            return batches

        monkeypatch.setattr(stress, "quiet", damaged)
        stress.stressed(job, "cpu")
        assert record.read(job.log)[0][0].value == 1

    def test_a_step_that_fails_alone(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        job.attempt("a", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        job.attempt("b", lambda: job.figure("c", 1, ""))
        replace(job, seconds=0).attempt("d", lambda: job.figure("e", 1, ""))
        assert self.figures(job) == {"c"}
        assert self.lacks(job) == {
            "a": "ZeroDivisionError: integer division or modulo by zero",
            "d": "the part's time was used up",
        }
        assert "ZeroDivisionError" in capsys.readouterr().err
        assert one_line("\n a | b\nc" + "x" * 999) == "a / b"
        assert len(one_line("x" * 999)) == ONE_LINE


class TestBenchProgram:
    def test_a_part_that_hangs_or_dies_keeps_its_figures(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            assert outcome.seconds < 10
        assert outcome.lacks == (Lack("what it said last", "bad luck"),)
        assert "used up" in bench_gpu.run(part, tmp_path, 0, []).ended

    @pytest.mark.slow
    def test_the_command(self, made: Job, tmp_path: Path) -> None:
        """As a user gives it, on the data of an earlier run."""
        output = tmp_path / "page.md"
        options = ["--device", "cpu", "--quick", "--data", str(made.data), "--output", str(output)]
        run = subprocess.run(
            ["tools/gpu_session.sh", *options, "--only", "resident"],
            cwd=ROOT,
            env={**os.environ, "PYTHON": sys.executable, "WHEELS": str(tmp_path), "IOFAST_COMMIT": "abc1234"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert run.returncode == 0, run.stderr
        text = output.read_text()
        assert run.stdout.strip() == text.strip()
        assert "## Images of 32 x 32 in the device's memory" in text
        assert "| different photographs | 32 |" in text
        assert "0 of 30 s." in text
        assert "- Commit abc1234, " in text

    def test_without_a_gpu(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is one")
        run = forked.run([sys.executable, "-m", "benchmarks.bench_gpu"], cwd=ROOT)
        assert run.returncode == 0
        assert run.stdout == ""
        assert run.stderr.splitlines()[-1] == "no CUDA device here: --device cpu --quick tries the program out"

    def test_the_documented_parts(self) -> None:
        assert all(f"    {name} " in (bench_gpu.__doc__ or "") for name in NAMES)
