"""The site: every page is in it, every link of it holds, and it builds without a warning where mkdocs is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from tools import site


def test_links_hold(tmp_path: Path) -> None:
    site.stage(tmp_path)
    assert list(site.missing(tmp_path)) == []
    assert "[train.py](train.py): Train an image classifier" in (tmp_path / "examples" / "index.md").read_text()
    (tmp_path / "docs" / "faq.md").write_text("[nowhere](nothing.md#there)")
    assert list(site.missing(tmp_path)) == ["docs/faq.md: nothing.md"]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", site.CONFIGURATION.read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "notes"}
    assert pages <= listed


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs not installed: `make docs` does")
def test_it_builds_without_a_warning() -> None:
    ended = subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
