"""The part of bench_gpu.py that runs the tests: it reads pytest's output, also of a stopped run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import record, suite
from benchmarks.gpu.job import Job

WHOLE = "FAILED tests/a.py::b - assert 3 passed\n= 1 failed, 20 passed, 2 skipped, 1 error in 3.21s ="
STOPPED = """tests/a.py::b PASSED                   [  3%]
tests/a.py::c[x y] FAILED              [  6%]
tests/a.py::d SKIPPED (no two GPUs)    [  9%]
tests/a.py::e """

OF_MANY = "[gw3] [  1%] PASSED tests/a.py::b \n[gw0] [  2%] FAILED tests/a.py::c[x y] \ntests/a.py::d \n"


def test_counts() -> None:
    assert suite.counted(WHOLE) == {"failed": 2, "passed": 20, "skipped": 2}
    assert suite.counted("killed") == suite.counted(STOPPED) == {}
    assert suite.so_far(STOPPED) == {"passed": 1, "failed": 1, "skipped": 1}
    assert suite.so_far("tests/a.py::e ") == {}
    assert suite.so_far(OF_MANY) == {"passed": 1, "failed": 1, "skipped": 0}


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, ended: str) -> tuple[dict[str, float], list[str]]:
    """The figures, and what is missing, if pytest prints `text`."""
    commands: list[list[str]] = []

    def ran(command: list[str], output: Any, seconds: float) -> str:
        commands.append(command)
        output.write(text if "-n" in command else "= 3 passed in 1.2s =")
        return ended if "-n" in command else ""

    monkeypatch.setattr(Job, "cuda", True)
    monkeypatch.setattr(suite, "_ran", ran)
    job = Job(tmp_path, tmp_path / "log.jsonl", torch.device("cpu"), 60)
    suite.run(job)
    (alone, together) = commands
    assert any(name.endswith("test_transfer_gpu.py") for name in together)
    assert [name for name in together if "test_monitor" in name] == [], "they judge the load of the whole GPU"
    assert any(name.endswith("test_monitor_nvml.py") for name in alone)
    assert "-n" not in alone
    figures, lacks = record.read(job.log)
    return {figure.name: figure.value for figure in figures}, [f"{lack.what}: {lack.why}" for lack in lacks]


def test_a_run_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, lacks = run(tmp_path, monkeypatch, WHOLE, "")
    assert figures == {"tests passed": 23, "tests failed": 2, "tests skipped": 2}
    assert lacks == ["test failed: tests/a.py::b - assert 3 passed"]


def test_tests_that_take_too_long_lose_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, lacks = run(tmp_path, monkeypatch, STOPPED, "not through after 5 s")
    assert figures == {"tests passed": 4, "tests failed": 1, "tests skipped": 1}
    assert lacks == [
        "the tests behind those that are counted: not through after 5 s",
        "test failed: tests/a.py::c[x y]",
        "test skipped: tests/a.py::d",
    ]


def test_a_run_without_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, "Segmentation fault", "") == ({}, ["pytest -m gpu: Segmentation fault"])


@pytest.mark.slow  # ten seconds of a program that sleeps
def test_a_stopped_run_keeps_its_output(tmp_path: Path) -> None:
    """Python does not buffer it."""
    program = "import time; print('tests/a.py::b PASSED'); time.sleep(600)"
    with (tmp_path / "said").open("w") as file:
        assert suite._ran([sys.executable, "-c", program], file, 10) == "not through after 10 s"
    assert suite.so_far((tmp_path / "said").read_text())["passed"] == 1
