"""The report of `iofast run`, from what processes noted."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from iofast.run import notes, summary

NAME = "DataLoader(ImageFolder, 64, num_workers=2) at train.py:7"
NOTHING: dict[str, Any] = {
    name: {} for name in ("counts", "nanoseconds", "loaders", "decoded_whole_by_line", "left_alone", "untested")
}
WORKER = NOTHING | {"counts": {"lazy": 400, "checked": 20, "timed": 16}, "nanoseconds": {"shadow": 16 * 5_000_000}}


def process(pid: int, workers: int, processes: list[int], begun: int = 0) -> dict[str, Any]:
    """A training process that got an image each 1 ms, a fifth of it waiting."""
    loop = {"decoded": 700, "images": 640, "nanoseconds": 640_000_000, "waited": 128_000_000, "processes": processes}
    loop |= {"begun": begun, "ended": begun + 700_000_000}  # with pauses
    options = {"workers": workers, "batch_size": 64, "shuffled": True, "folder": "photos/train"}
    return NOTHING | {"pid": pid, "counts": {"decoded for the loop": 700}, "loaders": {NAME: loop | options}}


ALONE = process(1, 0, [1]) | {"nanoseconds": {"shadow": 5_000_000}, "counts": {"lazy": 1, "checked": 5, "timed": 1}}
LATER = 900_000_000


@pytest.mark.parametrize(
    ("processes", "rate", "before", "wait"),
    [
        ([process(1, 2, [2, 3]), {"pid": 2} | WORKER, {"pid": 3} | WORKER], 1000, 400, 0.68),  # 5 ms by two workers
        ([process(1, 2, [2]), process(4, 2, [5]), {"pid": 2} | WORKER, {"pid": 5} | WORKER], 2000, 800, 0.68),
        ([process(1, 2, [2]), process(4, 2, [5], LATER), {"pid": 2} | WORKER, {"pid": 5} | WORKER], 1000, 400, 0.68),
        ([ALONE], 1000, 172, 0.862),
    ],
    ids=["two workers", "two ranks", "two runs in sequence", "no workers"],
)
def test_rates_and_waits(processes: list[dict[str, Any]], rate: int, before: int, wait: float) -> None:
    (loader,) = summary.report(["python"], 0, processes)["loaders"]
    assert loader["now"] == {"images_per_s": rate, "wait": 0.2}
    assert loader["before"] == {"images_per_s_at_most": before, "wait_at_least": wait}


def test_lines() -> None:
    processes = [process(1, 2, [2, 3]), {"pid": 2} | WORKER, {"pid": 3} | WORKER]
    lines = summary.lines(summary.report(["python"], 0, processes))
    assert (
        f"{NAME}: 1,000 images/s, the loop waits 20% of the time; before, by the checked images: at most 400 images/s, "
        "waiting at least 68%"
    ) in lines
    at = lines.index("    iofast pack photos/train out.lmdb --resize 256")
    assert lines[at - 1].startswith(f"{NAME} could be a FastLoader")
    assert "FastDataset('out.lmdb'), 64, shuffle=True" in lines[at + 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads
def test_a_worker_writes_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notes.FOLDER, str(tmp_path))
    monkeypatch.setattr(notes, "_notes", None)  # as where the training process opens no images
    worker = multiprocessing.get_context("fork").Process(target=notes.count, args=("lazy", 3))
    worker.start()
    worker.join(60)
    assert json.loads((tmp_path / f"{worker.pid}.json").read_text())["counts"] == {"lazy": 3}
