"""The repository's own rules: sizes, names, documents that match the code."""

import ast
import io
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

import iofast
from iofast.cli import main
from tools import site

PYTHON = sorted(
    path
    for folder in ("iofast", "tools", "examples", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

MAX_LINES = 400  # a file that is longer holds two concepts
MAX_CODE_LINES = 60  # of one function
VAGUE = re.compile(r"(?i:manager|helper|utils?(?![a-z])|engine|smart)|Processor")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files() -> None:
    assert [f"{name_of(path)}: {fault}" for path in PYTHON for fault in faults(path)] == []


def faults(path: Path) -> Iterator[str]:
    text = path.read_text()
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    names = [node.name for node in ast.walk(tree) if isinstance(node, FUNCTION | ast.ClassDef)]
    if (lines := len(text.splitlines())) > MAX_LINES:
        yield f"{lines} lines"
    if tree.body and not ast.get_docstring(tree):
        yield "no docstring"
    for function in functions:
        if (lines := code_lines(function, text)) > MAX_CODE_LINES:
            yield f"{lines} lines of code in {function.name}"
    yield from (f"the vague name {name}" for name in (path.stem, *names) if VAGUE.search(name))
    if path.is_relative_to(ROOT / "iofast"):
        public = [n for n in tree.body if isinstance(n, FUNCTION | ast.ClassDef) and n.name[0] != "_"]
        yield from (f"no docstring of {each.name}" for each in public if not ast.get_docstring(each))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    """Lines of the function that are neither blank, nor comment, nor its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    lines = text.splitlines()[body[0].lineno - 1 : function.end_lineno] if body else []
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def test_nothing_unfinished_and_no_machine_of_ours() -> None:
    wrong = r"\b(TODO|FIXME|XXX|NotImplementedError)\b|(?<![\w.$}])/(work|root|home|Users)/\w+"
    command = ["git", "grep", "-nIP", wrong, "--", ":!tests/repository/test_repository.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode > 1:
        pytest.skip("not a git checkout")
    assert found.stdout == ""


def test_public_surface() -> None:
    assert len(iofast.__all__) <= 12
    assert [name for name in iofast.__all__ if not hasattr(iofast, name)] == []
    with pytest.raises(AttributeError, match=r"no attribute 'FastLoder': did you mean FastLoader\?$"):
        _ = iofast.FastLoder  # type: ignore[attr-defined]


def test_version_is_in_the_changelog() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert iofast.__version__ in headings or "Unreleased" in headings


def test_each_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in tomllib.loads(text)["project"]["dependencies"]:
        assert re.search(rf'"{re.escape(requirement)}",\s+# \w+', text), requirement


def test_links_lead_somewhere() -> None:
    found = [(path, re.findall(r"\]\(([^)#\s]+)[^)]*\)", site.local(path.read_text()))) for path in DOCUMENTS]
    inside = [(path, link) for path, links in found for link in links if "://" not in link]
    assert [f"{name_of(path)}: {link}" for path, link in inside if not (path.parent / link).exists()] == []


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_commands_in_documents_exist() -> None:
    """Each `iofast COMMAND --flag` and `make WORD` in a shell block is one that exists."""
    makefile = (ROOT / "Makefile").read_text()
    shell = [line for path in DOCUMENTS for block in blocks(path, "bash") for line in block.splitlines()]
    for line in (line.split("  #")[0] for line in shell):
        if made := re.match(r"make ([a-z-]+)", line):
            assert re.search(rf"^{made[1]}:", makefile, re.MULTILINE), line
        if called := re.match(r"iofast ([a-z]+)(.*)", line):
            usage = _help(called[1])
            own = called[2].split(" -- ")[0]  # what follows belongs to the program that is started
            assert [f for f in re.findall(r"(?<!\S)--[a-z-]+", own) if f not in usage] == [], line


@cache
def _help(command: str) -> str:
    with redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        main([command, "--help"])
    assert said.getvalue(), f"iofast {command}"
    return said.getvalue()
