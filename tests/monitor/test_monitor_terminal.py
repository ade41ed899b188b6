"""The live screen at several sizes and on a terminal, and the report, which has the same lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_moments import busy, device, moment, starved, unknown
from places import SUPPORT
from test_monitor_views import shows, texts

from iofast.errors import TargetError
from iofast.monitor.findings import Advice
from iofast.monitor.render.html_report import PageReport, html
from iofast.monitor.render.layout import drawn, sparkline
from iofast.monitor.render.moment import Moment
from iofast.monitor.snapshot import Doing, Job, Looks

SIZES = ((60, 20), (80, 24), (120, 40), (200, 60))
TESTS = str(SUPPORT)


def text_of(moments: list[Moment], width: int, height: int, selected: int = 0) -> str:
    return "\n".join(line.plain for line in drawn(moments, selected, (width, height)))


class TestLayout:
    @pytest.mark.parametrize(("width", "height"), SIZES)
    def test_what_matters_is_there_at_every_size(self, width: int, height: int) -> None:
        text = text_of([moment()], width, height)
        for words in (
            "INPUT-BOUND",
            "decode-cpu-workers",
            "stall 31–38%",
            "GPU busy",
            "SM active",
            "loader CPU",
            "disk",
        ):
            assert words in text
        assert "num_workers=4" in text
        assert "q: quit" in text
        assert text.count("\n") < height

    def test_larger_terminals_show_more(self) -> None:
        small, large = text_of([moment()], 60, 20), text_of([moment()], 120, 40)
        more = ("--resize 256", "NVIDIA H100", "kernel 61%", "23.0 of 85.0 GB")
        assert [words for words in more if words in small] == []
        assert [words for words in more if words not in large] == []

    @settings(max_examples=30)
    @given(texts, st.integers(1, 130), st.integers(1, 50), st.integers(1, 4))
    def test_it_fits_whatever_is_shown(self, text: str, width: int, height: int, jobs: int) -> None:
        shown = [moment(2, text, starved(text), job=Job(n, 1, text, n, jobs)) for n in range(1, jobs + 1)]
        lines = drawn(shown, jobs - 1, (width, height), keys=bool(jobs % 2))
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        assert all(shows(line.plain) for line in lines)

    def test_several_jobs(self) -> None:
        jobs = [moment(), moment(30, last=busy(), job=Job(77, 1, "python b.py")), moment(5, last=unknown())]
        text = text_of(jobs, 80, 24, 1)
        assert "▸ compute-bound" in text
        assert "input-bound: decode-cpu-workers     31–38%" in text
        assert "COMPUTE-BOUND" in text
        assert "The device has work all the time" in text
        many = text_of([moment(1, job=Job(n, 1, f"job{n}")) for n in range(40)], 80, 24, 30)
        assert "and 36 more" in many
        assert "▸ " in many

    def test_without_a_gpu_there_is_no_row_for_it(self) -> None:
        text = text_of([moment(devices=())], 80, 24)
        assert "GPU busy" not in text
        assert "loader CPU" in text

    def test_two_gpus(self) -> None:
        text = text_of(
            [moment(devices=(device(), device(0.2, index=1, name="other", throttle_reasons=("power",))))], 120, 40
        )
        assert "GPU 0 " in text
        assert "GPU 1 " in text
        assert "slowed by power" in text

    def test_nobody(self) -> None:
        assert "nobody; waiting" in "\n".join(line.plain for line in drawn([], 0, (80, 24), "nobody; waiting"))

    def test_bounds_that_say_nothing_are_not_drawn(self) -> None:
        """Of "anything from 0 to 100 %" the middle would be a guess: the row has the bounds and no blocks."""
        nothing = moment(devices=(), main=Looks(20, {Doing.UNSEEN: 1.0}))
        rows = [
            [line for line in text_of([one], 80, 24).splitlines() if line.startswith("stall     ")]
            for one in (nothing, moment())
        ]
        assert rows[0][0].split() == ["stall", "0–100%"]
        assert "▁" in rows[1][0]


def test_on_a_small_screen_both_changes_can_be_pasted() -> None:
    folder = "/data/of/everyone/imagenet-2012/train"
    packs = Advice("pack_resize", "words " * 40, f"iofast pack {folder} train.lmdb --resize 256", "decode", 0.8)
    reads = Advice("fastloader", "words " * 40, "import iofast\nloader = FastLoader(\n    dataset)", "stall", 0.4)
    text = text_of([moment(last=starved(advice=(packs, reads)))], 80, 24)
    lines = [line[11:].rstrip() for line in text.splitlines()]
    at = lines.index(f"iofast pack {folder} train.lmdb \\")
    assert lines[at + 1] == "--resize 256"
    at = lines.index("import iofast")
    assert lines[at + 1 : at + 3] == ["loader = FastLoader(", "    dataset)"]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0, None, 2.0], 6, 1.0) == " ▁▄▇ ▇"
    assert sparkline([1.0] * 9, 3, 0.0) == "▁▁▁"
    assert sparkline([], 2, 1.0) == "  "


class TestOnATerminal:
    """A pseudo-terminal of 80×24 with the screen on it, in a process of its own."""

    PROGRAM = """
import sys, time
sys.path[:0] = [{tests!r}]
from monitor_moments import busy, moment
from iofast.monitor.render.screen import Screen
from iofast.monitor.snapshot import Job
screen = Screen(sys.stdout)
jobs = [moment(), moment(9, last=busy(), job=Job(77, 1, "python b.py"))]
for job in jobs: screen.update(job)
end = time.monotonic() + 20
while time.monotonic() < end and not screen.quits(): time.sleep(0.01)
screen.close(jobs)
"""

    def test_draws_follows_keys_and_leaves_the_terminal_as_it_was(self) -> None:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(follower)
        command = [sys.executable, "-c", self.PROGRAM.format(tests=TESTS)]
        environment = {**os.environ, "TERM": "xterm-256color"}
        process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
        seen = b""

        def until(words: bytes) -> None:
            nonlocal seen
            end = time.monotonic() + 15
            while words not in seen and time.monotonic() < end:
                if select.select([leader], [], [], 0.1)[0]:
                    seen += os.read(leader, 65536)
            assert words in seen

        until(b"INPUT-BOUND")
        until("▸ ".encode())
        assert seen.startswith(b"\x1b[?1049h")  # the alternate screen: what was there before comes back
        assert not termios.tcgetattr(follower)[3] & termios.ECHO
        os.write(leader, b"\t")
        until(b"COMPUTE-BOUND")
        os.write(leader, b"q")
        until(b"\x1b[?1049l")
        until(b"iofast monitor: pid 77")  # a line for each job remains
        assert process.wait(10) == 0
        assert termios.tcgetattr(follower) == before
        assert b"\x1b[2J" not in seen.partition(b"COMPUTE-BOUND")[0].partition(b"INPUT-BOUND")[2]  # nothing is wiped
        os.close(leader)
        os.close(follower)


def test_a_window_that_is_closed_leaves_the_report(tmp_path: Path) -> None:
    """SIGHUP, and a terminal that takes nothing any more: the status says so, and nothing gets lost."""
    report = tmp_path / "out.html"
    pid, leader = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "iofast", "monitor", "--no-stacks", "--report", str(report)]
        os.execve(sys.executable, command, {**os.environ, "TERM": "xterm-256color"})
    seen, end = b"", time.monotonic() + 30
    while b"waiting" not in seen and b"watching for" not in seen and time.monotonic() < end:
        if select.select([leader], [], [], 0.1)[0]:
            seen += os.read(leader, 65536)
    os.close(leader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert report.read_text().startswith("<!doctype html>")


# --- the report: one page that stands alone, whatever the watched process is called


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
