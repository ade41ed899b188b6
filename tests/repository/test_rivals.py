"""The benchmark beside rivals: its table of contenders, its page and its chart."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import page
from benchmarks.rivals.chart import THEMES, chart
from benchmarks.rivals.contenders import CONTENDERS, ENVIRONMENTS, OWN, PEERS


def test_contenders_are_complete() -> None:
    assert len({each.label for each in CONTENDERS}) == len(CONTENDERS)
    assert CONTENDERS[0].label == "iofast", "ratios are to the first row"
    for each in CONTENDERS:
        assert each.environment == OWN or each.environment in ENVIRONMENTS
        assert (PEERS / each.script).is_file()
        assert set(each.cases) <= set(page.CASES)
    scripts = {path.name for path in PEERS.glob("*_loop.py")}
    assert scripts == {each.script for each in CONTENDERS}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environments_are_pinned(environment: str) -> None:
    own = {each.package for each in CONTENDERS if each.environment == environment}
    wanted = [*ENVIRONMENTS[environment].requirements, *ENVIRONMENTS[environment].alone]
    pinned = {each.partition("==")[0] for each in wanted if "==" in each}
    assert own <= pinned, "the version of a rival is a part of its figures"


def _runs(*rates: float, **more: Any) -> list[dict[str, Any]]:
    return [{"rate": rate, "cpu_s": 0.2, "peak": 1 << 20, "first": 0.5, **more} for rate in rates]


def _case(**rounds: list[dict[str, Any]]) -> dict[str, Any]:
    rounds = {name.replace("__", ", "): runs for name, runs in rounds.items()}
    first = {name: {"peak": 3 << 20, "first": 1.5} for name in rounds}
    return {"rounds": rounds, "first": first, "missing": {"DALI": "no wheel"}, "machine": "- Machine: this"}


def test_the_page_says_who_is_ahead() -> None:
    case = _case(iofast=_runs(1000, 1200, 1100), FFCV__raw=_runs(2000, 2000, 2000), FFCV__jpg=_runs(100, 200, 300))
    text = page.page({"crop": case})
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith(("| iofast |", "| FFCV"))]
    assert [row.split(" |")[0] for row in rows] == ["| FFCV, raw", "| iofast", "| FFCV, jpg"], "the fastest first"
    assert "| FFCV, raw | 2,000 (2,000 – 2,000) | 0.55× | 0.20 | 3 | 1.50 |" in text
    assert "| crop: iofast to FFCV, jpg | 6.00 | 5.0 |" in lines
    assert "| crop: iofast to FFCV, raw | 0.55 | 2.5 |" in lines, "also where it is short"
    assert "- DALI: not run: no wheel" in lines


@pytest.mark.parametrize("theme", THEMES)
def test_the_chart_is_a_picture_of_the_figures(theme: str, tmp_path: Path) -> None:
    text = chart("Rates <& more>", {"iofast": 1000.0, "A & B": 2000.0, "slow": 1.0}, theme)
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{space}rect")]
    labels = [each.text for each in root.iter(f"{space}text")]
    assert labels == ["Rates <& more>", "A & B", "2,000", "iofast", "1,000", "slow", "1"]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)
    assert widths[2] >= 1
