"""The repository's own tools: the list of long runs, the parts of benchmarks, the text of a release."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from benchmarks import measure
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
