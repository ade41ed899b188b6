"""Batches of other kinds: of many channels and all bits (`--format npy`), of one channel, and as NumPy's arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_images import jpeg, save
from loader_sets import write_numbered
from PIL import Image

from iofast import FastDataset, FastLoader, open_reader
from iofast import transforms as T
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


def first(path: Path, field: str = "image.npy", **options: Any) -> Any:
    return FastLoader(FastDataset(path, fields=[field, "label"]), N, num_workers=2, **options).peek()


ORDER = [1, 3, 5, 0, 2, 4]  # by class folders: land, sea


@pytest.mark.parametrize(
    ("target", "kind"), [("set.lmdb", "uint8"), ("set.tar", "uint16"), ("set.tfrecord", "float32")]
)
def test_from_files_to_batches(tmp_path: Path, target: str, kind: str) -> None:
    images = scenes(kind=kind)
    source = folder(tmp_path, images)
    assert main(["pack", str(source), str(tmp_path / target), "--format", "npy", "--quiet"]) == 0
    assert FastDataset(tmp_path / target).classes == ["land", "sea"]
    whole = first(tmp_path / target)
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
    made = first(tmp_path / "set.tar", "png", output="numpy")["png"]
    assert np.array_equal(made, images)
    plain, _ = next(iter(FastLoader(FastDataset(tmp_path / "set.tar"), N)))
    assert np.array_equal(plain.numpy(), (images >> 8).astype(np.uint8).transpose(0, 3, 1, 2))


def test_rgb_of_many_channels_says_what_to_do(tmp_path: Path) -> None:
    dataset = FastDataset(folder(tmp_path, scenes()))
    for read in (FastLoader(dataset, 2).peek, lambda: dataset[0]):
        with pytest.raises(DecodeError, match=r"fields=\['image.npy'\] loads it"):
            read()


def test_view_draws_three_channels(tmp_path: Path) -> None:
    images = scenes()
    shown = lossless.shown(arrays.write_npy(images[0]))
    first = images[0][:, :, :3].astype(float)
    assert np.array_equal(shown, np.rint((first - first.min()) * 255 / np.ptp(first)))
    gray = lossless.shown(arrays.write_npy(np.full((4, 5, 1), np.nan, np.float32)))
    assert (gray.shape, gray.any()) == ((4, 5, 3), False)
    assert main(["view", str(folder(tmp_path, images)), str(tmp_path / "sheet.png"), "--quiet"]) == 0


def test_arrays_beside_images_are_no_images(tmp_path: Path) -> None:
    source = folder(tmp_path, scenes())
    np.save(source / "land" / "features.npy", np.zeros(768, np.float32))

    def names() -> list[str]:
        reader = open_reader(source)
        return [Path(reader.name(index)).name for index in range(len(reader))]

    assert names() == [f"{number}.npy" for number in ORDER]
    (source / "sea" / "0.png").write_bytes(png.write(scenes(3)[0]))
    assert names() == ["0.png"]


# --- one channel

CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


def pictures(place: Path, *, gray: bool = False) -> FastDataset:
    rng, images = np.random.default_rng(3), []
    for _ in range(N):
        image = rng.integers(0, 256, (6, 7, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        images.append(save(Image.fromarray(image[..., 0]), "JPEG", quality=95) if gray else jpeg(image, quality=95))
    return FastDataset(write_numbered(place / "set.lmdb", images))


def batch(dataset: FastDataset, image_mode: Any = "L", **options: Any) -> Any:
    return FastLoader(dataset, N, seed=2, image_mode=image_mode, **options).peek()[0]


def test_gray_pictures_keep_their_levels(tmp_path: Path) -> None:
    dataset = pictures(tmp_path, gray=True)
    made = batch(dataset)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((N, 1, 48, 56), torch.uint8, True)
    assert np.array_equal(made[:, 0], np.stack([image.convert("L") for image, _ in dataset]))


@pytest.mark.parametrize("transform", [None, [*CROP, T.ColorJitter(0.4, 0.4, 0.4), T.RandomRotation(30)]])
def test_colours_become_what_pillow_makes_of_them(tmp_path: Path, transform: Any) -> None:
    dataset = pictures(tmp_path)
    colours, made = (batch(dataset, mode, transform=transform) for mode in ("RGB", "L"))
    wanted = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in colours]
    assert np.array_equal(made[:, 0], np.stack([np.asarray(image) for image in wanted]))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_floats_are_normalised_levels(tmp_path: Path, dtype: torch.dtype, close: float) -> None:
    dataset = pictures(tmp_path)
    plain = batch(dataset, transform=CROP).float() / 255
    for more, wanted in (([], plain), ([T.Normalize([0.4], [0.2])], (plain - 0.4) / 0.2)):
        made = batch(dataset, transform=[*CROP, *more], dtype=dtype)
        assert made.shape == (N, 1, 24, 24)
        assert torch.allclose(made.float(), wanted, atol=close)


def test_views_lists_caches_and_mixing(tmp_path: Path) -> None:
    dataset = pictures(tmp_path)
    views = batch(dataset, transform=T.Views(a=(2, CROP), b=[T.CenterCrop(16)]))
    assert [each.shape for each in (*views["a"], views["b"])] == [(N, 1, 24, 24)] * 2 + [(N, 1, 16, 16)]
    listed, padded = (batch(dataset, transform=[T.RandomResize(20, 40)], ragged=ragged) for ragged in ("list", "pad"))
    assert {each.shape[0] for each in listed} == {1}
    assert padded.shape[:2] == (N, 1)
    kept, anew = (batch(dataset, transform=CROP, cache=cache) for cache in ("device", None))
    assert kept.shape == anew.shape
    assert (kept.int() - anew.int()).abs().max() <= 1
    mixed = batch(dataset, transform=[*CROP, T.MixUp(num_classes=N)], dtype=torch.float32)
    assert mixed.shape == (N, 1, 24, 24)


# --- output="numpy"


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_same_batches_as_arrays(numbered: FastDataset, layout: torch.memory_format) -> None:
    options: dict[str, Any] = {"shuffle": True, "transform": [*CROP, T.Normalize.imagenet()], "dtype": torch.float32}
    tensors, arrays = (FastLoader(numbered, 8, memory_format=layout, output=o, **options) for o in ("torch", "numpy"))
    for (images, labels), (own_images, own_labels) in zip(tensors, list(arrays), strict=True):
        assert type(own_images) is type(own_labels) is np.ndarray
        assert own_images.dtype == np.float32
        assert np.array_equal(own_images, images.numpy())
        assert np.array_equal(own_labels, labels.numpy())
        assert own_images.transpose(0, 2, 3, 1).flags.c_contiguous == (layout == torch.channels_last)


def test_views_fields_and_lists_of_arrays(numbered: FastDataset) -> None:
    dataset = FastDataset(numbered.path, fields=["image", "label", "key"])
    batch = FastLoader(dataset, 8, transform=[T.Resize((9, 9))], output="numpy").peek()
    kinds = {"image": np.ndarray, "label": np.ndarray, "key": list, "valid": np.ndarray}
    assert {name: type(column) for name, column in batch.items()} == kinds
    images, _ = FastLoader(numbered, 8, output="numpy", ragged="list").peek()
    assert [(type(image), image.dtype) for image in images] == [(np.ndarray, np.uint8)] * 8
    views = T.Views(big=[T.RandomResizedCrop(24)], small=[T.RandomResizedCrop(8)])
    given: list[Any] = []  # map_batch gets arrays
    seen, _ = FastLoader(numbered, 8, transform=views, output="numpy", map_batch=lambda b: given.append(b) or b).peek()
    assert {name: each.shape for name, each in seen.items()} == {"big": (8, 3, 24, 24), "small": (8, 3, 8, 8)}
    assert type(given[0][0]["big"]) is np.ndarray


def test_dlpack_of_a_tensor(numbered: FastDataset) -> None:
    """Another framework takes a tensor without a copy."""
    images, _ = FastLoader(numbered, 8, transform=[T.Resize((9, 9))]).peek()
    assert np.from_dlpack(images).ctypes.data == images.data_ptr()
