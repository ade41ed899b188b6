"""Images of many channels and all bits, from files to batches: `--format npy` and `image_mode="array"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast import transforms as T
from iofast.choices import Draw
from iofast.cli import main
from iofast.errors import DecodeError, OptionError
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


def batch(dataset: FastDataset, **options: Any) -> Any:
    return next(iter(FastLoader(dataset, N, num_workers=2, image_mode="array", seed=2, **options)))


ORDER = [1, 3, 5, 0, 2, 4]  # by class folders: land, sea


@pytest.mark.parametrize("target", ["set.lmdb", "set.tar", "set.tfrecord"])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_from_files_to_batches(tmp_path: Path, target: str, kind: str) -> None:
    images = scenes(kind=kind)
    source = folder(tmp_path, images)
    assert main(["pack", str(source), str(tmp_path / target), "--format", "npy", "--quiet"]) == 0
    dataset = FastDataset(tmp_path / target)
    assert dataset.classes == ["land", "sea"]
    made, labels = batch(dataset)
    assert made.dtype == {"uint8": torch.uint8, "uint16": torch.int32, "float32": torch.float32}[kind]
    assert np.array_equal(made.numpy(), images[ORDER].transpose(0, 3, 1, 2))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(batch(FastDataset(source))[0].numpy(), made.numpy())
    assert main(["verify", str(tmp_path / target), "--quiet"]) == 0
    assert main(["convert", str(tmp_path / target), str(tmp_path / "again"), "--quiet"]) == 0
    assert np.array_equal(np.load(tmp_path / "again" / "sea" / "0.npy"), images[0])


def test_values_as_a_field(tmp_path: Path) -> None:
    images = scenes()
    with open_writer(tmp_path / "set.lmdb") as writer:
        for image in images:
            writer.write({"image.npy": arrays.write_npy(image)})
    dataset = FastDataset(tmp_path / "set.lmdb", fields=["image.npy", "index"])
    assert np.array_equal(dataset[2]["image.npy"], images[2])


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_crops_and_normalize(tmp_path: Path, kind: str) -> None:
    images = scenes(kind=kind)
    dataset = FastDataset(folder(tmp_path, images))
    crop = [T.RandomResizedCrop(12), T.RandomHorizontalFlip()]
    boxes, flips = T.compile(crop).plan(Draw(2, 0, np.arange(N)), np.full(N, 24), np.full(N, 20))
    wanted = np.stack(
        [
            lossless.resample(images[ORDER[row]], tuple(boxes[row].tolist()), (12, 12), "bilinear")[
                :, :: -1 if flips[row] & 1 else 1
            ]
            for row in range(N)
        ]
    ).transpose(0, 3, 1, 2)
    assert np.array_equal(batch(dataset, transform=crop)[0].numpy(), wanted)
    mean, std = np.linspace(0.1, 0.9, 13), np.linspace(0.2, 0.8, 13)
    white = {"uint8": 255, "uint16": 65535, "float32": 1}[kind]
    for numbers in ((mean, std), ([0.5], [0.25])):
        transform = [*crop, T.Normalize(*(np.asarray(each).tolist() for each in numbers))]
        made = batch(dataset, transform=transform, dtype=torch.float32)[0].numpy()
        own = [np.broadcast_to(np.asarray(each), 13).reshape(13, 1, 1) for each in numbers]
        assert np.allclose(made, (wanted / white - own[0]) / own[1], atol=1e-4)


def test_png_of_16_bits_and_numpy(tmp_path: Path) -> None:
    images = scenes(3)
    place = tmp_path / "photos"
    place.mkdir()
    for number, image in enumerate(images):
        (place / f"{number}.png").write_bytes(png.write(image))
    assert main(["pack", str(place), str(tmp_path / "set.tar"), "--format", "png", "--quiet"]) == 0
    made, _ = batch(FastDataset(tmp_path / "set.tar"), output="numpy")
    assert np.array_equal(made, images.transpose(0, 3, 1, 2))
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


def test_an_image_of_other_channels_fails_alone(tmp_path: Path) -> None:
    source = folder(tmp_path, scenes())
    (source / "sea" / "2.npy").write_bytes(arrays.write_npy(scenes(12)[2]))
    with pytest.raises(DecodeError, match=r"2\.npy.*expected 13 channels of uint16, as the first image has"):
        batch(FastDataset(source))
    assert len(batch(FastDataset(source), on_error="drop")[0]) == N - 1


def test_rgb_of_many_channels_says_what_to_do(tmp_path: Path) -> None:
    dataset = FastDataset(folder(tmp_path, scenes()))
    with pytest.raises(DecodeError, match="image_mode='array' loads such"):
        next(iter(FastLoader(dataset, 2)))
    with pytest.raises(DecodeError, match="image_mode='array' loads such"):
        dataset[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": [T.Resize((8, 8)), T.ColorJitter(0.4)]}, "ColorJitter"),
        ({"transform": [T.Normalize([0.5, 0.4], [0.2, 0.2])], "dtype": torch.float32}, "Normalize of several channels"),
        ({"transform": [T.RandomCrop(8, padding=2)]}, "RandomCrop"),
        ({"cache": "device"}, "cache"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_there_is_not(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    dataset = FastDataset(folder(tmp_path, scenes()))
    with pytest.raises(OptionError, match=f"image_mode='array' does not go with {message}"):
        FastLoader(dataset, 2, image_mode="array", **options)


def test_rgb_has_three_channels(tmp_path: Path) -> None:
    dataset = FastDataset(folder(tmp_path, scenes(3, "uint8")))
    transform = [T.Normalize([0.5] * 13, [0.2] * 13)]
    with pytest.raises(OptionError, match="Normalize of 13 channels needs image_mode='array'"):
        FastLoader(dataset, 2, transform=transform, dtype=torch.float32)
    with pytest.raises(OptionError, match="equally many numbers"):
        T.Normalize([0.5] * 13, [0.2] * 12)


def test_options_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path, scenes())
    assert main(["pack", str(source), str(tmp_path / "a.lmdb"), "--format", "npy", "--icc", "srgb"]) == 2
    assert "--icc srgb has no effect" in capsys.readouterr().err


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
