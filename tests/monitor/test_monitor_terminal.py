"""The live screen at several sizes and on a terminal, and the report, which has the same lines."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_moments import busy, device, moment, snapshot, starved
from monitor_snapshots import LOADER
from places import SUPPORT
from proc_folder import read_until
from rich.text import Text
from test_monitor_views import shows, texts

from iofast.errors import TargetError
from iofast.monitor.findings import Advice, Band, Prediction
from iofast.monitor.phases import RunSums
from iofast.monitor.render.layout import drawn, sparkline, whole
from iofast.monitor.render.moment import STRETCHES, Moment, figures
from iofast.monitor.render.printed import PageReport, html
from iofast.monitor.snapshot import Doing, Job, Looks

SCREENS = Path(__file__).with_name("screens.txt")

TESTS = str(SUPPORT)
GPUS = (device(), device(0.2, index=1, name="other", throttle_reasons=("power",)))
STEPS = replace(LOADER, steps=10, phases={"backward": 0.33, "forward": 0.61})
WORKERS = Prediction("workers", "num_workers=6", 2.0, 2.6, "cores are free", (640.0, 832.0))
SUMS = RunSums(90.0, Band(0.5, 0.6), Band(0.2, 0.3), 0.1, 0.05, 0.02, 0.03, 0.0, 2, Band(0.01, 0.02))


def jobs() -> list[Moment]:
    """A starved job of which everything is known, and one that computes."""
    verdict = starved(interference=Band(0.1, 0.25), what_if=(WORKERS,))
    full = moment(last=verdict, devices=GPUS, loaders=(STEPS,))
    full.history.sums = SUMS
    return [full, moment(30, last=busy(), job=Job(77, 1, "python b.py", 1, 2))]


def kept(name: str) -> str:
    """A page of screens.txt."""
    (found,) = re.findall(rf"^=== {name}\n(.*?)(?=^=== |\Z)", SCREENS.read_text(), re.M | re.S)
    return str(found)


def text_of(lines: Sequence[Text]) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def test_a_screen_of_two_jobs() -> None:
    assert text_of(drawn(jobs(), 0, (80, 24))) == kept("80 x 24")


@settings(max_examples=30)
@given(texts, st.integers(1, 130), st.integers(1, 50), st.integers(1, 4))
def test_it_fits_whatever_is_shown(text: str, width: int, height: int, jobs: int) -> None:
    shown = [moment(2, text, starved(text), job=Job(n, 1, text, n, jobs)) for n in range(1, jobs + 1)]
    lines = drawn(shown, jobs - 1, (width, height), keys=bool(jobs % 2))
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    assert all(shows(line.plain) for line in lines)


def test_of_many_jobs_the_selected_one_is_shown() -> None:
    lines = text_of(drawn([moment(1, job=Job(n, 1, f"job{n}")) for n in range(40)], 30, (80, 24))).split("\n")
    assert [line.split()[-1] for line in lines if line.startswith("▸ ")] == ["job30"]
    assert "  and 36 more" in lines
    assert "nobody; waiting" in text_of(drawn([], 0, (80, 24), "nobody; waiting"))


def test_bounds_that_say_nothing_are_not_drawn() -> None:
    """Of "anything from 0 to 100 %" the middle would be a guess: the row has the bounds and no blocks."""
    text = text_of(drawn([moment(devices=(), main=Looks(20, {Doing.UNSEEN: 1.0}))], 0, (80, 24)))
    (row,) = (line for line in text.splitlines() if line.startswith("stall     "))
    assert row.split() == ["stall", "0–100%"]
    assert "GPU busy" not in text, "without a device there is no row for it"


def test_a_figure_that_is_known_since_now() -> None:
    """The timeline of the whole run has no value of it yet."""
    shown, now = moment(STRETCHES), snapshot(STRETCHES, loaders=(STEPS,))
    shown.history.add(now, shown.verdict)
    text = text_of(whole(replace(shown, snapshot=now, figures=figures(now))))
    assert [line.split() for line in text.splitlines() if line.startswith("images/s")] == [["images/s", "320"]]


def test_on_a_small_screen_both_changes_can_be_pasted() -> None:
    folder = "/data/of/everyone/imagenet-2012/train"
    packs = Advice("pack_resize", "words " * 40, f"iofast pack {folder} train.lmdb --resize 256", "decode", 0.8)
    reads = Advice("fastloader", "words " * 40, "import iofast\nloader = FastLoader(\n    dataset)", "stall", 0.4)
    text = text_of(drawn([moment(last=starved(advice=(packs, reads)))], 0, (80, 24)))
    lines = [line[11:] for line in text.splitlines()]
    at = lines.index(f"iofast pack {folder} train.lmdb \\")
    assert lines[at + 1] == "--resize 256"
    at = lines.index("import iofast")
    assert lines[at + 1 : at + 3] == ["loader = FastLoader(", "    dataset)"]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0, None, 2.0], 6, 1.0) == " ▁▄▇ ▇"
    assert sparkline([1.0] * 9, 3, 0.0) == "▁▁▁"


# A pseudo-terminal of 80×24 with the screen on it, in a process of its own.
PROGRAM = f"""
import sys, time
sys.path[:0] = [{TESTS!r}]
from monitor_moments import busy, moment
from iofast.monitor.render.screen import Screen
from iofast.monitor.snapshot import Job
jobs = [moment(), moment(9, last=busy(), job=Job(77, 1, "python b.py"))]
screen = Screen(sys.stdout, lambda: jobs)
for job in jobs: screen.update(job)
end = time.monotonic() + 20
while time.monotonic() < end and not screen.quits(): time.sleep(0.01)
screen.close(jobs)
"""


def test_draws_follows_keys_and_leaves_the_terminal_as_it_was() -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(follower)
    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    seen = read_until(leader, "▸ ".encode(), read_until(leader, b"INPUT-BOUND"))
    assert seen.startswith(b"\x1b[?1049h")  # the alternate screen: what was there before comes back
    assert not termios.tcgetattr(follower)[3] & termios.ECHO
    os.write(leader, b"\t")
    seen = read_until(leader, b"COMPUTE-BOUND", seen)
    os.write(leader, b"q")
    seen = read_until(leader, b"iofast monitor: pid 77", seen)  # a line for each job remains
    assert b"\x1b[?1049l" in seen
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
    read_until(leader, b"wa")  # waiting, or watching
    os.close(leader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert report.read_text().startswith("<!doctype html>")


# --- the report: one page that stands alone, whatever the watched process is called


WHEN = datetime(2026, 11, 21, 20, 15, tzinfo=UTC)
TAG = re.compile(r"<(\w+)")
SPAN = re.compile(r'<span class="r\d+">')


def test_the_report_has_everything() -> None:
    body = html(jobs(), WHEN).partition("<pre>")[2]
    lines = unescape(re.sub(r"<[^>]*>", "", body)).rstrip().split("\n")
    assert "".join(f"{line.rstrip()}\n" for line in lines) == kept("report")


@settings(max_examples=15)
@given(texts)
def test_hostile_text_stays_text_and_nothing_is_fetched_or_run(text: str) -> None:
    page = html([moment(3, text, starved(text))], WHEN)
    assert set(TAG.findall(page)) <= {"html", "head", "meta", "title", "style", "body", "pre", "span"}
    assert "default-src 'none'" in page
    body = page.partition("<pre>")[2]
    assert set(re.findall(r"<[^>]*>", body)) <= {"</pre>", "</body>", "</html>", "</span>", *SPAN.findall(body)}


def test_the_report_is_written_at_the_end(tmp_path: Path) -> None:
    report = PageReport(str(tmp_path / "out.html"))
    report.update(moment())
    assert list(tmp_path.iterdir()) == []
    report.close([])
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    assert "No training process was seen." in (tmp_path / "out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [".", "missing/out.html"])
def test_a_report_that_cannot_be_written_is_an_error_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="--report cannot write"):
        PageReport(str(tmp_path / name))
