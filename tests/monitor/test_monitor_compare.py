"""`iofast monitor --compare`: the change and its noise, the exit status, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iofast.cli import main
from iofast.errors import SourceError
from iofast.monitor.compare import compare


def intervals(path: Path, *rates: float | None, **changes: Any) -> Path:
    own = {"verdict": "input-bound", "cause": "storage", "stall": {"low": 0.3, "high": 0.4}}
    lines = [{**own, **changes, "figures": {"images_per_s": rate, "main_cores": 1.0}} for rate in rates]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_change_with_its_noise(tmp_path: Path) -> None:
    before = intervals(tmp_path / "before", 100.0, 110.0, 90.0)
    after = intervals(tmp_path / "after", 200.0, 220.0, 180.0, verdict="compute-bound", cause=None)
    found = compare(before, after)
    assert found.change is not None
    assert found.change.value == pytest.approx(1.0)
    error = 10 / 3**0.5 / 100  # of each mean, relative
    assert found.change.error == pytest.approx(2 * (2 * error**2) ** 0.5)
    text = found.markdown()
    assert "| verdict | input-bound: storage | compute-bound |  |" in text
    assert "| images a second | 100 ± 12 | 200 ± 23 | +100.0% |" in text
    assert text.endswith("100.0% faster (± 32.7%).")


def test_noise_is_no_change(tmp_path: Path) -> None:
    before, after = intervals(tmp_path / "a", 100.0, 140.0, 60.0), intervals(tmp_path / "b", 95.0, 120.0, 70.0)
    found = compare(before, after)
    assert "No change beyond the noise" in found.markdown()
    assert not found.slower(0.0)


def test_no_rates(tmp_path: Path) -> None:
    found = compare(intervals(tmp_path / "a", None), intervals(tmp_path / "b", 95.0))
    assert found.change is None
    assert not found.slower(0.0)
    assert "| cores of the training process | 1 ± 0 | 1 ± 0 | +0.0% |" in found.markdown()


@pytest.mark.parametrize(("limit", "status"), [("5%", 4), ("0.05", 4), ("15%", 0)])
def test_exit_status(tmp_path: Path, limit: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = intervals(tmp_path / "a", 100.0, 100.0), intervals(tmp_path / "b", 90.0, 90.0)
    assert main(["monitor", "--compare", str(before), str(after), "--fail-slower", limit]) == status
    assert "10.0% slower" in capsys.readouterr().out


@pytest.mark.parametrize("limit", ["much", "-1%", "100%"])
def test_a_limit_that_is_no_share(tmp_path: Path, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(intervals(tmp_path / "a", 1.0))
    assert main(["monitor", "--compare", path, path, f"--fail-slower={limit}"]) == 2
    assert "--fail-slower must be a share such as 5%" in capsys.readouterr().err


def test_a_limit_without_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--fail-slower", "5%"]) == 2
    assert "--fail-slower was given without --compare" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"x": 1}'])
def test_other_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(SourceError, match="expected the output of iofast monitor --json"):
        compare(intervals(tmp_path / "a", 1.0), tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        compare(tmp_path / "none", tmp_path / "other")
