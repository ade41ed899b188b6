"""The Python in the documents for users runs, from top to bottom, as a reader would type it."""

import importlib.util
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import type_in
from places import ROOT

from iofast import FastDataset, FastLoader, order, pack, transforms
from iofast.order import Mode
from tools import option_tables
from tools.interop import pages

SPECIFICATIONS = {"format.md", "design.md", "map.md"}  # their fragments are no programs
TUTORIAL = ROOT / "docs" / "tutorial.md"  # has commands between its programs
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.name not in SPECIFICATIONS and path != TUTORIAL
]


def programs() -> Iterator[tuple[str, str]]:
    """Name and program (all Python blocks) of each document that has Python."""
    for path in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        if blocks:
            yield path.name, "\n".join(blocks)


@pytest.mark.parametrize("name", option_tables.PAGES)
def test_tables_of_options_are_those_of_the_code(name: str) -> None:
    text = (ROOT / name).read_text()
    assert option_tables.page(text) == text, "python -m tools.option_tables"
    assert "<!-- options: " in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's data: images/ in splits and classes; out.lmdb and imagenet.lmdb of them."""
    root = tmp_path_factory.mktemp("documents")
    pages.write_images(root)
    for name in ("out.lmdb", "imagenet.lmdb"):
        pack(root / "images", root / name, resize=256)
    return root


@pytest.mark.parametrize(("name", "program"), list(programs()), ids=[name for name, _ in programs()])
def test_python_in_documents_runs(
    name: str, program: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if "pack(" in program:
        (tmp_path / "out.lmdb").unlink()  # the program makes it
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(program, name, "exec", dont_inherit=True), names)
    names.clear()  # an iterator among them ends its threads now, not during another test


def test_tutorial(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and programs in turn, as a reader types them; the first program is torchvision's."""
    shutil.copytree(folder / "images", tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "__main__"}
    assert [language for language, _ in blocks].count("bash") == 2
    for language, text in blocks:
        if language == "bash":
            lines = [line for line in text.splitlines() if not line.startswith("pip ")]
            type_in("\n".join(lines).replace("iofast bench ", "iofast bench --seconds=0.1 "))
        elif "torchvision" not in text or importlib.util.find_spec("torchvision"):
            exec(compile(text, TUTORIAL.name, "exec", dont_inherit=True), names)
    names.clear()


def test_figures_of_the_tutorial_are_on_the_page_that_it_links() -> None:
    figures = re.findall(r"[\d.]+×", TUTORIAL.read_text())
    results = (ROOT / "benchmarks" / "results" / "rivals.md").read_text()
    assert figures
    assert [figure for figure in figures if figure not in results] == []


def test_every_option_of_loading_is_documented() -> None:
    reference = (ROOT / "docs" / "load-reference.md").read_text()
    names = {*inspect.signature(FastLoader).parameters, *inspect.signature(FastDataset).parameters}
    assert [name for name in sorted(names - {"dataset", "unknown"}) if f"`{name}`" not in reference] == []
    modes = [name for name in order.__all__ if inspect.isclass(mode := getattr(order, name)) and issubclass(mode, Mode)]
    plain = {"Sequential", "Shuffled", "Mode"}  # these are chosen with shuffle=
    assert [name for name in modes if name not in plain and f"`{name}(" not in reference] == []
    inner = {"Pipeline", "Transform", "compile"}  # not for users
    listed = (ROOT / "docs" / "transforms.md").read_text()
    assert [name for name in transforms.__all__ if name not in inner and f"`T.{name}" not in listed] == []


def test_files_of_the_map_exist() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    rows = re.findall(r"^\| (?!change|---)(.*?) \| (.*) \|$", text, re.MULTILINE)
    named = [(what, name) for what, files in rows for name in re.findall(r"`([\w/]+\.(?:py|[ch]|md))`", files)]
    assert len(named) > 40
    missing = []
    for what, name in named:
        places = [ROOT / "iofast" / name, ROOT / name, *(ROOT / "iofast" / "monitor" / "advice").glob(name)]
        missing += [] if any(place.is_file() for place in places) else [(what, name)]
    assert missing == []
