"""`iofast bench`: its figures are those of the images it names, and its errors are one line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernel_images import jpeg, photo
from loader_sets import write_folder
from stall_loaders import Time, TimedLoader

from iofast import FastDataset, kernel, watch
from iofast import transforms as T
from iofast.bench import BUFFER, BenchOptions, FirstImages, bench
from iofast.beside import beside
from iofast.cli import main
from iofast.errors import DecodeError, OptionError
from iofast.monitor.snapshot import SystemFigures

CROP = [T.RandomResizedCrop(64), T.RandomHorizontalFlip()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images", [jpeg(photo(160 + number, 120)) for number in range(6)])


def test_every_image_is_decoded_and_every_worker_count_measured(folder: Path) -> None:
    result = bench(FastDataset(folder), CROP, BenchOptions(images=4, batch_size=2, seconds=0.01, workers=(1, 3)))
    assert result.images == sum(result.ways.values()) == result.ways["rows"] + result.ways["libjpeg"] == 4
    assert set(result.loading) == set(result.decoding) == {1, 3}
    assert min(result.rounds, *result.loading.values(), *result.decoding.values()) > 0
    assert result.stages["entropy"] + result.stages["libjpeg"] > 0
    assert result.stages["resample"] > 0
    with pytest.raises(OptionError, match="one size"):
        bench(FastDataset(folder), [T.Resize(32)], BenchOptions())
    path = folder / "bee" / "00002.jpg"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DecodeError, match=r"00002\.jpg"):
        bench(FastDataset(folder), CROP, BenchOptions(seconds=0.01))


def test_output(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON, a page that names what was measured, and with --quiet a number for each worker count."""
    monkeypatch.setattr("iofast.bench.STEPS_S", 0.05)
    command = ["bench", str(folder), "--seconds", "0.01", "--size", "32"]
    step = ["--workers", "1", "--transform", "evaluate", "--step", "5", "--batch-size", "4"]
    assert main([*command, *step, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 6
    assert list(facts["loading"]) == list(facts["decoding"]) == ["1"]
    assert set(facts["stages"]) == set(kernel.STAGES)
    assert set(facts["beside"]) == {"step_s", "beside_s", "stall", "images", "interference"}
    assert main([*command, *step]) == 0
    page = " ".join(capsys.readouterr().out.split())  # a long path wraps the line
    for words in ("6 images", "full decode", "cpu: a step of"):
        assert words in page
    assert main([*command, "--workers", "1,2", "--quiet"]) == 0
    assert len([int(line) for line in capsys.readouterr().out.splitlines()]) == 2


def test_waits_and_longer_steps_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 10 ms takes 12 with the loader's batches, and waits 20 ms for each."""
    time, seen = Time(), list[object]()

    def watched(loader: Any, device: object) -> Any:
        meter = watch(loader, device="cpu")
        meter.clock.now = time
        return meter

    def step(batch: object) -> None:
        seen.append(batch)
        time.go(10 if batch is seen[0] else 12)

    monkeypatch.setattr("iofast.beside.watch", watched)
    monkeypatch.setattr("iofast.beside.time", SimpleNamespace(perf_counter=lambda: time() / 1e9))
    found = beside(TimedLoader(time, [20] * 9), step, 5, "cpu", warm=2)
    assert (found.step_s, found.beside_s) == (pytest.approx(0.010), pytest.approx(0.032))
    assert found.stall == pytest.approx(20 / 32)
    assert found.interference == pytest.approx(0.2)


@pytest.mark.parametrize(("used", "said"), [(1.4, True), (0.1, False), (None, False)])
def test_other_programs_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, used: float | None, said: bool
) -> None:
    figures = SystemFigures(2.0, *[None] * 4, other_cores=used, busiest="pid 7, cc1")
    monkeypatch.setattr("iofast.monitor.probe.machine_facts.SystemProbe.take", lambda *_: figures)
    assert main(["bench", str(folder), "--seconds", "0.01", "--workers", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["other_cores"] == used
    line = "iofast bench: other programs used 1.4 of 2 cores meanwhile (pid 7, cc1): measure again on an idle machine\n"
    assert printed.err == (line if said else "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "two"], "expected numbers"),
        (["--workers", "0"], "workers must be"),
        (["--seconds", "0"], "seconds must be"),
        (["--images", "0"], "images must be"),
        (["--size", "0"], "size"),
        (["--step", "0"], "step_ms must be"),
        (["--device", "cudo"], "device must be"),
    ],
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    try:
        status = main(["bench", str(folder), *options])
    except SystemExit as stop:  # argparse's own
        status = int(str(stop.code))
    assert status == 2
    assert words in capsys.readouterr().err


def test_the_sample_is_what_the_loader_loads(folder: Path) -> None:
    """The stages' boxes are those of the loader's first batches: same order, same draw."""
    from iofast.loader import FastLoader
    from iofast.transforms import compile as compile_transform

    dataset, options = FastDataset(folder), BenchOptions(batch_size=3)
    sample = FirstImages(dataset, compile_transform(CROP), 3, options)
    out = np.empty((BUFFER, 64, 64, 3), np.uint8)
    sample.decode(kernel.Context(sample.options), sample.located, slice(0, 3), (sample.boxes, sample.flips), out)
    images, labels = next(iter(FastLoader(dataset, 3, True, transform=CROP)))
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), out[:3])
    np.testing.assert_array_equal(labels.numpy(), sample.located.label)
