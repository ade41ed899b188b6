"""The benchmark beside rivals: its table of contenders, and the pages of its figures."""

import json

import pytest
from places import ROOT

from benchmarks import measure
from benchmarks.rivals import page
from benchmarks.rivals.contenders import CASES, CONTENDERS, ENVIRONMENTS, OWN, PEERS


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


def test_the_table_of_the_readme_is_that_of_the_figures() -> None:
    found = json.loads((measure.RESULTS / "rivals.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert page.with_table(readme, page.summary(found)) == readme
    assert (measure.RESULTS / "rivals.md").read_text() == page.page(found)
