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
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
_EACH = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)
_NAMED = re.compile(r"^(FAILED|ERROR|SKIPPED) (.*)$", re.MULTILINE)


def run(job: Job) -> None:
    if not job.cuda:
        job.lacks("pytest -m gpu", "it needs a CUDA device")
        return
    if missing := [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]:
        job.lacks("pytest -m gpu", f"{' and '.join(missing)} not installed")
        return
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    options = ["-m", "gpu", "-v", "-rfEs", "--tb=short", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    log = job.data / "pytest.txt"
    with log.open("w") as file:
        ended = _ran([sys.executable, "-m", "pytest", *options, *QUIET, *files], file, job.left() - SPARE)
    said = log.read_text()
    print(said)
    counts = counted(said) or so_far(said)
    if not counts:
        job.lacks("pytest -m gpu", ended or one_line(said[-200:]))
        return
    if ended:
        job.lacks("the tests behind those that are counted", ended)
    for word in ("passed", "failed", "skipped"):
        job.figure(f"tests {word}", counts.get(word, 0), "", most=0 if word == "failed" else None)
    for word, name in _NAMED.findall(said) or [(word, name) for name, word in _EACH.findall(said) if word != "PASSED"]:
        job.lacks(f"test {word.lower()}", name)


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
    words = Counter(word for _, word in _EACH.findall(text))
    found = {"passed": words["PASSED"], "failed": words["FAILED"] + words["ERROR"], "skipped": words["SKIPPED"]}
    return found if any(found.values()) else {}
