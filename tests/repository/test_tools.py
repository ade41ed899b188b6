"""The repository's own tools: long runs, benchmarks and their pages, the table of interop, the text of a release."""

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from benchmarks import measure
from benchmarks.rivals import contenders, page
from benchmarks.rivals.contenders import CASES, CONTENDERS, OWN, PEERS
from tools.interop.__main__ import READERS, WRITERS, Peer, pinned, table
from tools.interop.environments import ENVIRONMENTS
from tools.interop.pages import PAGES
from tools.interop.peers import readers, writers
from tools.release_notes import CHANGELOG, notes
from tools.torture import NotTried
from tools.torture import __main__ as torture
from tools.torture.__main__ import PARTS, main


def test_each_long_run_states_what_must_hold() -> None:
    assert "kills" in PARTS
    table = (ROOT / "CONTRIBUTING.md").read_text()
    for name in PARTS:
        assert f"`{name}`" in table
        assert "\ndef run() -> list[str]:" in (ROOT / "tools" / "torture" / f"{name}.py").read_text()
    assert main(["nothing-of-this-name"]) == 2


def test_a_part_that_cannot_run_leaves_the_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> list[str]:
        raise NotTried("it needs a network")

    monkeypatch.setattr(torture, "RESULTS", tmp_path)
    monkeypatch.setattr(torture, "import_module", lambda _: SimpleNamespace(__doc__="A question.", run=missing))
    assert main(["stored_nodes"]) == 0
    assert "stored_nodes: NOT TRIED: it needs a network" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["load", "pack", "kernel", "stored"])
def test_parts_of_a_benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is on the command line, and its description names it."""
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(measure, "run", lambda doc, parts: seen.append(parts))
    runpy.run_module(f"benchmarks.bench_{name}", run_name="__main__")
    (parts,) = seen
    assert parts
    text = (ROOT / "benchmarks" / f"bench_{name}.py").read_text().split('"""')[1]
    assert [part for part in parts if part not in text] == []


def test_the_text_of_a_release() -> None:
    text = "# Changelog\n\n## [1.2.0]\n\n### Added\n\n- one\n\n## [1.1.0]\n\n- old\n"
    assert notes(text, "1.2.0") == "### Added\n\n- one\n"
    assert notes(CHANGELOG.read_text(), "Unreleased")


def test_contenders_are_complete() -> None:
    assert len({each.label for each in CONTENDERS}) == len(CONTENDERS)
    assert CONTENDERS[0].label == "iofast", "ratios are to the first row"
    for each in CONTENDERS:
        assert each.environment == OWN or each.environment in contenders.ENVIRONMENTS
        assert (PEERS / each.script).is_file()
        assert set(each.cases) <= set(CASES)
    assert all(sum(case in each.cases for each in CONTENDERS) > 1 for case in CASES), "a rival in each"
    scripts = {path.name for path in PEERS.glob("*_loop.py")}
    assert scripts == {each.script for each in CONTENDERS}


@pytest.mark.parametrize("environment", contenders.ENVIRONMENTS)
def test_environments_are_pinned(environment: str) -> None:
    own = {each.package for each in CONTENDERS if each.environment == environment}
    wanted = [*contenders.ENVIRONMENTS[environment].requirements, *contenders.ENVIRONMENTS[environment].alone]
    pinned = {each.partition("==")[0] for each in wanted if "==" in each}
    assert own <= pinned, "the version of a rival is a part of its figures"


def test_the_table_of_the_readme_is_that_of_the_figures() -> None:
    found = json.loads((measure.RESULTS / "rivals.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert page.with_table(readme, page.summary(found)) == readme
    assert (measure.RESULTS / "rivals.md").read_text() == page.page(found)


EVERY = (*READERS, *WRITERS)


@pytest.mark.parametrize("peer", EVERY, ids=lambda peer: peer.name)
def test_row(peer: Peer) -> None:
    program, version, does, result = re.split(r" *\| *", table()[peer.name])[1:5]
    assert (program, version, does) == (peer.name, pinned(peer), peer.does)
    assert re.fullmatch(r"all \d+ records alike|not run: .+", result)


def test_every_program_is_a_peer() -> None:
    for peers, module in ((READERS, readers), (WRITERS, writers)):
        assert {peer.program for peer in peers} == {program.__name__ for program in module.PROGRAMS}
    assert set(table()) == {peer.name for peer in EVERY}
    used = {each.environment for each in (*EVERY, *PAGES.values())}
    assert used == set(ENVIRONMENTS)
