"""Progress bars: where somebody looks, without a thread, and whatever has become of the lock that tqdm's share."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_sets import build
from foreign_lmdbs import picture, write
from places import ROOT
from tar_sets import foreign
from tqdm import tqdm

from iofast.bars import open_bar
from iofast.opening import open_reader

PACKAGE = ROOT / "iofast"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What a user sees from here on; no fixture, for between them and the test pytest puts its own stream back."""
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    return stream


@pytest.fixture
def taken() -> Iterator[None]:
    """tqdm's own lock held by somebody who never gives it back, as a Ctrl-C in the wrong moment leaves it."""
    lock, held, done = tqdm.get_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    yield
    done.set()
    thread.join()


def ends(work: Callable[[], object], seconds: float = 20) -> bool:
    """Whether `work()` returns."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


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


def test_nothing_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with open_bar(30, " images") as bar:
        bar.update(30)
    assert stream.getvalue() == ""


def test_slow_steps_are_shown_after_quick_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its thread, tqdm would wait for as many as came between two redraws before."""
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


@pytest.mark.usefixtures("taken")
def test_lock_of_others_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)

    def work() -> None:
        with open_bar(3, " images") as bar:
            bar.update(3)

    assert ends(work)


@pytest.mark.usefixtures("taken")
def test_nor_is_that_of_a_bar_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    bar = open_bar(3, " images")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with bar.get_lock():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    assert ends(lambda: open_bar(3, " images").close())
    done.set()
    thread.join()
    bar.close()


@pytest.mark.parametrize("kind", ["folder", "tar", "tfrecord", "lmdb"])
@pytest.mark.usefixtures("taken")
def test_indexes_are_made(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / f"set.{kind}"
    if kind == "folder":
        path.mkdir()
        (path / "a.jpg").write_bytes(picture(1))
    elif kind == "tar":
        foreign(path, {"a.jpg": picture(1)})
    elif kind == "lmdb":
        write(path, {b"a": picture(1)})
    else:
        build(path, 2, splits=False)
        (tmp_path / "set.tfrecord.manifest").unlink()  # now it is any program's
        path = tmp_path / "set-00000-of-00001.tfrecord"
    assert ends(lambda: open_reader(path).close())


def test_all_bars_of_iofast_are_these() -> None:
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if re.search(r"tqdm\(", path.read_text())]
    assert found == []
