"""Images that were rewritten in place after they were indexed are read as they are now."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_model import decode_there, lend
from foreign_lmdbs import write as write_lmdb
from kernel_images import exif, jpeg, photo, save
from loader_sets import digest, upright
from PIL import Image
from tar_sets import foreign

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.cli import main
from iofast.errors import DecodeError
from iofast.source import folder_index as index_module

COUNT = 24


def picture(number: int, width: int, height: int, orientation: int = 1) -> bytes:
    return jpeg(photo(width, height, number), **({"exif": exif(orientation)} if orientation > 1 else {}))


def before(number: int) -> bytes:
    return b"no image" if number == 5 else picture(number, 80, 60, 6 if number % 4 == 2 else 1)


def after(number: int) -> bytes:
    """Enlarged, turned, made smaller, replaced by another format: three of four images, and one that was none."""
    if number % 4 == 1:
        return picture(number, 80, 60) if number == 5 else before(number)
    if number % 4 == 0:
        return picture(number, 160, 120)
    if number % 4 == 2:  # its orientation is baked in, of some with the size that it has upright
        return picture(number, 60, 80) if number == 6 else picture(number, 80, 60, 3)
    return save(Image.fromarray(photo(50, 40, number)), "PNG")


CHANGED = [number for number in range(COUNT) if before(number) != after(number)]


def write(root: Path, make: Callable[[int], bytes]) -> Path:
    for number in range(COUNT):
        path = root / "ab"[number % 2] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make(number))
    for folder in (root, root / "a", root / "b"):  # long ago: an index of now is not trusted yet
        os.utime(folder, (1_000_000_000, 1_000_000_000))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "root", before)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A folder that had the new images from the start."""
    return write(tmp_path / "fresh", after)


def numbers(dataset: FastDataset) -> list[int]:
    return [int(Path(dataset.reader.name(i)).stem) for i in range(len(dataset))]


TRANSFORMS: dict[str, dict[str, Any]] = {
    "training": {"transform": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()], "shuffle": True},
    "evaluation": {"transform": [T.Resize(36), T.CenterCrop(32)]},
    "ragged": {"ragged": "pad"},
    "short side": {"transform": [T.Resize(24)], "ragged": "pad"},
    "in memory": {"transform": T.train(32), "cache": "device", "shuffle": True, "dtype": torch.float32},
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_loader_gives_what_it_would_of_a_new_folder(
    root: Path, fresh: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = FastDataset(root)
    loader = FastLoader(dataset, 7, seed=3, num_workers=2, **TRANSFORMS[name])
    write(root, after)
    expected = FastLoader(FastDataset(fresh), 7, seed=3, num_workers=1, **TRANSFORMS[name])
    with caplog.at_level(logging.WARNING, "iofast"):
        assert digest(loader) == digest(expected)
    assert loader.stats.changed == len(CHANGED)
    assert f"{len(CHANGED)} changed files" in str(loader.stats)
    assert [record.name for record in caplog.records] == ["iofast"]
    assert "was changed after it was indexed" in caplog.text
    assert expected.stats.changed == 0
    assert "changed" not in str(expected.stats)
    if loader.options.cache is None:
        assert digest(loader) == digest(expected)
        assert loader.stats.changed == len(CHANGED)


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "batches"])
def test_a_dataset_gives_the_images_that_are_there(root: Path, batched: bool) -> None:
    dataset = FastDataset(root)
    write(root, after)
    images = dataset.__getitems__(range(COUNT)) if batched else [dataset[i] for i in range(COUNT)]
    for number, (image, _) in zip(numbers(dataset), images, strict=True):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(upright(after(number))), err_msg=str(number))
    assert dataset.reader.changed == len(CHANGED)
    again = FastDataset(root)  # which looks at the files
    assert again.sizes()[0].tolist() == [upright(after(number)).size[0] for number in numbers(again)]
    assert again.reader.changed == 0


def test_a_folder_beside_a_container(root: Path, fresh: Path, tmp_path: Path) -> None:
    assert main(["pack", str(root), str(tmp_path / "packed.lmdb"), "--max-errors", "100%", "--quiet"]) == 3
    joined = FastDataset([tmp_path / "packed.lmdb", root])
    write(root, after)
    expected = FastDataset([tmp_path / "packed.lmdb", fresh])
    assert digest(FastLoader(joined, 8, **TRANSFORMS["training"])) == digest(
        FastLoader(expected, 8, **TRANSFORMS["training"])
    )
    assert (joined.reader.changed, expected.reader.changed) == (len(CHANGED), 0)


def test_images_as_they_are_stored(root: Path) -> None:
    dataset = FastDataset(root, orientation="ignore")
    order = numbers(dataset)
    assert dataset[order.index(2)][0].size == (80, 60)
    assert dataset.reader.changed == 0
    write(root, after)
    for i, number in enumerate(order):
        expected = Image.open(root / "ab"[number % 2] / f"{number:02d}.jpg").convert("RGB")
        np.testing.assert_array_equal(np.asarray(dataset[i][0]), np.asarray(expected))


def rewrite_unseen(path: Path, data: bytes) -> None:
    """The file keeps its size and its time."""
    size, status = path.stat().st_size, path.stat()
    assert len(data) <= size
    path.write_bytes(data + bytes(size - len(data)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("kind", ["folder", "tar", "lmdb"])
def test_size_and_time_of_a_file_may_stay_the_same(tmp_path: Path, kind: str) -> None:
    images = [picture(number, 80, 60) for number in range(8)]
    smaller = jpeg(photo(40, 50, 3), quality=30)
    if kind == "folder":
        place = tmp_path / "images"
        place.mkdir()
        for number, data in enumerate(images):
            (place / f"{number}.jpg").write_bytes(data)
    elif kind == "tar":
        place = foreign(tmp_path / "set.tar", {f"{number}.jpg": data for number, data in enumerate(images)})
    else:
        place = write_lmdb(tmp_path / "set.lmdb", {b"%d.jpg" % number: data for number, data in enumerate(images)})
    os.utime(place, (1_000_000_000, 1_000_000_000))
    assert FastDataset(place)[3][0].size == (80, 60)
    if kind == "folder":
        rewrite_unseen(place / "3.jpg", smaller)
    else:
        rewrite_unseen(place, place.read_bytes().replace(images[3], smaller + bytes(len(images[3]) - len(smaller))))
    dataset = FastDataset(place)
    assert dataset.sizes()[0].tolist() == [80] * 8
    np.testing.assert_array_equal(np.asarray(dataset[3][0]), np.asarray(upright(smaller)))
    assert dataset.reader.changed == 1
    loader = FastLoader(dataset, 8, transform=[T.Resize((20, 20))])
    rows = [Image.fromarray(np.asarray(dataset[i][0])).resize((20, 20), Image.Resampling.BILINEAR) for i in range(8)]
    assert np.abs(next(iter(loader))[0].permute(0, 2, 3, 1).numpy().astype(int) - np.stack(rows)).max() <= 1


def test_a_change_that_reading_finds_is_in_the_next_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LOOKS", 1)
    place = numbers(FastDataset(root)).index(4)
    (root / "a" / "04.jpg").write_bytes(picture(4, 200, 100))
    first = FastDataset(root)
    assert first.sizes()[0][place] == 80
    assert first[place][0].size == (200, 100)
    assert first.sizes()[0][place] == 80  # as long as it is open
    assert FastDataset(root).sizes()[0][place] == 200
    assert FastDataset(root).reader.changed == 0


def test_without_a_transform_the_error_advises_to_open_again(tmp_path: Path) -> None:
    (tmp_path / "same").mkdir()
    for number in range(4):
        (tmp_path / "same" / f"{number}.jpg").write_bytes(picture(number, 40, 40))
    loader = FastLoader(FastDataset(tmp_path / "same"), 4)
    (tmp_path / "same" / "2.jpg").write_bytes(picture(2, 80, 80))
    with pytest.raises(DecodeError, match=r"2\.jpg: .*differs from the index.*open the set again"):
        next(iter(loader))


def test_a_device_gets_no_image_that_was_changed(root: Path, fresh: Path) -> None:
    options: dict[str, Any] = {"transform": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()], "shuffle": True}
    loader = FastLoader(FastDataset(root), 6, **options)
    lend(loader)
    decode_there(loader)
    write(root, after)
    for (own, _), (expected, _) in zip(loader, FastLoader(FastDataset(fresh), 6, **options), strict=True):
        assert torch.equal(own, expected)
    assert loader.stats.changed == len(CHANGED)


def test_convert_writes_what_is_there(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LOOKS", 0)
    FastDataset(root)
    write(root, after)
    assert main(["convert", str(root), str(tmp_path / "out.lmdb"), "--quiet"]) == 0
    converted, opened = FastDataset(tmp_path / "out.lmdb"), FastDataset(root)
    located = converted.reader.columns(np.arange(COUNT))
    for i, number in enumerate(numbers(opened)):
        image = upright(after(number))
        assert (located.width[i], located.height[i]) == image.size
        np.testing.assert_array_equal(np.asarray(converted[i][0]), np.asarray(image))
    assert main(["verify", str(tmp_path / "out.lmdb"), "--quiet"]) == 0
