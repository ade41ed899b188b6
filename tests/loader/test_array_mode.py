"""Images of many channels and all bits, from files to batches: `--format npy`, and `fields`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iofast import FastDataset, FastLoader, open_reader
from iofast.cli import main
from iofast.errors import DecodeError
from iofast.kernel import arrays, lossless, png

N = 6


def scenes(channels: int = 13, kind: str = "uint16") -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(4)
    if kind == "float32":
        return rng.normal(0, 9, (N, 20, 24, channels)).astype(np.float32)
    return rng.integers(0, np.iinfo(kind).max + 1, (N, 20, 24, channels)).astype(kind)


def folder(place: Path, images: np.ndarray[Any, Any]) -> Path:
    for number, image in enumerate(images):
        own = place / "scenes" / ("land" if number % 2 else "sea")
        own.mkdir(parents=True, exist_ok=True)
        (own / f"{number}.npy").write_bytes(arrays.write_npy(image))
    return place / "scenes"


def batch(path: Path, field: str = "image.npy", **options: Any) -> Any:
    dataset = FastDataset(path, fields=[field, "label"])
    return next(iter(FastLoader(dataset, N, num_workers=2, seed=2, **options)))


ORDER = [1, 3, 5, 0, 2, 4]  # by class folders: land, sea


@pytest.mark.parametrize(
    ("target", "kind"), [("set.lmdb", "uint8"), ("set.tar", "uint16"), ("set.tfrecord", "float32")]
)
def test_from_files_to_batches(tmp_path: Path, target: str, kind: str) -> None:
    images = scenes(kind=kind)
    source = folder(tmp_path, images)
    assert main(["pack", str(source), str(tmp_path / target), "--format", "npy", "--quiet"]) == 0
    assert FastDataset(tmp_path / target).classes == ["land", "sea"]
    whole = batch(tmp_path / target)
    made = whole["image.npy"]
    assert made.dtype == {"uint8": torch.uint8, "uint16": torch.int32, "float32": torch.float32}[kind]
    assert np.array_equal(made.numpy(), images[ORDER])
    assert whole["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert main(["verify", str(tmp_path / target), "--quiet"]) == 0
    assert main(["convert", str(tmp_path / target), f"{tmp_path}/again/", "--quiet"]) == 0
    assert np.array_equal(np.load(tmp_path / "again" / "sea" / "0.npy"), images[0])


def test_png_of_16_bits_and_numpy(tmp_path: Path) -> None:
    images = scenes(3)
    place = tmp_path / "photos"
    place.mkdir()
    for number, image in enumerate(images):
        (place / f"{number}.png").write_bytes(png.write(image))
    assert main(["pack", str(place), str(tmp_path / "set.tar"), "--format", "png", "--quiet"]) == 0
    made = batch(tmp_path / "set.tar", "png", output="numpy")["png"]
    assert np.array_equal(made, images)
    plain, _ = next(iter(FastLoader(FastDataset(tmp_path / "set.tar"), N)))
    assert np.array_equal(plain.numpy(), (images >> 8).astype(np.uint8).transpose(0, 3, 1, 2))


def test_arrays_beside_images_are_no_images(tmp_path: Path) -> None:
    source = folder(tmp_path, scenes())
    np.save(source / "land" / "features.npy", np.zeros(768, np.float32))
    reader = open_reader(source)
    names = [reader.name(index).rpartition("/")[2] for index in range(len(reader))]
    assert names == [f"{number}.npy" for number in ORDER]
    (source / "sea" / "0.png").write_bytes(png.write(scenes(3)[0]))
    reader = open_reader(source)
    assert [reader.name(index).rpartition("/")[2] for index in range(len(reader))] == ["0.png"]
    assert reader.manifest.count == 1


def test_rgb_of_many_channels_says_what_to_do(tmp_path: Path) -> None:
    dataset = FastDataset(folder(tmp_path, scenes()))
    with pytest.raises(DecodeError, match=r"fields=\['image.npy'\] loads it"):
        next(iter(FastLoader(dataset, 2)))
    with pytest.raises(DecodeError, match=r"fields=\['image.npy'\] loads it"):
        dataset[0]


def test_view_draws_three_channels(tmp_path: Path) -> None:
    images = scenes()
    shown = lossless.shown(arrays.write_npy(images[0]))
    first = images[0][:, :, :3].astype(float)
    wanted = np.rint((first - first.min()) * 255 / np.ptp(first))
    assert np.array_equal(shown, wanted)
    gray = lossless.shown(arrays.write_npy(np.full((4, 5, 1), np.nan, np.float32)))
    assert gray.shape == (4, 5, 3)
    assert not gray.any()
    assert main(["view", str(folder(tmp_path, images)), str(tmp_path / "sheet.png"), "--quiet"]) == 0
