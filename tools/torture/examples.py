"""Every property holds for examples that no run has tried before; `make test` tries the same ones each time."""

import subprocess
import sys

from tools.torture import Failed


def run_tests(*words: str) -> list[str]:
    """Run pytest with these arguments and return its summary. Raises `Failed` if a test fails, or if there is none."""
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-p", "no:cacheprovider", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    print(result.stdout)
    summary = result.stdout.splitlines()[-1].strip("= ")
    if result.returncode:  # also if no test was selected
        raise Failed(f"pytest ended with {result.returncode}: {summary}")
    return [f"- {summary}"]


def run() -> list[str]:
    return run_tests("-m", "hypothesis", "--hypothesis-profile", "others", "-n", "auto", "--dist", "loadfile")
