"""Parts that are a run of the tests."""

from __future__ import annotations

import re
import subprocess
import sys

from tools.torture import Failed


def run_tests(*words: str) -> list[str]:
    """pytest with these words: its summary, or `Failed`."""
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-p", "no:cacheprovider", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    print(result.stdout)
    if result.returncode == 5:
        return ["- there is no such test"]
    if result.returncode:
        raise Failed(f"pytest ended with {result.returncode}: {result.stdout.splitlines()[-1]}")
    summary = re.sub(r"=+", "", result.stdout.splitlines()[-1]).strip()
    return [f"- {summary}"]
