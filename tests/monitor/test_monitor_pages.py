"""Loaders that report from inside: differences of telemetry pages, and other ranks' pages."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from proc_folder import running

from iofast.meter import LoaderInfo, LoaderReport, PhaseTotals, Slot, StageStats, Totals
from iofast.monitor.find import job_of
from iofast.monitor.probe.pages import PagesProbe, difference
from iofast.monitor.snapshot import Job, LoaderFigures

BEFORE = Totals(2, 10, 80, 9, 9_000_000_000, 900_000_000, 10, 100, 1_000, 1)


def report(figures: Totals, serial: int = 1, device: str = "cuda:0", **stages: StageStats) -> LoaderReport:
    info = LoaderInfo("train", "FastLoader", 4, 8, 16, device)
    return LoaderReport(serial, info, figures, stages)


def test_difference_of_reports() -> None:
    now = Totals(2, 14, 144, 13, 11_000_000_000, 1_900_000_000, 10, 500_000_100, 2_000_001_000, 2)
    then = report(
        BEFORE, read=StageStats(work_s=1.0), transfer=StageStats(work_s=0.5, wait_s=0.2), decode=StageStats(failed=1)
    )
    after = report(
        now, read=StageStats(work_s=1.5), transfer=StageStats(work_s=9.0, wait_s=0.3), decode=StageStats(failed=3)
    )
    found = difference(then, after)
    assert (found.batches, found.steps, found.images, found.step_s, found.wait_s) == (4, 4, 64, 0.5, 1.0)
    assert (found.exposed_s, found.device_step_s) == (0.5, 2.0)
    assert (found.stages["read"], found.transfer_s, found.failed) == (0.5, pytest.approx(0.1), 2)
    assert (found.name, found.kind, found.num_workers, found.epoch) == ("train", "FastLoader", 4, 2)


def test_phases_of_an_interval() -> None:
    then = LoaderReport(1, LoaderInfo("train"), BEFORE, {}, {"forward": PhaseTotals(10, 8, 800_000_000)}, True)
    totals = {
        "forward": PhaseTotals(14, 10, 1_200_000_000),  # entered 4 times; 2 were timed: 0.2 s each
        "idle": PhaseTotals(3, 3, 5),
        "new": PhaseTotals(2, 2, 100_000_000),
        "not yet passed": PhaseTotals(1, 0, 0),
    }
    before = replace(then, phases=then.phases | {"idle": totals["idle"]})
    found = difference(before, replace(then, phases=totals))
    assert found.phases == {"forward": pytest.approx(0.8), "new": pytest.approx(0.1)}
    assert found.phases_on_device
    totals["forward"] = PhaseTotals(12, 8, 800_000_000)  # the device lies behind: the mean until now, 0.1 s
    assert difference(before, replace(then, phases=totals)).phases["forward"] == pytest.approx(0.2)
    assert difference(before, then).phases == {}


@pytest.fixture
def own_pages(own_page: Path) -> Job:
    return job_of(os.getpid())


def test_train_and_validation(own_pages: Job) -> None:
    """The one that advanced is live; one that is closed is gone; a page that comes later is found."""
    probe = PagesProbe(own_pages)
    assert probe.take() == ()
    train, valid = Slot(LoaderInfo("train")), Slot(LoaderInfo("valid"))
    train.write(BEFORE)
    assert live(probe.take()) == {"train": 10}
    train.write(BEFORE._replace(steps=12, batches=13, updated_ns=2))
    assert live(probe.take()) == {"train": 3}
    valid.write(Totals(0, 4, 8, 3, 5, 5, 5, 0, 0, 3))
    found = probe.take()
    assert live(found) == {"valid": 4}
    assert [(each.name, each.batches) for each in found] == [("train", 0), ("valid", 4)]
    assert live(probe.take()) == {"valid": 0}  # nobody advanced: the one that did last
    valid.close()
    assert live(probe.take()) == {"train": 0}
    train.close()
    assert probe.take() == ()


def live(found: tuple[LoaderFigures, ...]) -> dict[str, int]:
    return {each.name: each.batches for each in found if each.live}


def test_what_was_before_does_not_count(own_pages: Job) -> None:
    slot = Slot(LoaderInfo("train"))
    slot.write(BEFORE)
    probe = PagesProbe(own_pages)
    assert live(probe.take()) == {"train": 0}
    another = BEFORE._replace(steps=2, step_ns=5, wait_ns=BEFORE.wait_ns + 10**9, updated_ns=9)
    slot.write(another)  # totals fell: another loader of that number
    (found,) = probe.take()
    assert (found.batches, found.step_s, found.wait_s) == (0, None, 0.0)
    slot.close()


def test_peers_by_pages(own_pages: Job) -> None:
    program = """
        import time
        from iofast.meter import LoaderInfo, Slot, Totals
        slot = Slot(LoaderInfo("train", rank=1, world_size=2))
        for turn in (1, 2):
            slot.write(Totals(0, turn, turn, turn, turn * 1000, turn * 250, 1, 0, 0, turn))
            print(turn, flush=True)
            input()
    """
    mine = Slot(LoaderInfo("train", rank=0, world_size=2))
    mine.write(BEFORE)
    probe = PagesProbe(own_pages)
    assert (probe.rank, probe.world_size) == (job_of(os.getpid()).rank, job_of(os.getpid()).world_size) == (0, 2)
    with running(program) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        probe.take()
        assert probe.peers == {}
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "2\n"
        probe.take()
        assert probe.peers == {1: 0.25}
    mine.close()
