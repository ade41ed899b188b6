"""The telemetry page of this process: its text, its loaders, its meters, after a fork, and at exit."""

import gc
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from at_once import in_child
from hypothesis import given
from hypothesis import strategies as st
from loader_sets import photographs, write_numbered
from own_pages import close_page
from stall_loaders import MS, Time, timed

from iofast import FastDataset, FastLoader
from iofast import meter as telemetry
from iofast import transforms as T
from iofast.meter import (
    LoaderInfo,
    LoaderReport,
    Page,
    PhaseTotals,
    Slot,
    Stages,
    StageStats,
    Totals,
    TrafficStats,
    watch,
)
from iofast.meter.clock import END_NS, PUBLISH_NS
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
        {"read": StageStats(1, 2, 3, work_s, 0.5)},
        {each: PhaseTotals(*totals) for each, totals in phases.items()},
        True,
        TrafficStats(1, 2, 3, 4, 0.5, None),
    )
    for page in (Page(1, 2, "boot 3"), Page(1, 2, "boot 3", 4, 5, (report, report))):
        assert from_json(to_json(page)) == page
    assert printable(name).isprintable()
    assert len(printable(name)) <= 64
    assert printable(name[:64]) == name[:64] or not name[:64].isprintable()


# --- this process's page


def test_a_page_has_what_was_written(runtime: Path) -> None:
    stages = Stages()
    stages.read.add(64, work_ns=7, nbytes=5000, failed=2)
    stages.decode.add(64, failed=1)
    info = LoaderInfo("train", "FastLoader", 4, 3, 64, "cuda:1", rank=2, world_size=8)
    slot = Slot(info)
    assert telemetry.pages() == [], "nothing is written yet"
    totals = PhaseTotals(7, 6, 600)
    slot.write(FIGURES, stages, {3: totals, "": totals})  # type: ignore[dict-item] # any name that works without a page
    page = only_page()
    assert (page.pid, page.rank, page.world_size) == (os.getpid(), 2, 8)
    (loader,) = page.loaders
    assert (loader.info, loader.figures) == (info, FIGURES)
    assert loader.phases == {"3": totals, "?": totals}
    assert loader.stages["read"].bytes == 5000
    assert [loader.stages[name].failed for name in ("read", "decode")] == [2, 1]
    (path,) = runtime.rglob("*.*")
    assert path == runtime / "iofast" / f"{page.pid}-{page.start_time}.json"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]


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
    assert in_child(lambda: slot.close() is None) == 0
    assert [each.info.name for each in only_page().loaders] == ["parent's"]


@pytest.mark.parametrize(
    ("end", "left"),
    [("pass", 0), ("1 / 0", 0), ("os.kill(os.getpid(), 9)", 1)],
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


# --- meters on the page


Reported = Callable[[], LoaderReport]


def test_the_page_is_written_at_the_first_batch_then_regularly_and_at_the_end(time: Time, reported: Reported) -> None:
    meter = timed(time, [1] * 30)
    published = []
    for _ in meter:
        published.append(reported().figures.batches)
        time.go(PUBLISH_NS / MS / 4)
    assert sorted(set(published)) == [1, 5, 9, 13, 17, 21, 25, 29]
    figures = reported().figures
    assert (figures.epoch, figures.batches, figures.steps, figures.images) == (0, 30, 29, 240)
    assert (figures.step_ns, figures.wait_ns, figures.epoch_start_ns) == (29 * (MS + PUBLISH_NS // 4), 29 * MS, MS)
    assert figures.updated_ns == time.ns
    time.go(PUBLISH_NS / MS)
    for _ in meter:
        break
    assert reported().figures[:2] == (1, 31)


def test_the_ends_of_short_epochs_do_not_publish_more_often(time: Time, own_page: object) -> None:
    meter, seen = timed(time, [1] * 3), set()
    for _ in range(100):
        for _ in meter:
            time.go(1)
        ((loader,),) = (page.loaders for page in telemetry.pages())
        seen.add(loader.figures.updated_ns)
    assert max(seen) - min(seen) >= (len(seen) - 1) * END_NS > 0
    assert len(seen) >= 5


def test_a_watched_fast_loader_is_counted_once(tmp_path: Path, reported: Reported) -> None:
    dataset = FastDataset(write_numbered(tmp_path / "set.lmdb", photographs(12)))
    loader = FastLoader(dataset, 5, transform=[T.RandomResizedCrop(24)], num_workers=2)
    meter = watch(watch(loader), name="train")
    for _ in range(2):
        assert [len(labels) for _, labels in meter] == [5, 5, 2]
    assert (len(meter), meter.epoch) == (3, 2)
    stats = meter.stats
    assert (stats.epochs, stats.batches, stats.steps, stats.images) == (2, 6, 4, 24)
    assert stats == loader.clock.stats
    report = reported()
    assert (report.info.name, report.info.num_workers) == ("train", 2)
    assert (report.figures.images, report.figures.epoch, report.stages["queue"].items) == (24, 1, 6)
    for _ in meter:
        break
    gc.collect()
    assert meter.stats.batches == 7


def test_dropped_meters_leave_the_page() -> None:
    for _ in range(200):
        next(iter(watch([1, 2])))
    gc.collect()
    (page,) = telemetry.pages()
    assert page.loaders == ()


def test_a_forked_child_goes_on_measuring_with_a_page_of_its_own(reported: Reported) -> None:
    meter = watch([np.zeros(2)] * 3)
    list(meter)

    def child() -> bool:
        list(meter)
        found = {page.pid == os.getpid(): page.loaders[0].figures.images for page in telemetry.pages()}
        close_page()
        return (meter.stats.images, found) == (12, {False: 6, True: 12})

    assert in_child(child) == 0
    assert (meter.stats.images, reported().figures.images) == (6, 6)
    list(meter)
    assert reported().figures.images == 12


def test_without_torch_and_with_a_live_iterator_at_the_end() -> None:
    program = """
        import sys, iofast
        meter = iofast.watch([[1], [2]])
        for _ in meter:
            with meter.step("s"): pass
        print(meter.stats.batches, "torch" in sys.modules)
        batches = iter(meter)
        next(batches)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("2 False\n", "")
