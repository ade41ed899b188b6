"""bench_gpu.py: a window of the meter, and its parts on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import write_folder

from benchmarks.gpu import data, decode, finishing, pixels, record, resident, stress, transfer
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import PARTS
from iofast.beside import window
from iofast.meter import MeterStats, Stall

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The data of the parts, from a few given photographs."""
    folder = tmp_path_factory.mktemp("gpu")
    write_folder(folder / "photos", [jpeg(photo(300 + number, 260, number)) for number in range(40)])
    job = Job(folder, folder / "data.jsonl", CPU, 60, quick=True)
    data.run(job, folder / "photos")
    return job


@pytest.fixture
def job(made: Job, tmp_path: Path) -> Job:
    return Job(made.data, tmp_path / "log.jsonl", CPU, 60, quick=True)


def test_a_window_of_the_meter() -> None:
    """10 steps of 1 second, half of it waiting, then 30 of 2 seconds with 1.5 seconds of waiting in all."""
    begun = MeterStats("cuda", 1, 11, 10, None, 1.0, 1.0, 0.5, Stall(0.5, 0.5), None, None, {})
    ended = replace(begun, steps=40, step_mean_s=1.75, stall=Stall(6.5 / 70, 6.5 / 70))
    assert window(begun, ended) == pytest.approx(1.5 / 60)
    with pytest.raises(RuntimeError, match="saw no step: 10 before, 10 after"):
        window(begun, begun)


@pytest.mark.parametrize(
    ("part", "lacking", "but"),
    [
        (transfer, set(), ()),
        (decode, {"packed, decode='gpu'"}, ()),  # and decoders that are not installed
        (pixels, set(), ()),
        (finishing, {"decoding alone, batches of 8"}, ("decoding",)),
        (resident, set(), ()),
        (stress, {"decode='gpu'", "compute-sanitizer"}, ("gpu", "sanitizer")),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_every_goal_has_a_figure(job: Job, part: Any, lacking: set[str], but: tuple[str, ...]) -> None:
    part.run(job)
    found, lacks = record.read(job.log)
    assert all(np.isfinite(figure.value) and figure.met is None for figure in found)
    missing = {lack.what for lack in lacks}
    assert missing == lacking or (part is decode and missing > lacking)
    (its,) = (each for each in PARTS if each.name == part.__name__.rpartition(".")[2])
    goals = [ask for ask in its.asks if not any(word in ask for word in but)]
    assert [goal for goal in goals if not any(figure.name.startswith(goal) for figure in found)] == []
    if part in (pixels, stress):  # pixels that differ, batches that are wrong
        assert {figure.value for figure in found} == {0}


def test_stress_finds_a_wrong_batch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = stress.quiet

    def damaged(job: Job, loader: object) -> list[torch.Tensor]:
        batches = quiet(job, loader)  # type: ignore[arg-type]
        batches[3][1, 2, 5, 5] ^= 1
        return batches

    monkeypatch.setattr(stress, "quiet", damaged)
    stress.stressed(job, "cpu")
    assert record.read(job.log)[0][0].value == 1
