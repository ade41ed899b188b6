"""The benchmark beside rivals: its table of contenders and its page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from places import ROOT

from benchmarks import measure
from benchmarks.rivals import page
from benchmarks.rivals.cases import CASES
from benchmarks.rivals.contenders import CONTENDERS, ENVIRONMENTS, OWN, PEERS


def test_contenders_are_complete() -> None:
    assert len({each.label for each in CONTENDERS}) == len(CONTENDERS)
    assert CONTENDERS[0].label == "iofast", "ratios are to the first row"
    for each in CONTENDERS:
        assert each.environment == OWN or each.environment in ENVIRONMENTS
        assert (PEERS / each.script).is_file()
        assert set(each.cases) <= set(CASES)
    assert all(sum(case in each.cases for each in CONTENDERS) > 1 for case in CASES), "a rival in each"
    scripts = {path.name for path in PEERS.glob("*_loop.py")}
    assert scripts == {each.script for each in CONTENDERS}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environments_are_pinned(environment: str) -> None:
    own = {each.package for each in CONTENDERS if each.environment == environment}
    wanted = [*ENVIRONMENTS[environment].requirements, *ENVIRONMENTS[environment].alone]
    pinned = {each.partition("==")[0] for each in wanted if "==" in each}
    assert own <= pinned, "the version of a rival is a part of its figures"


def _runs(*rates: float, **more: Any) -> list[dict[str, Any]]:
    return [{"rate": rate, "cpu_s": 0.2, **more} for rate in rates]


def _case(**rounds: list[dict[str, Any]]) -> dict[str, Any]:
    rounds = {name.replace("__", ", "): runs for name, runs in rounds.items()}
    first, peak = (dict.fromkeys(rounds, value) for value in ({"first": 1.5}, 3 << 20))
    return {
        "rounds": rounds,
        "first": first,
        "peak": peak,
        "missing": {"DALI": "no wheel"},
        "machine": "- Machine: this",
        "versions": ["dali 2"],
    }


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
    assert "- Rivals: dali 2" in lines


def test_limits_are_no_rivals() -> None:
    full = [each | {"cpu_s": 0.5} for each in _runs(500, 500, 500)]
    case = _case(iofast=_runs(1000, 1000, 1000), DALI=_runs(100, 100, 100))
    case["rounds"][page.DECODE], case["first"][page.DECODE], case["peak"][page.DECODE] = full, {"first": 0.0}, 0
    assert list(page.loaders(case)) == ["iofast", "DALI"]
    text = page.page({"crop": case, "float32": case})
    assert "| crop: iofast to DALI | 10.00 | 5.0 |" in text
    assert "| float32: iofast to DALI | 10.00 | 3.0 |" in text
    assert "| crop: processor time to that of a full decode | 0.40 | at most 0.49 |" in text
    assert f"| {page.DECODE} | 500 (500 – 500) | 2.00× | 0.50 | 0 |  |" in text


def test_a_cold_case_says_what_was_read_from_the_disk() -> None:
    case = _case(iofast=_runs(1000, read=990), HF=_runs(500, read=10)) | {"bytes": {"iofast": 1000, "HF": 1000}}
    text = page.page({"cold": case})
    assert "| iofast | 1,000 (1,000 – 1,000) | 1.00× | 0.20 | 3 | 0.99 |" in text
    assert "| HF | 500 (500 – 500) | 2.00× | 0.20 | 3 | 0.01 |" in text


def test_the_table_of_the_readme_is_that_of_the_figures() -> None:
    found = json.loads((measure.RESULTS / "rivals.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert page.with_table(readme, page.summary(found)) == readme
    assert (measure.RESULTS / "rivals.md").read_text() == page.page(found)


def test_a_summary_names_the_fastest_rival() -> None:
    case = _case(iofast=_runs(1000), FFCV__jpg=_runs(500), tf__data=_runs(250), Lance=_runs(2000))
    text = page.summary({"crop": case, "cold": case})
    assert text.splitlines()[0] == "| task | iofast, images/s | FFCV | DALI | tf.data | DataLoader | fastest rival |"
    assert text.splitlines()[2:] == ["| random crops | 1,000 | 2.0× |  |  |  | 0.5× Lance |"]
