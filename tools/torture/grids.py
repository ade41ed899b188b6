"""The tests marked slow hold: full grids and large numbers of examples that `make test` has no time for."""

from __future__ import annotations

import re
import subprocess
import sys

from tools.torture import Failed


def run() -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-m", "slow", "-p", "no:cacheprovider"]
    result = subprocess.run(command, capture_output=True, text=True)
    print(result.stdout)
    if result.returncode == 5:
        return ["- no test is marked slow"]
    if result.returncode:
        raise Failed(f"pytest ended with {result.returncode}: {result.stdout.splitlines()[-1]}")
    summary = re.sub(r"=+", "", result.stdout.splitlines()[-1]).strip()
    return [f"- {summary}"]
