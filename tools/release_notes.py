"""The changelog's part of a version: `python -m tools.release_notes v1.2.0`."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(changelog: str, version: str) -> str:
    """The text below `## [VERSION]`. Raises `ValueError` without such a heading."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"expected a heading `## [{version}]` in {CHANGELOG.name}, found none")
    return found[1].strip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(notes(CHANGELOG.read_text(), sys.argv[1].removeprefix("v")))
