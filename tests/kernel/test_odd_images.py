"""The odd images of `tools/odd_images`: each is packed upright and in the right colours, or fails with a reason."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places import ROOT

from iofast import kernel
from iofast.containers.lmdb import LmdbReader
from iofast.errors import DecodeError
from iofast.packing import pack
from iofast.source.listing import printable
from tools.odd_images import every, write
from tools.odd_images.__main__ import table
from tools.odd_images.scene import Odd

DOCUMENT = ROOT / "docs" / "odd-images.md"


class Packed:
    """The result of packing all odd images: pixels or reasons of failures by name."""

    def __init__(self, folder: Path, **options: Any) -> None:
        write(folder / "images")
        target = folder / "out.lmdb"
        self.report = pack(folder / "images", target, max_errors="100%", workers=2, **options)
        errors = (folder / "out.lmdb.errors.jsonl").read_text().splitlines()
        self.reasons = {line["path"]: line["reason"] for line in map(json.loads, errors)}
        self.shown: dict[str, np.ndarray[Any, Any]] = {}
        with LmdbReader(target) as reader:
            located = reader.locate(np.arange(len(reader)))
            for row in range(len(reader)):
                fields = reader.record(row).fields
                height, width = int(located.height[row]), int(located.width[row])
                name = json.loads(fields["json"])["path"]
                if "rgb" in fields:
                    self.shown[name] = np.frombuffer(fields["rgb"], np.uint8).reshape(height, width, 3)
                else:
                    image = next(fields[field] for field in ("jpg", "png", "webp") if field in fields)
                    self.shown[name] = kernel.decode(image, int(located.orientation[row]))


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Every pixel as it was packed."""
    return Packed(tmp_path_factory.mktemp("exact"), format="rgb")


def test_each_is_packed_as_it_should_look_or_has_a_reason(exact: Packed) -> None:
    assert (exact.report.packed, exact.report.failed) == (len(exact.shown), len(exact.reasons))
    for odd in every():
        name = printable(odd.name)
        if odd.pixels is None:
            assert odd.error in exact.reasons[name], name
            assert "unexpected" not in exact.reasons[name], name
            assert "\n" not in exact.reasons[name], name
            assert name not in exact.shown
        else:
            assert name not in exact.reasons
            assert exact.shown[name].shape == odd.pixels.shape, name
            assert np.abs(exact.shown[name].astype(int) - odd.pixels).mean() <= odd.tolerance, name


def test_resized_and_encoded_images_look_the_same(exact: Packed, tmp_path: Path) -> None:
    small = Packed(tmp_path, resize=24)
    # 65,500 x 1 and 5000 x 1 with 24 rows exceed the limits of a JPEG
    assert small.reasons.keys() - exact.reasons.keys() == {"limit.jpg", "wide.jpg"}
    for odd in every():
        name = printable(odd.name)
        if odd.pixels is None or name not in small.shown or min(odd.pixels.shape[:2]) < 40:
            continue
        height, width = small.shown[name].shape[:2]
        wanted = Image.fromarray(odd.pixels).resize((width, height), Image.Resampling.BILINEAR)
        assert np.abs(small.shown[name].astype(int) - np.asarray(wanted)).mean() <= odd.tolerance + 8, name


def test_kept_files_fail_alike(exact: Packed, tmp_path: Path) -> None:
    kept = Packed(tmp_path)
    assert kept.reasons.keys() == exact.reasons.keys()
    for odd in every():
        if odd.pixels is not None:
            assert kept.shown[printable(odd.name)].shape == odd.pixels.shape


def outcome(odd: Odd, **options: Any) -> str:
    """The reason why an image is not packed, without its details, or nothing."""
    try:
        kernel.transcode(odd.data, kernel.TranscodeRecipe(**options))
    except DecodeError as error:
        return str(error).partition(" (")[0]
    return ""


def test_checking_the_end_accepts_every_image_that_decodes_and_none_gives_a_warning() -> None:
    """It also accepts damage within the codes of pixels."""
    within = ("the image data is corrupt", "the image is truncated")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for odd in every():
            if not odd.link:
                end, whole = (outcome(odd, format="keep", restart=None, check=check) for check in ("end", "decode"))
                assert end == whole or (end == "" and whole in within), odd.name
                outcome(odd, format="rgb")
    assert [str(each.message) for each in caught] == []


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == table(), "python -m tools.odd_images --table docs/odd-images.md"
