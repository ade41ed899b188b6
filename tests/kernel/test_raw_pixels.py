"""Raw pixels from packing (`--format rgb`) to the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_images import KINDS, Pixels, exif, jpeg, photo, save, upright, worst
from lmdb_containers import build
from PIL import Image

from iofast import FastDataset, FastLoader, kernel, open_reader, open_writer, pack
from iofast.errors import DecodeError
from iofast.kernel.contract import Transcoded, TranscodeRecipe
from iofast.record import ImageInfo, raw_length


def pixels_of(made: Transcoded) -> Pixels:
    return shown(made.data, made.width, made.height)


def shown(data: bytes, width: int, height: int) -> Pixels:
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize("kind", [*KINDS, "png"])
@pytest.mark.parametrize("mode", ["short", "crop"])
def test_rgb_is_pillows_resize(kind: str, mode: str) -> None:
    data = save(Image.fromarray(photo(90, 61)), "PNG") if kind == "png" else KINDS[kind](photo(90, 61))
    made = kernel.transcode(data, TranscodeRecipe(size=40, mode=mode, format="rgb", reducing_gap=0))
    assert made[1:] == ("rgb", 59 if mode == "short" else 40, 40, 1, 90, 61)
    wanted = upright(data).resize((59, 40), Image.Resampling.BILINEAR)
    wanted = wanted.crop((10, 0, 50, 40)) if mode == "crop" else wanted
    assert worst(pixels_of(made), np.asarray(wanted)) <= 1


def test_images_larger_than_a_loader_reads_are_refused() -> None:
    data = jpeg(photo(20, 20))
    recipe = TranscodeRecipe(size=20_000, mode="exact", format="rgb", max_pixels=1 << 30)
    with pytest.raises(DecodeError, match="20000x20000 pixels after resizing"):
        kernel.transcode(data, recipe)


def write_images(root: Path, count: int = 12) -> list[Path]:
    """Class folders with JPEGs of several orientations, and a PNG."""
    paths = []
    for i in range(count):
        path = root / ("ant", "bee")[i * 2 // count] / f"{i:02d}.{'png' if i == 5 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = photo(90 + 3 * i, 61 + 5 * i, i)
        data = save(Image.fromarray(image), "PNG") if i == 5 else jpeg(image, exif=exif(1 + i % 8))
        path.write_bytes(data)
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rgb")
    write_images(folder / "images")
    report = pack(folder / "images", folder / "out.lmdb", resize=48, format="rgb", workers=1)
    assert (report.packed, report.failed) == (12, 0)
    return folder / "out.lmdb"


def test_records(packed: Path) -> None:
    path = packed
    with open_reader(path) as reader:
        assert reader.manifest.fields == tuple(sorted(("cls", "json", "rgb")))
        located = reader.locate(np.arange(12))
        for i in range(12):
            record = reader.record(i)
            about = json.loads(record.fields["json"])
            size = about["width"], about["height"]
            assert (int(located.width[i]), int(located.height[i]), int(located.orientation[i])) == (*size, 1)
            assert min(size) == 48
            lying = i != 5 and i % 8 >= 4
            stored = 90 + 3 * i, 61 + 5 * i
            assert (about["original_width"], about["original_height"]) == (stored[::-1] if lying else stored)
            assert about["packed"] == "resized"
            assert len(record.fields["rgb"]) == raw_length(*size)


def test_the_same_bytes_again_and_as_estimated(packed: Path, tmp_path: Path) -> None:
    path = packed
    options: dict[str, Any] = {"resize": 48, "format": "rgb"}
    pack(path.parent / "images", tmp_path / "out.lmdb", workers=2, **options)
    assert (tmp_path / "out.lmdb").read_bytes() == path.read_bytes()
    report = pack(path.parent / "images", tmp_path / "other.lmdb", dry_run=True, workers=1, **options)
    assert report.estimate is not None
    assert 0.6 < report.estimate.bytes_out / path.stat().st_size < 1.6


def test_every_image_field_in_one_container(tmp_path: Path) -> None:
    image = photo(40, 30)
    size = {"width": 40, "height": 30}
    with open_writer(tmp_path / "mixed.lmdb") as writer:
        writer.write({"rgb": image.tobytes(), "json": size, "cls": 0})
        writer.write({"jpg": jpeg(image), "rgb": bytes(3), "json": {"width": 1, "height": 1}, "cls": 1})
        writer.write({"png": save(Image.fromarray(image), "PNG"), "cls": 2})
    with open_reader(tmp_path / "mixed.lmdb") as reader:
        assert reader.locate(np.arange(3)).kind.tolist() == [1, 0, 0]
        assert reader.locate(np.arange(3), "cls").kind.tolist() == [0, 0, 0]
    images, labels = next(iter(FastLoader(FastDataset(tmp_path / "mixed.lmdb"), 3)))
    wanted = [image, np.asarray(upright(jpeg(image))), image]
    assert labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), np.stack(wanted))


def test_an_orientation_in_the_index_is_applied(tmp_path: Path) -> None:
    """iofast stores upright pixels, but the format permits other orientations."""
    image = photo(40, 30)
    fields = {"rgb": image.tobytes(), "json": b'{"height":40,"width":30}'}
    build(tmp_path / "turned.lmdb", [(0, fields, ImageInfo(-1, 30, 40, 6), "all")])
    found = np.asarray(FastDataset(tmp_path / "turned.lmdb")[0][0])
    np.testing.assert_array_equal(found, np.rot90(image, -1))


def test_an_index_with_a_wrong_size(tmp_path: Path) -> None:
    fields = {"rgb": bytes(3 * 40 * 30), "json": b"{}"}
    build(tmp_path / "wrong.lmdb", [(0, fields, ImageInfo(-1, 400, 300, 1), "all")])
    with pytest.raises(DecodeError, match=r"wrong.lmdb: 00000000: the image is truncated"):
        _ = FastDataset(tmp_path / "wrong.lmdb")[0]
