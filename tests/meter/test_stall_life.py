"""Meters on the telemetry page, after a fork, and at the end of the process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from at_once import in_child
from kernel_images import jpeg, photo
from stall_loaders import MS, Time, timed

from iofast import FastDataset, FastLoader, open_writer
from iofast import meter as telemetry
from iofast import transforms as T
from iofast.meter import LoaderReport, watch
from iofast.meter.clock import END_NS, PUBLISH_NS

pytestmark = pytest.mark.usefixtures("own_page")

Reported = Callable[[], LoaderReport]


def test_the_page_is_written_at_the_first_batch_then_regularly_and_at_the_end(time: Time, reported: Reported) -> None:
    meter = timed(time, [1] * 30)
    published = []
    for _ in meter:
        published.append(reported().figures.batch)
        time.go(PUBLISH_NS / MS / 4)
    assert sorted(set(published)) == [1, 5, 9, 13, 17, 21, 25, 29]
    figures = reported().figures
    assert (figures.epoch, figures.batch, figures.steps, figures.images) == (0, 30, 29, 240)
    assert (figures.step_ns, figures.wait_ns, figures.epoch_start_ns) == (29 * (MS + PUBLISH_NS // 4), 29 * MS, MS)
    assert figures.updated_ns == time.ns
    time.go(PUBLISH_NS / MS)
    for _ in meter:
        break
    assert reported().figures[:2] == (1, 1)


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
    with open_writer(tmp_path / "set.lmdb") as writer:
        for number in range(12):
            writer.write({"jpg": jpeg(photo(60, 40, number)), "cls": number})
    loader = FastLoader(FastDataset(tmp_path / "set.lmdb"), 5, transform=[T.RandomResizedCrop(24)], num_workers=2)
    meter = watch(watch(loader), name="train")
    for _ in range(2):
        assert [len(labels) for _, labels in meter] == [5, 5, 2]
    assert len(meter) == 3
    assert meter.epoch == 2
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
    def run(count: int) -> None:
        for _ in range(count):
            meter = watch([1, 2])
            for _ in meter:
                break

    run(200)
    gc.collect()
    (page,) = telemetry.pages()
    assert page.loaders == ()


def test_a_forked_child_goes_on_measuring_with_a_page_of_its_own(reported: Reported) -> None:
    meter = watch([np.zeros(2)] * 3)
    list(meter)

    def child() -> bool:
        list(meter)
        found = {page.pid == os.getpid(): page.loaders[0].figures.images for page in telemetry.pages()}
        telemetry.close_page()
        return (meter.stats.images, found) == (12, {False: 6, True: 12})

    assert in_child(child) == 0
    assert (meter.stats.images, reported().figures.images) == (6, 6)
    list(meter)
    assert reported().figures.images == 12


PROGRAMS: dict[str, tuple[str, str]] = {
    "without torch": (
        """
        import sys, iofast
        meter = iofast.watch([[1], [2]])
        for _ in meter:
            with meter.step("s"): pass
        print(meter.stats.batches, "torch" in sys.modules)
        """,
        "2 False\n",
    ),
    "exit with a live iterator": (
        """
        import iofast
        batches = iter(iofast.watch([1, 2, 3]))
        print(next(batches))
        """,
        "1\n",
    ),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_in_a_process_of_its_own(program: tuple[str, str]) -> None:
    text, printed = program
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == (printed, "")
