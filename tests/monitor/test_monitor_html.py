"""The report: one page that stands alone, whatever the watched process is called."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from monitor_moments import busy, moment, starved
from test_monitor_views import texts

from iofast.errors import TargetError
from iofast.monitor.render.html_report import PageReport, html
from iofast.monitor.render.moment import Moment
from iofast.monitor.snapshot import Job

WHEN = datetime(2026, 11, 21, 20, 15, tzinfo=UTC)
TAGS = frozenset({"html", "head", "meta", "title", "style", "body", "pre", "span"})
ATTRIBUTES = frozenset({"lang", "charset", "http-equiv", "content", "name", "class"})
VOID = {"meta"}


class Page(HTMLParser):
    """Which tags and attributes a page has, its text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(*moments: Moment) -> Page:
    return Page(html(moments, WHEN))


def test_everything_is_in_it() -> None:
    text = " ".join(page(moment(), moment(30, last=busy(), job=Job(77, 1, "python b.py", 1, 2))).words)
    for words in (
        "INPUT-BOUND", "decode-cpu-workers", "stall 31–38%", "212 steps in 92 s", "num_workers=4", "at most 1.52×",
        "changes accuracy", "5.6 of 8 cores are free", "GPU busy", "loader CPU", "NVIDIA H100", "no Python stacks",
        "watched for 1:30 in 90 intervals", "rank 1/2", "compute-bound", "unknown", "2026-11-21 20:15 UTC",
    ):  # fmt: skip
        assert words in text, words


@settings(max_examples=15)
@given(texts)
def test_hostile_text_stays_text(text: str) -> None:
    found = page(moment(3, text, starved(text)))
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert found.open == []


def test_nothing_is_fetched_or_run() -> None:
    text = html([moment()], WHEN)
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|src=|href=", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_nobody_was_seen() -> None:
    assert "No training process was seen." in html([], WHEN)


class TestFile:
    def test_written_at_the_end(self, tmp_path: Path) -> None:
        report = PageReport(str(tmp_path / "out.html"))
        report.update(moment())
        assert list(tmp_path.iterdir()) == []
        report.close([moment()])
        assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
        assert Page((tmp_path / "out.html").read_text(encoding="utf-8")).open == []

    @pytest.mark.parametrize("name", [".", "missing/out.html"])
    def test_what_cannot_be_written_is_said_at_once(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(TargetError, match="--report cannot write"):
            PageReport(str(tmp_path / name))
