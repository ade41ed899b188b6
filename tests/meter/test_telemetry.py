"""A page's text, and this process's page: written and read, after a fork, and at exit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from at_once import in_child
from hypothesis import given
from hypothesis import strategies as st

from iofast import meter as telemetry
from iofast.meter import (
    LoaderInfo,
    LoaderReport,
    Page,
    PhaseTotals,
    Slot,
    Stages,
    StageStats,
    StallClock,
    Totals,
    TrafficStats,
)
from iofast.meter.page import MAX_LOADERS, from_json, printable, to_json

FIGURES = Totals(3, 7, 448, 6, 60_000, 5_000, 4_000, 300, 20_000, 123_456)


@pytest.fixture(autouse=True)
def runtime(own_page: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page; the process has no rank."""
    monkeypatch.delenv("RANK", raising=False)
    return own_page


def only_page() -> Page:
    (page,) = telemetry.pages()
    return page


# --- the text of a page

counts = st.integers(0, (1 << 63) - 1)


@given(
    name=st.text(max_size=90),
    values=st.tuples(*[counts] * 10),
    work_s=st.floats(0, 1e9),
    phases=st.dictionaries(st.text(max_size=80), st.tuples(counts, counts, counts), max_size=4),
)
def test_what_is_written_is_read(
    name: str, values: tuple[int, ...], work_s: float, phases: dict[str, tuple[int, int, int]]
) -> None:
    report = LoaderReport(
        9,
        LoaderInfo(name, "FastLoader", 1, 2, 3, "cuda:1", rank=4, world_size=5),
        Totals(*values),
        {"read": StageStats(1, 2, 3, work_s, 0.5, None)},
        {each: PhaseTotals(*totals) for each, totals in phases.items()},
        True,
        TrafficStats(1, 2, 3, 4, 0.5, None),
    )
    for page in (Page(1, 2, "boot 3"), Page(1, 2, "boot 3", 4, 5, (report, report))):
        assert from_json(to_json(page)) == page


@given(st.text(max_size=90))
def test_names_are_printable(name: str) -> None:
    assert printable(name).isprintable()
    assert len(printable(name)) <= 64
    assert printable(name[:64]) == name[:64] or not name[:64].isprintable()


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
    assert page == telemetry.page_of(page.pid, page.start_time)
    assert (page.pid, page.rank, page.world_size) == (os.getpid(), 2, 8)
    (loader,) = page.loaders
    assert (loader.info, loader.figures) == (info, FIGURES)
    assert loader.stages["read"].bytes == 5000
    assert [loader.stages[name].failed for name in ("read", "decode")] == [2, 1]
    assert loader.stages["queue"].occupancy == 0.5
    (path,) = runtime.rglob("*.*")
    assert path == runtime / "iofast" / f"{page.pid}-{page.start_time}.json"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]


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


def test_a_forked_child_does_not_change_its_parents_page() -> None:
    slot = Slot(LoaderInfo("parent's"))
    slot.write(FIGURES)
    for end in (slot.close, telemetry.close_page):
        assert in_child(lambda end=end: end() is None) == 0  # type: ignore[misc]
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
    assert len(list((runtime / "iofast").iterdir())) == len(telemetry.pages()) == 1


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


# --- phases

TOTALS = {"forward": PhaseTotals(7, 6, 600), "backward": PhaseTotals(5, 4, 300)}


def test_phases_disappear_with_their_loader(reported: Callable[[], LoaderReport]) -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(Totals(), None, TOTALS, on_device=True)
    assert (reported().phases, reported().phases_on_device) == (TOTALS, True)
    slot.close()
    Slot(LoaderInfo("another")).write(Totals())
    assert reported().phases == {}


def test_any_name_of_a_phase_is_published(reported: Callable[[], LoaderReport]) -> None:
    clock = StallClock(LoaderInfo("train"))
    for name in (3, ""):
        with clock.step(name):  # type: ignore[arg-type] # any name that works without a page works with one
            pass
    clock.publish(0, 1, clock.now())
    assert list(reported().phases) == ["3", "?"]
