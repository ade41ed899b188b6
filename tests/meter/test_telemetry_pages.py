"""Stale pages and other files, folders of other users, and readers beside a busy writer."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from at_once import at_once
from own_pages import close_page

from iofast import meter as telemetry
from iofast.meter import LoaderInfo, Page, Slot, Totals
from iofast.meter.page import VERSION, to_json
from iofast.meter.page_files import machine, start_time

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)


@pytest.fixture
def slot(own_page: Path) -> Slot:
    """Of a new page in a folder of its own; nothing is written yet."""
    return Slot(LoaderInfo("one"))


def file_of(slot: Slot, folder: Path) -> Path:
    """Write the page, and return its file below `folder`."""
    slot.write(FIGURES)
    (path,) = folder.rglob("*.json")
    return path


# --- folders in which no page is written


def make(kind: str, folder: Path, elsewhere: Path) -> None:
    if kind == "symlink":
        elsewhere.mkdir(mode=0o700)
        folder.symlink_to(elsewhere)
    elif kind == "file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        folder.chmod(0o700 if kind == "another user's" else 0o775)
    if kind == "another user's":
        if os.geteuid():
            pytest.skip("only root can give a folder away")
        os.chown(folder, 12345, -1)


@pytest.mark.parametrize("fault", ["symlink", "open to others", "file", "another user's"])
def test_no_page_in_a_folder_that_is_not_private(fault: str, slot: Slot, tmp_path: Path) -> None:
    make(fault, tmp_path / "iofast", tmp_path / "elsewhere")
    slot.write(FIGURES)
    slot.write(FIGURES)
    assert telemetry.pages() == []
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("runtime", ["", "relative", "/nonexistent/run", "another user's"])
def test_without_a_runtime_folder_it_is_the_users_own_temporary_one(
    runtime: str, slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime == "another user's":
        make(runtime, tmp_path / "run", tmp_path)
        runtime = str(tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert file_of(slot, tmp_path).parent == tmp_path / f"iofast-{os.geteuid()}"


def test_pages_of_both_folders_are_seen(slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may lack the variables of the monitor's login shell."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    slot.write(FIGURES)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert len(telemetry.pages()) == 1


def test_a_full_disk_and_a_missing_proc(slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error reaches training, and no partial page is left."""

    def full(source: object, target: object) -> None:
        raise OSError("no space left on device")

    for name, value in (("os.replace", full), ("iofast.meter.page_files._PROC", Path("/nonexistent"))):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            slot.write(FIGURES)
            assert telemetry.pages() == []
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        close_page()
    slot.write(FIGURES)
    assert len(telemetry.pages()) == 1


# --- pages without a process


def test_stale_pages_are_removed_and_unknown_ones_stay(slot: Slot, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        assert ended.stdin is not None
        started = start_time(ended.pid)
        assert started is not None
        folder = file_of(slot, tmp_path).parent
        live = Page(ended.pid, started, machine())
        reused = replace(live, start_time=started - 1)
        texts = {
            "running": to_json(live),
            "reused pid": to_json(reused),
            "another machine": to_json(replace(reused, machine="another 1")),
            "another version": to_json(reused).replace(f'"version":{VERSION}', f'"version":{VERSION + 1}'),
            "another program's": '{"pid": 3}',
            "no object": "3",
            "no JSON": "x" * 256,
            "empty": "",
        }
        for name, text in texts.items():
            (folder / f"{name}.json").write_text(text)

        def left() -> set[str]:
            return {name for name in texts if (folder / f"{name}.json").exists()}

        assert [page.pid for page in telemetry.pages()] == sorted([os.getpid(), ended.pid])
        assert left() == set(texts) - {"reused pid"}
        ended.stdin.close()
        while start_time(ended.pid) is not None:  # a zombie counts as dead
            time.sleep(0.01)
        assert [page.pid for page in telemetry.pages()] == [os.getpid()]
        assert left() == set(texts) - {"reused pid", "running"}


def test_no_reader_sees_half_of_a_write(slot: Slot) -> None:
    """Of two loaders, one of them written by two threads; all figures of a write are equal."""
    slots, seen = [slot, Slot(LoaderInfo("other"))], set[tuple[int, int]]()
    end = time.monotonic() + 60

    def write(own: Slot) -> None:
        for number in range(10**6):
            own.write(Totals(*[number % 100_000] * 10))
            time.sleep(0.001)  # on a busy machine a writer without pauses leaves no time for the reader
            if done or time.monotonic() > end:
                return

    def read() -> None:
        while len(seen) < 30 and time.monotonic() < end:
            for loader in (loader for page in telemetry.pages() for loader in page.loaders):
                assert len(set(loader.figures)) == 1, loader.figures
                seen.add((loader.serial, loader.figures.batches))
        done.append(True)

    done: list[bool] = []
    at_once(read, *(partial(write, own) for own in (*slots, slot)))
    assert len({serial for serial, _ in seen}) == 2
    assert len(seen) >= 30
