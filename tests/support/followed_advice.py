"""The advice of a verdict, followed to the letter in a folder with `train.py`: what docs/by-advice.md shows."""

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from places import ROOT

SCRIPT = ROOT / "examples" / "plain_loader.py"
_PACKING = ("pack", "pack_resize")
_FOLLOWED = ("first_workers", "num_workers", *_PACKING, "fastloader")  # the smallest change first


def followed(text: str, change: str) -> str:
    """The script with the lines of `change` in place of its own: whole statements by the name that they give a value.

    `DataLoader(..., num_workers=2)` adds to the options of the call that the script has.
    """
    for statement in ast.parse(change).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            text = _with_options(text, statement.value)
        elif isinstance(statement, ast.Assign):
            text = _replaced(text, ast.unparse(statement.targets[0]), ast.unparse(statement))
        else:
            first = next(node for node in ast.parse(text).body if isinstance(node, ast.Import))  # not of __future__
            lines = text.splitlines()
            text = "\n".join([*lines[: first.lineno - 1], ast.unparse(statement), *lines[first.lineno - 1 :]]) + "\n"
    return text


def _assignments(text: str) -> list[ast.Assign]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign)]


def _replaced(text: str, name: str, line: str) -> str:
    node = next(one for one in _assignments(text) if ast.unparse(one.targets[0]) == name)
    lines = text.splitlines()
    indented = " " * node.col_offset + line
    return "\n".join([*lines[: node.lineno - 1], indented, *lines[node.end_lineno :]]) + "\n"


def _with_options(text: str, given: ast.Call) -> str:
    for node in _assignments(text):
        call = node.value
        if isinstance(call, ast.Call) and ast.unparse(call.func) == ast.unparse(given.func):
            names = {option.arg for option in given.keywords}
            call.keywords = [*(one for one in call.keywords if one.arg not in names), *given.keywords]
            return _replaced(text, ast.unparse(node.targets[0]), ast.unparse(node))
    raise ValueError(f"the script has no {ast.unparse(given.func)}(...)")


def environment(seconds: float) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": paths, "SECONDS": str(seconds)}


def follow(folder: Path, advice: Sequence[dict[str, Any]]) -> list[str]:
    """Follow one piece of advice in `folder`, and after packing the loader that reads it; return the names."""
    possible = sorted((one for one in advice if one["name"] in _FOLLOWED), key=lambda one: _FOLLOWED.index(one["name"]))
    chosen = possible[:1]
    if chosen and chosen[0]["name"] in _PACKING:
        chosen += [one for one in possible if one["name"] == "fastloader"]
    script = folder / "train.py"
    for one in chosen:
        if one["name"] in _PACKING:
            command = shlex.split(one["change"])
            subprocess.run([sys.executable, "-m", *command, "--quiet"], cwd=folder, env=environment(0), check=True)
        else:
            script.write_text(followed(script.read_text(), one["change"]))
    return [one["name"] for one in chosen]
