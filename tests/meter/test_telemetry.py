"""The members of a page, and this process's page: written and read, after a fork, and at exit."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import os
import stat
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast import meter as telemetry
from iofast.meter import LoaderInfo, Page, PhaseTotals, Slot, Stages, Totals
from iofast.meter.page import (
    MAX_LOADERS,
    MAX_PHASES,
    PageHeader,
    TornPageError,
    figure_members,
    from_json,
    loader_members,
    printable,
    to_json,
)

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)


@pytest.fixture(autouse=True)
def runtime(own_page: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page; the process has no rank."""
    monkeypatch.delenv("RANK", raising=False)
    return own_page


def only_page() -> Page:
    (page,) = telemetry.pages()
    return page


def in_child(run: Callable[[], bytes]) -> bytes:
    """Return what `run()` returns in a forked child."""
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


# --- the members of a page

counts = st.integers(0, (1 << 63) - 1)
HEADER = PageHeader(1, 2, 3, "boot", 4)


@given(
    name=st.text(max_size=90),
    numbers=st.tuples(counts, counts, counts),
    device=st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:15", "mps:0"]),
    values=st.tuples(*[counts] * 10),
    added=st.tuples(counts, counts, counts, counts),
    phases=st.lists(st.tuples(st.text(max_size=80), counts, counts, counts), max_size=MAX_PHASES + 3),
)
def test_what_is_written_is_read(
    name: str,
    numbers: tuple[int, int, int],
    device: str,
    values: tuple[int, ...],
    added: tuple[int, ...],
    phases: list[tuple[str, int, int, int]],
) -> None:
    info = LoaderInfo(name, "FastLoader", *numbers, device, rank=numbers[0], world_size=numbers[1])
    stages = Stages()
    stages.read.add(added[0], work_ns=added[1], wait_ns=added[2], nbytes=added[3])
    stages.transfer.observe(1, 2)
    given = [(each, PhaseTotals(*totals)) for each, *totals in phases]
    members = figure_members(Totals(*values), stages, given, on_device=True)
    header, (report,) = from_json(to_json(HEADER, [loader_members(info, 9) | members]))
    assert header == HEADER
    assert (report.serial, report.figures, report.phases_on_device) == (9, Totals(*values), True)
    assert report.stages == stages.stats()
    assert report.info == replace(info, name=printable(name))
    for each, totals in given[:MAX_PHASES]:
        if each and each.isprintable() and len(each) <= 64 and [one for one, *_ in phases].count(each) < 2:
            assert report.phases[each] == totals
    assert list(report.phases) == list(dict.fromkeys(printable(each) or "?" for each, *_ in phases[:MAX_PHASES]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_or_refused(text: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        from_json(text)
        pytest.fail("this is no page")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
        from_json(checked(text))
        pytest.fail("this is no page")


WHOLE = json.loads(
    to_json(
        HEADER,
        [
            loader_members(LoaderInfo("a"), 1)
            | figure_members(Totals(), Stages(), [("a", PhaseTotals(1, 1, 1))], on_device=False)
        ],
    )[9:]
)


def checked(text: bytes) -> bytes:
    return b"%08x\n%b" % (zlib.crc32(text), text)


def test_a_flipped_bit_anywhere_is_a_torn_page() -> None:
    page = to_json(HEADER, [loader_members(LoaderInfo("a"), 1)])
    for at in range(len(page)):
        with pytest.raises(TornPageError):
            from_json(page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :])


VALUES: list[object] = [None, -1, 1 << 63, 1.5, True, "x", "\x1b", "a" * 65, [], {}, [1], {"a": 1}]


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all members and items."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


@pytest.mark.parametrize("path", list(places(WHOLE)), ids=lambda path: "/".join(map(str, path)))
def test_a_page_with_any_changed_member_is_valid_or_refused(path: tuple[Any, ...]) -> None:
    for value in (*VALUES, "absent"):
        changed = copy.deepcopy(WHOLE)
        inner = functools.reduce(lambda found, key: found[key], path[:-1], changed)
        if value == "absent":
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        try:
            _, loaders = from_json(checked(json.dumps(changed).encode()))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
        for loader in loaders:
            assert loader.info.name.isprintable()
            assert min(loader.figures) >= 0
            assert all(name.isprintable() and min(totals) >= 0 for name, totals in loader.phases.items())
            assert all(each.occupancy is None or 0 <= each.occupancy <= 1 for each in loader.stages.values())


# --- this process's page


def test_a_page_has_what_was_written(runtime: Path) -> None:
    stages = Stages()
    stages.read.add(64, work_ns=7, nbytes=5000, failed=2)
    stages.decode.add(64, failed=1)
    stages.queue.observe(1, 2)
    info = LoaderInfo("train", "FastLoader", 4, 3, 64, "cuda:1", rank=2, world_size=8)
    slot = Slot(info)
    assert telemetry.pages() == [], "nothing is written yet"
    slot.write(FIGURES, stages)
    page = only_page()
    assert page == telemetry.read_page(page.path)
    assert (page.pid, page.rank, page.world_size) == (os.getpid(), 2, 8)
    (loader,) = page.loaders
    assert (loader.info, loader.figures) == (info, FIGURES)
    assert loader.stages["read"].bytes == 5000
    assert [loader.stages[name].failed for name in ("read", "decode")] == [2, 1]
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


def test_a_loader_beyond_the_maximum_waits_until_another_closes() -> None:
    slots = [Slot(LoaderInfo(str(number))) for number in range(MAX_LOADERS + 1)]
    for slot in slots:
        slot.write(FIGURES)
    assert [each.info.name for each in only_page().loaders] == [str(number) for number in range(MAX_LOADERS)]
    slots[3].close()
    slots[3].close()
    slots[3].write(FIGURES)  # no effect: it is closed
    assert [int(each.info.name) for each in only_page().loaders] == [n for n in range(MAX_LOADERS + 1) if n != 3]


def test_a_failure_is_logged_once(
    runtime: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (runtime / "iofast").mkdir()
    (runtime / "iofast").chmod(0o777)
    with caplog.at_level("DEBUG"):
        for name in "abc":
            Slot(LoaderInfo(name)).write(FIGURES)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "0777" in caplog.text
    assert capfd.readouterr() == ("", "")


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


def test_a_forked_child_does_not_change_its_parents_page() -> None:
    slot = Slot(LoaderInfo("parent's"))
    slot.write(FIGURES)
    for end in (slot.close, telemetry.close_page):
        in_child(lambda end=end: end() or b"")  # type: ignore[misc]
        assert [each.info.name for each in only_page().loaders] == ["parent's"]


@pytest.mark.parametrize(
    ("end", "left"),
    [("pass", 0), ("raise SystemExit(3)", 0), ("1 / 0", 0), ("os._exit(0)", 1), ("os.kill(os.getpid(), 9)", 1)],
)
def test_exit_removes_the_page_and_the_next_process_what_a_kill_left(end: str, left: int, runtime: Path) -> None:
    program = f"""
        import os
        from iofast.meter import LoaderInfo, Slot, Totals, pages
        slot = Slot(LoaderInfo("a"))
        slot.write(Totals())
        assert len(pages()) == 1
        {end}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
    assert len(list((runtime / "iofast").iterdir())) == left
    slot = Slot(LoaderInfo("a"))
    slot.write(FIGURES)
    assert [path.name for path in (runtime / "iofast").iterdir()] == [only_page().path.name]


def test_an_exec_makes_a_new_page(runtime: Path) -> None:
    program = """
        import os, sys
        from iofast.meter import LoaderInfo, Slot, Totals, pages
        slot = Slot(LoaderInfo("second" if "again" in sys.argv else "first"))
        slot.write(Totals())
        if "again" not in sys.argv:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
        print([loader.info.name for page in pages() for loader in page.loaders])
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("['second']\n", "")
    assert list((runtime / "iofast").iterdir()) == []


def test_a_thousand_loaders_that_come_and_go() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        slot = Slot(LoaderInfo("a"))
        slot.write(FIGURES)
        slot.close()
    gc.collect()
    assert only_page().loaders == ()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the page's own
