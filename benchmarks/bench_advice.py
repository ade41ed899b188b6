"""From a slow training to a fast one by the monitor's advice alone: predicted and reached rates, side by side.

    python -m benchmarks.bench_advice [--photos DIR] [--seconds 60] [--quick]

It starts with examples/plain_loader.py. Each round runs the script under `iofast monitor --once --json`, and follows
one piece of advice to the letter, the smallest change first: workers, then packing with the loader that reads what was
packed. The command is run, the line is changed, the lines are pasted over those that give the same names. The next
round has the rate that this reached. The table goes into docs/by-advice.md, too. About a minute a round.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, photographs
from tools import machine
from tools.machine import ROOT

SCRIPT, DOCUMENT = ROOT / "examples" / "plain_loader.py", ROOT / "docs" / "by-advice.md"
TABLE = re.compile(r"^\| round \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)
ROUNDS = 4
_PACKING = ("pack", "pack_resize")
_FOLLOWED = {  # advice that this program can follow, the smallest change first: the prediction of what it brings
    "first_workers": "workers",
    "num_workers": "workers",
    "pack": "pack",
    "pack_resize": "pack",
    "fastloader": "fastloader",
}


@dataclass(frozen=True)
class Round:
    """A run of the script: its rate, its verdict, and what was predicted for the advice that is followed next."""

    rate: float
    verdict: str
    advice: str
    predicted: tuple[float, float] | None  # images a second


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


def watched(folder: Path, seconds: float) -> tuple[float, dict[str, Any]]:
    """Images a second of `folder`/train.py, which trains for `seconds`, and what the monitor prints of it."""
    command = [sys.executable, "-m", "iofast", "monitor", "--once", "--json", "--", sys.executable, "train.py"]
    run = subprocess.run(command, cwd=folder, env=_environment(seconds), capture_output=True, text=True, check=False)
    rate = re.search(r"([\d,]+) images/s", run.stdout)
    seen = [line for line in run.stderr.splitlines() if line.startswith("{")]
    if rate is None or not seen:
        raise RuntimeError(f"train.py ended with status {run.returncode}: {run.stderr[-2000:]}")
    return float(rate[1].replace(",", "")), json.loads(seen[-1])


def _environment(seconds: float) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": paths, "SECONDS": str(seconds)}


def follow(folder: Path, advice: Sequence[dict[str, Any]]) -> list[str]:
    """Follow one piece of advice in `folder`, and after packing the loader that reads it; return the names."""
    order = list(_FOLLOWED)
    possible = sorted((one for one in advice if one["name"] in order), key=lambda one: order.index(one["name"]))
    chosen = possible[:1]
    if chosen and chosen[0]["name"] in _PACKING:
        chosen += [one for one in possible if one["name"] == "fastloader"]
    script = folder / "train.py"
    for one in chosen:
        if one["name"] in _PACKING:
            command = shlex.split(one["change"])
            subprocess.run([sys.executable, "-m", *command, "--quiet"], cwd=folder, env=_environment(0), check=True)
        else:
            script.write_text(followed(script.read_text(), one["change"]))
    return [one["name"] for one in chosen]


def rounds(folder: Path, seconds: float) -> list[Round]:
    """Run `folder`/train.py and follow the advice until there is none left, at most `ROUNDS` times."""
    found: list[Round] = []
    while len(found) <= ROUNDS:
        rate, seen = watched(folder, seconds)
        verdict = ": ".join(filter(None, (seen["verdict"], seen["cause"])))
        names = follow(folder, seen["advice"]) if len(found) < ROUNDS else []
        bands = {one["name"]: (one["low"] * rate, one["high"] * rate) for one in seen["what_if"]}
        predicted = next((bands[to] for name in reversed(names) if (to := _FOLLOWED[name]) in bands), None)
        changes = [line for one in seen["advice"] if one["name"] in names for line in _lines(one)]
        advice = "; ".join(f"`{line}`" for line in changes).replace(f"{folder.resolve()}/", "")
        found.append(Round(rate, verdict, advice, predicted))
        if not names:
            break
    return found


def _lines(advice: dict[str, Any]) -> list[str]:
    """The command of an advice, or its statements, each in one line."""
    change = advice["change"]
    return [change] if advice["name"] in _PACKING else [ast.unparse(one) for one in ast.parse(change).body]


def page(found: Sequence[Round], kind: str) -> str:
    """A row for each round, with the rate that was predicted for it."""
    rows, expected = [], ""
    for number, one in enumerate(found):
        gained = "" if not number else f"{one.rate / found[0].rate:.1f}"
        rows.append((str(number), one.verdict, expected, f"{one.rate:,.0f}", gained, one.advice))
        band = one.predicted
        expected = "–" if band is None else f"{band[0]:,.0f} to {band[1]:,.0f}"
    return f"""# From slow to fast by the monitor's advice

examples/plain_loader.py; each row has followed the advice of the row above. {kind}. Rates are images a second.

{measure.table(("round", "verdict", "predicted", "reached", "times", "advice, followed next"), rows)}
"""


def main() -> None:
    parser = measure.parser(__doc__, seconds=60.0)
    parser.add_argument("--quick", action="store_true", help="a trial with few images; its figures mean nothing")
    arguments = parser.parse_args()
    with photographs.workplace(arguments.photos, None, 8 if arguments.quick else 150) as (folder, photos):
        train = photos / "train"  # sample photographs have two splits
        shutil.copytree(train if train.is_dir() else photos, folder / "images")
        (folder / "train.py").write_text(SCRIPT.read_text())
        found = rounds(folder, arguments.seconds)
    text = page(found, "Real photographs" if arguments.photos else "Generated sample photographs")
    command = "- Command: `python -m benchmarks.bench_advice`\n"
    measure.write("by-advice", f"{text}\n{machine.describe()}\n{command}", arguments.output)
    if arguments.output is None and (table := TABLE.search(text)) is not None:
        DOCUMENT.write_text(TABLE.sub(lambda _: table[0], DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
