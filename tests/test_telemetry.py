"""The bytes of a slot, and this process's page: who gets a slot, what is read back, what a fork and an exit leave."""

from __future__ import annotations

import gc
import os
import stat
import struct
import subprocess
import sys
import textwrap
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast import telemetry
from iofast.telemetry import LoaderInfo, Page, Slot, Stages, Totals
from iofast.telemetry.layout import SLOTS, PageHeader, decode, encode, encode_loader

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for each test, and no page from the test before."""
    telemetry.close_page()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # other processes' pages are none of these tests' business
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("RANK", raising=False)
    yield tmp_path
    telemetry.close_page()


def only_page() -> Page:
    (page,) = telemetry.pages()
    return page


def in_child(run: Callable[[], bytes]) -> bytes:
    """What `run()` returns in a forked child."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(write, run())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


# --- the bytes of a slot

counts = st.integers(0, (1 << 63) - 1)


@given(
    name=st.text(max_size=40),
    numbers=st.tuples(st.integers(0, 70_000), st.integers(0, 70_000), st.integers(0, 1 << 33)),
    device=st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:15", "mps:0"]),
    values=st.tuples(st.integers(0, (1 << 32) - 1), *[counts] * 9),
    added=st.tuples(counts, counts, counts, counts),
)
def test_what_is_written_is_read(
    name: str, numbers: tuple[int, int, int], device: str, values: tuple[int, ...], added: tuple[int, ...]
) -> None:
    workers, prefetch, batch_size = numbers
    info = LoaderInfo(name, "FastLoader", workers, prefetch, batch_size, device)
    stages = Stages()
    stages.read.add(added[0], work_ns=added[1], wait_ns=added[2], nbytes=added[3])
    stages.transfer.add(added[3], nbytes=added[2])
    report = decode(encode(encode_loader(info, 9), Totals(*values), stages), PageHeader(1, -1, 0, 1, 1, bytes(16)))
    assert report is not None
    assert (report.serial, report.figures) == (9, Totals(*values))
    assert report.stages == stages.stats()
    assert (report.info.num_workers, report.info.batch_size) == (min(workers, 65535), min(batch_size, (1 << 32) - 1))
    assert report.info.device == device.replace("mps", "other")
    assert len(report.info.name.encode()) <= 24
    assert report.info.name.isprintable()
    if name.isascii() and name.isprintable():
        assert report.info.name == name[:24]


def test_bytes_are_where_the_format_says() -> None:
    """By the table of docs/format.md, section 12, and nothing of layout.py."""
    telemetry.close_page()
    stages = Stages()
    for number, counter in enumerate(stages.counters(), 1):
        counter.add(number * 10, work_ns=number * 11, wait_ns=number * 12, nbytes=number * 13, failed=number)
        counter.observe(number, 4)
    info = LoaderInfo("name", "FastLoader", 0x0102, 0x0304, 0x05060708, "cuda:9", rank=5, world_size=6)
    slot = Slot(info)
    slot.write(Totals(*range(100, 110)), stages)
    page = only_page()
    raw = page.path.read_bytes()
    assert len(raw) == 10880
    assert raw[:8] == b"iofastTP"
    assert struct.unpack_from("<4H", raw, 8) == (2, 256, 16, 256)
    assert struct.unpack_from("<IiIHH", raw, 16) == (os.getpid(), 5, 6, 8, 408)
    assert struct.unpack_from("<QQ", raw, 32) == (os.stat("/proc/self/ns/pid").st_ino, page.start_time)
    assert raw[48:64].hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert not any(raw[64:256])
    (used,) = (raw[at : at + 256] for at in range(256, 4352, 256) if any(raw[at + 8 : at + 256]))
    assert struct.unpack_from("<QI", used) == (2, zlib.crc32(used[12:]))
    assert struct.unpack_from("<BBhIHHI", used, 12) == (1, 1, 9, page.loaders[0].serial, 0x0102, 0x0304, 0x05060708)
    assert used[28:52] == b"name".ljust(24, b"\0")
    assert struct.unpack_from("<II4B", used, 52) == (1 + 2 + 3 + 4, 100, 50, 100, 150, 200)
    assert struct.unpack_from("<10Q", used, 64) == (101, 102, 13, *range(103, 110))
    by_stage = [each * number for number in range(1, 5) for each in (10, 11, 12)]
    assert struct.unpack_from("<12QQ", used, 144) == (*by_stage, 4 * 13)
    assert not any(used[248:])
    assert not any(raw[4352:]), "nobody has phases"


# --- this process's page


def test_a_page_tells_what_was_written(runtime: Path) -> None:
    stages = Stages()
    stages.read.add(64, work_ns=7, nbytes=5000, failed=2)
    stages.decode.add(64, failed=1)
    stages.queue.observe(1, 2)
    info = LoaderInfo("train", "FastLoader", 4, 3, 64, "cuda:1", rank=2, world_size=8)
    slot = Slot(info)
    assert telemetry.pages() == [], "nothing was handed over yet"
    slot.write(FIGURES, stages)
    page = only_page()
    assert page == telemetry.read_page(page.path)
    assert (page.pid, page.rank, page.world_size, page.unreadable) == (os.getpid(), 2, 8, 0)
    (loader,) = page.loaders
    assert (loader.info, loader.figures) == (info, FIGURES)
    assert loader.stages["read"].bytes == 5000
    assert loader.stages["decode"].failed == 3, "all stages' failures, in one number"
    assert loader.stages["queue"].occupancy == 0.5
    assert page.path.parent == runtime / "iofast"
    assert page.path.name == f"{page.pid}-{page.start_time}.page"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (page.path, page.path.parent)] == [0o600, 0o700]


def test_a_later_write_replaces_the_one_before() -> None:
    slot = Slot(LoaderInfo("a"))
    for batch in range(5):
        slot.write(FIGURES._replace(batch=batch))
    slot.info = LoaderInfo("b", num_workers=3)
    slot.write(FIGURES)
    (loader,) = only_page().loaders
    assert (loader.info.name, loader.info.num_workers, loader.figures) == ("b", 3, FIGURES)


@pytest.mark.parametrize(("given", "rank"), [("5", 5), ("", None), ("x", None), ("9" * 20, None)])
def test_rank_of_a_launcher(given: str, rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", given)
    Slot(LoaderInfo("a")).write(FIGURES)
    assert only_page().rank == rank


def test_the_seventeenth_loader_goes_unreported_until_another_goes() -> None:
    slots = [Slot(LoaderInfo(str(number))) for number in range(SLOTS + 1)]
    for slot in slots:
        slot.write(FIGURES)
    assert [each.info.name for each in only_page().loaders] == [str(number) for number in range(SLOTS)]
    slots[3].close()
    slots[3].close()
    slots[3].write(FIGURES)  # closed: it does not come back
    slots[16].write(FIGURES)
    slots[16].write(FIGURES)
    assert sorted(int(each.info.name) for each in only_page().loaders) == [n for n in range(SLOTS + 1) if n != 3]


def test_two_threads_that_write_a_loader_for_the_first_time_take_one_slot() -> None:
    from iofast.telemetry import publish

    class Interrupted(deque[int]):
        def popleft(self) -> int:
            number = super().popleft()
            if len(self) == SLOTS - 1:
                slot.write(FIGURES._replace(batch=1))  # as another thread between two lines of the first one
            return number

    slot = Slot(LoaderInfo("a"))
    slot.write(FIGURES)
    slot.close()
    page = publish._process.page
    assert page is not None
    page.free = Interrupted(page.free)
    slot = Slot(LoaderInfo("b"))
    slot.write(FIGURES)
    assert [each.figures for each in only_page().loaders] == [FIGURES]
    assert len(page.free) == SLOTS - 1, "a place was lost"


def test_two_threads_that_need_the_first_page_make_one() -> None:
    from iofast.telemetry import publish

    process = publish._process
    lock, other = process.making, Slot(LoaderInfo("other thread's"))

    class Late:
        def acquire(self, blocking: bool) -> bool:
            process.making = lock
            other.write(FIGURES)  # after the first look, before the lock
            return lock.acquire(blocking=blocking)

    process.making = Late()  # type: ignore[assignment]
    slot = Slot(LoaderInfo("this thread's"))
    slot.write(FIGURES)
    assert len(only_page().loaders) == 2


def test_what_goes_wrong_is_logged_once_and_not_warned_of(
    runtime: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (runtime / "iofast").mkdir()
    (runtime / "iofast").chmod(0o755)
    with caplog.at_level("DEBUG"):
        for name in "abc":
            Slot(LoaderInfo(name)).write(FIGURES)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "0755" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_a_figure_without_room_disturbs_nobody() -> None:
    slot = Slot(LoaderInfo("a"))
    slot.write(FIGURES)
    slot.write(FIGURES._replace(images=-1))
    slot.write(FIGURES._replace(images=1 << 64))
    (loader,) = only_page().loaders
    assert loader.figures == FIGURES


def test_a_forked_child_has_a_page_of_its_own() -> None:
    slot = Slot(LoaderInfo("parent's"))
    slot.write(FIGURES)
    before = only_page()

    def child() -> bytes:
        slot.write(FIGURES._replace(batch=99))
        seen = [(page.pid == os.getpid(), page.loaders[0].figures.batch) for page in telemetry.pages()]
        telemetry.close_page()
        return repr(sorted(seen)).encode()

    assert in_child(child) == b"[(False, 7), (True, 99)]"
    assert only_page() == before
    slot.write(FIGURES._replace(batch=8))
    assert only_page().loaders[0].figures.batch == 8


def test_a_child_gives_back_nothing_of_its_parents() -> None:
    slot = Slot(LoaderInfo("parent's"))
    slot.write(FIGURES)
    in_child(lambda: slot.close() or b"")
    assert [each.info.name for each in only_page().loaders] == ["parent's"]


def test_a_child_that_just_ends_removes_nothing() -> None:
    Slot(LoaderInfo("parent's")).write(FIGURES)
    in_child(lambda: telemetry.close_page() or b"")
    assert len(telemetry.pages()) == 1


def test_a_fork_while_a_page_is_being_made() -> None:
    """The lock was held by a thread that the child does not have."""
    from iofast.telemetry import publish

    publish._process.making.acquire()

    def child() -> bytes:
        Slot(LoaderInfo("child's")).write(FIGURES)
        found = [page.loaders[0].info.name for page in telemetry.pages()]
        telemetry.close_page()
        return repr(found).encode()

    try:
        Slot(LoaderInfo("waits for nothing")).write(FIGURES)
        assert telemetry.pages() == []
        assert in_child(child) == b'["child\'s"]'
    finally:
        publish._process.making.release()


@pytest.mark.parametrize(
    ("end", "left"),
    [("pass", 0), ("raise SystemExit(3)", 0), ("1 / 0", 0), ("os._exit(0)", 1), ("os.kill(os.getpid(), 9)", 1)],
)
def test_exit_removes_the_page_and_the_next_process_what_a_kill_left(end: str, left: int, runtime: Path) -> None:
    program = f"""
        import os
        from iofast.telemetry import Figures, LoaderInfo, Slot, pages
        slot = Slot(LoaderInfo("a"))
        slot.write(Figures())
        assert len(pages()) == 1
        {end}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
    assert len(list((runtime / "iofast").iterdir())) == left
    slot = Slot(LoaderInfo("a"))
    slot.write(FIGURES)
    assert [path.name for path in (runtime / "iofast").iterdir()] == [only_page().path.name]


def test_an_exec_keeps_pid_and_start_time_and_makes_a_new_page(runtime: Path) -> None:
    program = """
        import os, sys
        from iofast.telemetry import Figures, LoaderInfo, Slot, pages
        slot = Slot(LoaderInfo("second" if "again" in sys.argv else "first"))
        slot.write(Figures())
        if "again" not in sys.argv:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
        print([loader.info.name for page in pages() for loader in page.loaders])
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("['second']\n", "")
    assert list((runtime / "iofast").iterdir()) == []


def test_thousands_of_loaders_that_come_and_go() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3000):
        slot = Slot(LoaderInfo("a"))
        slot.write(FIGURES)
        slot.close()
    gc.collect()
    assert only_page().loaders == ()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the page's own
