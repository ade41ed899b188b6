"""bench_gpu.py: a window of the meter, and its parts on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, photo
from loader_sets import write_folder

from benchmarks.gpu import data, decode, finishing, pixels, resident, stress, transfer
from benchmarks.gpu.job import Job, read
from iofast.beside import window
from iofast.meter import MeterStats, Stall

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The data of the parts, from a few given photographs."""
    folder = tmp_path_factory.mktemp("gpu")
    write_folder(folder / "photos", [jpeg(photo(300 + number, 260, number)) for number in range(40)])
    job = Job(folder, folder / "data.jsonl", CPU, 60, quick=True, photos=folder / "photos")
    data.run(job)
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


def figures(job: Job) -> set[str]:
    found, _ = read(job.log)
    assert all(np.isfinite(figure.value) and figure.met is None for figure in found)
    return {figure.name for figure in found}


def lacks(job: Job) -> dict[str, str]:
    """What a GPU or a library is missing for, and why."""
    return {lack.what: lack.why for lack in read(job.log)[1]}


@pytest.mark.parametrize(
    ("part", "lacking", "wanted"),
    [
        (transfer, set(), {"raw pixels: exposed stall, by iofast's clock", "packed photographs: a step"}),
        (
            decode,
            {"packed, decode='gpu'"},
            {"cache='device', batches of 8", "originals, end to end: the best way (cpu)"},
        ),
        (pixels, set(), {"crops: images that differ of 16", "crops, cache='device': images that differ of 16"}),
        (finishing, {"decoding alone, batches of 8"}, {"8 decoded images, RandAugment"}),
        (resident, set(), {"the best, batches of 64"}),
        (stress, {"decode='gpu'", "compute-sanitizer"}, {"decode='cpu': corrupt batches of 8"}),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_every_part_has_its_figures(job: Job, part: Any, lacking: set[str], wanted: set[str]) -> None:
    part.run(job)
    assert wanted <= figures(job)
    assert lacks(job).keys() == lacking or (part is decode and lacks(job).keys() > lacking)  # decoders are not here
    if part in (pixels, stress):  # pixels that differ, batches that are wrong
        assert {figure.value for figure in read(job.log)[0]} == {0}


def test_stress_finds_a_wrong_batch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = stress.quiet

    def damaged(job: Job, loader: object) -> list[torch.Tensor]:
        batches = quiet(job, loader)  # type: ignore[arg-type]
        batches[3][1, 2, 5, 5] ^= 1
        return batches

    monkeypatch.setattr(stress, "quiet", damaged)
    stress.stressed(job, "cpu")
    assert read(job.log)[0][0].value == 1
