"""The repository's own rules: sizes, names, documents that match the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

import iofast
from tools import site

PYTHON = sorted(
    path
    for folder in ("iofast", "tools", "examples", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
SHIPPED = [path for path in PYTHON if path.is_relative_to(ROOT / "iofast")]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TESTS = ("test", "test-simd", "test-neon")
CHORES = (*TESTS, "demo", "check", "torture", "interop", "bench", "wheel", "clean", "system-deps")

MAX_LINES = 400  # a file that is longer holds two concepts
MAX_CODE_LINES = 60  # of one function
VAGUE = re.compile(r"(?i:manager|helper|utils?(?![a-z])|engine|smart)|Processor")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_file(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    tree = ast.parse(text)
    assert not tree.body or ast.get_docstring(tree), "the module has no docstring"
    assert not list(defined(tree)) or "from __future__ import annotations" in text
    assert [f"{n.name}: {code_lines(n, text)}" for n in functions(tree) if code_lines(n, text) > MAX_CODE_LINES] == []
    assert not VAGUE.search(path.stem)
    assert [name for name in defined(tree) if VAGUE.search(name)] == []


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def defined(tree: ast.AST) -> Iterator[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return (node.name for node in ast.walk(tree) if isinstance(node, kinds))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> int:
    """Lines of the function that are neither blank, nor comment, nor its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    if not body:
        return 0
    lines = text.splitlines()[body[0].lineno - 1 : function.end_lineno]
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def test_code_lines_counts_code() -> None:
    text = 'def f():\n    """Doc."""\n    # why\n\n    a = 1\n    return a\n'
    assert [code_lines(function, text) for function in functions(ast.parse(text))] == [2]


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_public_names_are_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def tracked_text() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".jpg", ".lmdb"} and not name.endswith("test_repository.py"):
            yield name, path.read_text(errors="replace")


def test_nothing_unfinished_and_no_machine_of_ours() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    machine = re.compile(r"(?<![\w.$}])/(?:work|root|home|Users)/\w+")
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_text()
        for pattern in (unfinished, machine)
        for match in pattern.finditer(text)
    ]
    assert found == []


def test_public_surface() -> None:
    assert len(iofast.__all__) <= 12
    missing = [name for name in iofast.__all__ if not hasattr(iofast, name)]
    assert missing == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = iofast.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'FastLoder': did you mean FastLoader\?$"):
        _ = iofast.FastLoder  # type: ignore[attr-defined]


def test_version_is_in_the_changelog() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert iofast.__version__ in headings or "Unreleased" in headings


def test_each_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in tomllib.loads(text)["project"]["dependencies"]:
        assert re.search(rf'"{re.escape(requirement)}",\s+# \w+', text), requirement


def test_one_word_per_chore() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert [chore for chore in CHORES if not re.search(rf"^{chore}:", makefile, re.MULTILINE)] == []
    assert "make check test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", site.local(path.read_text()))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_in_documents_exist(path: Path) -> None:
    """Each `iofast COMMAND --flag` and `make WORD` in a shell block is one that exists."""
    lines = [line.split("  #")[0] for block in blocks(path, "bash") for line in block.splitlines()]
    for line in lines:
        if made := re.match(r"make ([a-z-]+)", line):
            assert re.search(rf"^{made[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        if called := re.match(r"iofast ([a-z]+)(.*)", line):
            usage = _help(called[1])
            own = called[2].split(" -- ")[0]  # what follows belongs to the program that is started
            assert [f for f in re.findall(r"(?<!\S)--[a-z-]+", own) if f not in usage] == [], line


def _help(command: str, known: dict[str, str] = {}) -> str:  # noqa: B006 (remembers across calls, on purpose)
    if command not in known:
        program = f"import sys; from iofast.cli import main; sys.exit(main([{command!r}, '--help']))"
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, f"iofast {command}: {run.stderr}"
        known[command] = run.stdout
    return known[command]
