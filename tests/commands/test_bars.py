"""Progress bars: on terminals only, without a thread, and independent of the lock that tqdm's bars share."""

import io
import re
import sys
import threading
from pathlib import Path

import forked
import pytest
from command_line import Terminal
from foreign_lmdbs import picture
from tqdm import tqdm

from iofast import pack
from iofast.bars import open_bar
from iofast.cli import main
from iofast.opening import open_reader


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal. Not a fixture: pytest restores its own stream between a fixture and the test."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    return stream


def test_shown_on_a_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    before = threading.active_count()
    with open_bar(30, " images", "reading") as bar:
        bar.update(10)
        bar.refresh()
        assert threading.active_count() == before, "a bar needs no thread"
    shown = stream.getvalue()
    assert re.search(r"reading: +33%\|.*\| 10/30 \[", shown)
    assert shown.endswith("\r")


class Cell(io.StringIO):
    """Stands for the output of a notebook's cell, which is not a terminal."""


Cell.__module__ = "ipykernel.iostream"


@pytest.mark.parametrize("stream", [Terminal(), Cell()], ids=["terminal", "notebook"])
def test_pack_shows_a_bar_and_the_next_step(
    stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "train" / "cat" / "a.jpg").write_bytes(picture(1))
    monkeypatch.setattr("sys.stderr", stream)
    for progress in (False, True):
        assert stream.getvalue() == ""
        pack(tmp_path / "images", tmp_path / "out.lmdb", progress=progress, overwrite=True, workers=1)
    assert "/1 [" in stream.getvalue()
    last = "\n" + stream.getvalue().split("\r")[-1]
    assert f"\nnext: FastDataset('{tmp_path}/out.lmdb', split='train') in Python" in last


CLOSED = """
import os, sys
os.close(2)
sys.stderr = sys.__stderr__ = None  # as the interpreter has it
from iofast.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "logger"])
def test_commands_without_a_stderr(closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`2>&-`, and a program that puts a logger in its place."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(picture(1))
    images, packed, copy = (str(tmp_path / name) for name in ("images", "out.lmdb", "out.tar"))
    lines = ["pack", images, packed, "--workers", "1"], ["convert", packed, copy], ["verify", copy], ["cat", copy, "0"]
    for words in lines:
        if closed:
            assert forked.run([sys.executable, "-c", CLOSED, *words]).returncode == 0
        else:
            monkeypatch.setattr("sys.stderr", object())
            assert main(words) == 0
    with open_reader(copy) as reader:
        assert len(reader) == 1


def test_slow_steps_are_shown_after_quick_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default tqdm would wait for as many steps as before."""
    stream = terminal(monkeypatch)
    with open_bar(2_000_000, " images", mininterval=0.0) as bar:
        bar.update(1_000_000)
        bar.update(1)
    assert "1000001/2000000" in stream.getvalue()


def test_bars_of_others_keep_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    monkeypatch.setattr(tqdm, "monitor_interval", 7)
    with open_bar(1, " images"):
        assert tqdm.monitor_interval == 7
    assert stream.getvalue()


def test_no_other_bars_lock_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)

    def work() -> None:
        with open_bar(3, " images") as bar:
            bar.update(3)

    with open_bar(3, " images") as other, tqdm.get_lock(), other.get_lock():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
