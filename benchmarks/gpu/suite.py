"""The tests that need a GPU: pytest -m gpu."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.gpu.job import Job, one_line

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
SPARE = 3  # seconds to write down the result
# Deprecations of other versions of libraries do not matter here; in the project's own runs they are errors.
QUIET = ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
# The monitor's tests judge the load of the whole GPU, so they run alone.
PROCESSES, ALONE = 8, "monitor"
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
_WORD = "(PASSED|FAILED|ERROR|SKIPPED)"
_EACH = re.compile(rf"^(\S+::.+?) {_WORD}\b", re.MULTILINE)
_EACH_OF_MANY = re.compile(rf"^\[gw\d+\] .*\] {_WORD} (\S+::.+?) *$", re.MULTILINE)
_NAMED = re.compile(r"^(FAILED|ERROR|SKIPPED) (.*)$", re.MULTILINE)


def run(job: Job) -> None:
    if not job.cuda:
        job.lacks("pytest -m gpu", "it needs a CUDA device")
        return
    if missing := [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]:
        job.lacks("pytest -m gpu", f"{' and '.join(missing)} not installed")
        return
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    alone = [path for path in files if path.parent.name == ALONE]
    others = [path for path in files if path not in alone]
    several = importlib.util.find_spec("xdist") is not None
    processes = ["-n", str(min(PROCESSES, job.cores)), "-p", "no:benchmark"] if several else []
    runs = [_tested(job, own, more) for own, more in ((alone, []), (others, processes)) if own]
    if not all(runs):  # a run that was not counted may have failed
        return
    for word in ("passed", "failed", "skipped"):
        job.figure(f"tests {word}", sum(run.get(word, 0) for run in runs), "", most=0 if word == "failed" else None)


def _tested(job: Job, files: list[Path], more: list[str]) -> dict[str, int]:
    """Run the tests of `files`; return their counts, and note what is missing or has failed."""
    options = ["-m", "gpu", "-v", "-rfEs", "--tb=short", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    log = job.data / "pytest.txt"
    with log.open("w") as file:
        command = [sys.executable, "-m", "pytest", *options, *QUIET, *more, *map(str, files)]
        ended = _ran(command, file, job.left() - SPARE)
    said = log.read_text()
    print(said)
    counts = counted(said) or so_far(said)
    if not counts:
        job.lacks("pytest -m gpu", ended or one_line(said[-200:]))
        return counts
    if ended:
        job.lacks("the tests behind those that are counted", ended)
    for word, name in _NAMED.findall(said) or [each for each in _each(said) if each[0] != "PASSED"]:
        job.lacks(f"test {word.lower()}", name)
    return counts


def _ran(command: list[str], output: object, seconds: float) -> str:
    """Run pytest; return how it ended, if not by itself."""
    try:
        subprocess.run(
            command,
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
            cwd=TESTS.parent,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},  # a stopped run keeps its output
        )
    except subprocess.TimeoutExpired:
        return f"not through after {seconds:.0f} s"
    return ""


def counted(text: str) -> dict[str, int]:
    """The counts in pytest's last line; errors are failures. Empty without such a line."""
    lines = [line for line in text.splitlines() if _COUNT.search(line) and " in " in line]
    found: dict[str, int] = {}
    for number, word in _COUNT.findall(lines[-1]) if lines else []:
        name = "failed" if word.startswith("error") else word
        found[name] = found.get(name, 0) + int(number)
    return found


def so_far(text: str) -> dict[str, int]:
    """The same for a run that was stopped, by its lines."""
    words = Counter(word for word, _ in _each(text))
    found = {"passed": words["PASSED"], "failed": words["FAILED"] + words["ERROR"], "skipped": words["SKIPPED"]}
    return found if any(found.values()) else {}


def _each(text: str) -> list[tuple[str, str]]:
    """(word, name) of each test that has ended."""
    return [(word, name) for name, word in _EACH.findall(text)] + _EACH_OF_MANY.findall(text)
