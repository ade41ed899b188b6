"""Stale and foreign pages, folders of other users, and readers beside a busy writer."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from iofast import meter as telemetry
from iofast.meter import LoaderInfo, Slot, Totals
from iofast.meter.page import MAX_BYTES, VERSION, PageHeader, to_json
from iofast.meter.reading import place, start_time

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)


@pytest.fixture
def slot(own_page: Path) -> Slot:
    """Of a new page in a folder of its own; nothing is written yet."""
    return Slot(LoaderInfo("one"))


def page_of(slot: Slot) -> Path:
    slot.write(FIGURES)
    (page,) = telemetry.pages()
    return page.path


def header(**changes: Any) -> bytes:
    started = start_time(os.getpid())
    assert started is not None
    return to_json(PageHeader(os.getpid(), started, *place())._replace(**changes), [])


# --- folders in which no page is written


def give_away(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)


@pytest.mark.parametrize("fault", ["symlink", "open to others", "file", "another user's"])
def test_no_page_in_a_folder_that_is_not_private(fault: str, slot: Slot, tmp_path: Path) -> None:
    folder = tmp_path / "iofast"
    if fault == "symlink":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif fault == "open to others":
        folder.mkdir()
        folder.chmod(0o775)
    elif fault == "file":
        folder.write_bytes(b"")
    else:
        give_away(folder)
    slot.write(FIGURES)
    slot.write(FIGURES)
    assert telemetry.pages() == []
    assert not list(tmp_path.rglob("*.page"))


@pytest.mark.parametrize("runtime", ["", "relative", "/nonexistent/run", "another user's"])
def test_without_a_runtime_folder_it_is_the_users_own_temporary_one(
    runtime: str, slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime == "another user's":
        give_away(tmp_path / "run")
        runtime = str(tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert page_of(slot).parent == tmp_path / f"iofast-{os.geteuid()}"


def test_the_working_folder_is_no_temporary_one(slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python falls back to it if the temporary folders are full or not writable."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    monkeypatch.setattr("tempfile.tempdir", str(work))
    slot.write(Totals())
    assert list(work.iterdir()) == []
    telemetry.close_page()
    monkeypatch.setenv("TMPDIR", str(work))
    assert page_of(slot).parent.parent == work


def test_pages_of_both_folders_are_seen(slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may lack the variables of the monitor's login shell."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    path = page_of(slot)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert [page.path for page in telemetry.pages()] == [path]


def test_a_full_disk_a_missing_proc_and_no_descriptors(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error reaches training, and no partial page is left."""
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", lambda *_: 100)
        slot.write(FIGURES)
    assert telemetry.pages() == []
    telemetry.close_page()
    with monkeypatch.context() as patch:
        patch.setattr("iofast.meter.reading._PROC", Path("/nonexistent"))
        slot.write(FIGURES)
        assert telemetry.pages() == []
    telemetry.close_page()
    slot.write(FIGURES)
    assert len(telemetry.pages()) == 1


# --- pages without a process


def test_stale_pages_are_removed_and_unknown_ones_stay(slot: Slot, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        assert ended.stdin is not None
        started = start_time(ended.pid)
        assert started is not None
        path = page_of(slot)
        own = path.read_bytes()
        pid, here = ended.pid, place()
        other_version = own.replace(b'"iofast_telemetry":%d' % VERSION, b'"iofast_telemetry":%d' % (VERSION + 1))
        pages = {
            what: (name if isinstance(name, str) else f"{pid}-{started - name}.page", page)
            for what, name, page in (
                ("running", 0, header(pid=pid, start_time=started)),
                ("reused pid", 1, header(pid=pid, start_time=started - 1)),
                ("namespace", 2, header(pid=pid, start_time=started - 2, pid_namespace=here.pid_namespace + 1)),
                ("name of another", 3, header(pid=pid, start_time=started - 1)),
                ("no page", 4, b"x" * 256),
                ("another version", 5, other_version),
                ("short", 6, b""),
                ("another machine", 7, header(pid=pid, start_time=started - 7, boot="another machine")),
                ("strange name", "notes.txt", header(pid=pid, start_time=started - 1)),
            )
        }
        for name, page in pages.values():
            (path.parent / name).write_bytes(page)

        def left() -> set[str]:
            return {what for what, (name, _) in pages.items() if (path.parent / name).exists()}

        assert [page.pid for page in telemetry.pages()] == sorted([os.getpid(), pid])
        assert left() == set(pages) - {"reused pid"}
        ended.stdin.close()
        while start_time(pid) is not None:  # a zombie counts as dead
            time.sleep(0.01)
        assert [page.pid for page in telemetry.pages()] == [os.getpid()]
        assert left() == set(pages) - {"reused pid", "running"}


@pytest.mark.parametrize(
    "changes",
    [{"pid": 0}, {"pid": 4_000_000}, {"start_time": 1}, {"pid_namespace": 1}, {"boot": "another"}, {"rank": -2}],
    ids=str,
)
def test_headers_of_other_processes(changes: dict[str, Any], slot: Slot) -> None:
    path = page_of(slot)
    assert telemetry.read_page(path) is not None
    path.write_bytes(header(**changes))
    assert telemetry.read_page(path) is None


def test_files_that_are_not_pages(slot: Slot, tmp_path: Path) -> None:
    path = page_of(slot)
    assert telemetry.read_page(tmp_path) is None
    assert telemetry.read_page(tmp_path / "missing") is None
    os.mkfifo(tmp_path / "pipe")
    assert telemetry.read_page(tmp_path / "pipe") is None, "without waiting for a writer"
    (tmp_path / "link").symlink_to(path)
    assert telemetry.read_page(tmp_path / "link") is None
    for size in (0, 100, path.stat().st_size - 1, path.stat().st_size + 1, MAX_BYTES + 1):
        copy = tmp_path / "copy"
        shutil.copyfile(path, copy)
        os.truncate(copy, size)
        assert telemetry.read_page(copy) is None


def test_a_file_of_another_user(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    path = page_of(slot)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    assert telemetry.read_page(path) is None


# --- a reader beside a writer

WRITER = """
    import sys, threading
    from iofast.meter import LoaderInfo, Slot, Totals

    def write(slot):
        number = 0
        while not done.wait(0.001):  # on a busy machine a writer without pauses leaves no time for the reader
            number += 1
            slot.write(Totals(*[number % 100_000] * 10))

    done, slots = threading.Event(), [Slot(LoaderInfo(str(number))) for number in range(2)]
    threads = [threading.Thread(target=write, args=(slot,)) for slot in (*slots, slots[0])]  # two threads for the first
    for thread in threads:
        thread.start()
    print("writing", flush=True)
    sys.stdin.read()
    done.set()
"""


def test_no_reader_sees_half_of_a_write(slot: Slot) -> None:
    """Another process has two loaders, one of them written by two threads; all figures of a write are equal."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "writing\n"
        seen, end = set(), time.monotonic() + 60
        while len(seen) < 30 and time.monotonic() < end:
            for page in telemetry.pages():
                for loader in page.loaders:
                    assert len(set(loader.figures)) == 1, loader.figures
                    seen.add((loader.serial, loader.figures.batch))
        writer.stdin.close()
    assert len({serial for serial, _ in seen}) == 2
    assert len(seen) >= 30
    assert writer.returncode == 0


def test_no_thread_sees_half_of_a_write(slot: Slot) -> None:
    path, done, seen = page_of(slot), threading.Event(), []
    slot.write(Totals())

    def write() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            slot.write(Totals(*[number] * 10))

    def read() -> None:
        for _ in range(200):
            page = telemetry.read_page(path)
            assert page is not None
            (loader,) = page.loaders
            assert len(set(loader.figures)) == 1
            seen.append(loader.figures.batch)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        read()
    finally:
        done.set()
        writing.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
