"""The site: every page is in it, every link of it holds, and it builds without a warning where mkdocs is installed."""

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
    logs = [*tmp_path.glob("benchmarks/results/torture-*.md")]
    assert all(log.read_text().startswith("---\nsearch: {exclude: true}\n---\n# ") for log in logs)
    (tmp_path / "docs" / "faq.md").write_text("[nowhere](nothing.md#there)")
    assert list(site.missing(tmp_path)) == ["docs/faq.md: nothing.md"]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", site.CONFIGURATION.read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "notes"}
    assert pages <= listed


def test_links_of_the_readme_work_elsewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"(?:\]\(|src=\"|srcset=\")((?!https://)[^)\"]+)", text) == []
    assert re.findall(r"^repo_url: (.*)", site.CONFIGURATION.read_text(), re.MULTILINE) == [
        site.PROJECT["urls"]["Repository"]
    ]


def test_code_is_as_wide_as_the_site() -> None:
    """80 columns; outputs of programs are wrapped."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        blocks = re.findall(r"^```(?:python|py|bash|diff)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines() if len(line) > 80]
        assert lines == [], page.name


@pytest.mark.skipif(not (site.ENVIRONMENT.folder / ".installed").exists(), reason="`make docs` installs mkdocs")
def test_it_builds_without_a_warning() -> None:
    ended = subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
