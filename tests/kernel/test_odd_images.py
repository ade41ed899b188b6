"""The odd images of `tools/odd_images`: each is packed upright and in the right colours, or fails with a reason."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from kernel_images import Pixels
from PIL import Image
from places import ROOT

from iofast import kernel, open_reader
from iofast.errors import DecodeError
from iofast.packing import pack
from iofast.source.listing import printable
from tools.odd_images import every, write
from tools.odd_images.__main__ import table
from tools.odd_images.scene import Odd

DOCUMENT = ROOT / "docs" / "odd-images.md"
ALONE = [odd for odd in every() if not odd.link and odd.data[:2] != b"\x1f\x8b"]  # packing unpacks gzip


def test_each_is_packed_as_it_should_look_or_has_a_reason(tmp_path: Path) -> None:
    write(tmp_path / "images")
    report = pack(tmp_path / "images", tmp_path / "out.lmdb", max_errors="100%", workers=2, format="rgb")
    lines = map(json.loads, (tmp_path / "out.lmdb.errors.jsonl").read_text().splitlines())
    reasons, shown = {line["path"]: line["reason"] for line in lines}, dict[str, Pixels]()
    with open_reader(tmp_path / "out.lmdb") as reader:
        located = reader.locate(np.arange(len(reader)))
        for height, width, record in zip(located.height.tolist(), located.width.tolist(), reader, strict=True):
            name = json.loads(record.fields["json"])["path"]
            shown[name] = np.frombuffer(record.fields["rgb"], np.uint8).reshape(height, width, 3)
    assert (report.packed, report.failed) == (len(shown), len(reasons))
    for odd in every():
        name = printable(odd.name)
        if odd.pixels is None:
            assert odd.error in reasons[name], name
            assert "unexpected" not in reasons[name], name
            assert "\n" not in reasons[name], name
            assert name not in shown
        else:
            assert name not in reasons
            assert shown[name].shape == odd.pixels.shape, name
            assert np.abs(shown[name].astype(int) - odd.pixels).mean() <= odd.tolerance, name


def made(odd: Odd, **options: Any) -> Pixels | str:
    """The pixels that are packed of an image, or the reason why none are, without its details."""
    try:
        result = kernel.transcode(odd.data, kernel.TranscodeRecipe(**options))
        return kernel.decode(result.data, result.orientation)
    except DecodeError as error:
        return str(error).partition(" (")[0]


def test_resized_and_encoded_images_look_the_same() -> None:
    for odd in ALONE:
        small = made(odd, size=24, mode="short")
        if odd.pixels is None or odd.name in (b"limit.jpg", b"wide.jpg"):  # which would be too wide for a JPEG
            assert isinstance(small, str), odd.name
        elif min(odd.pixels.shape[:2]) >= 40:
            assert not isinstance(small, str), small
            wanted = Image.fromarray(odd.pixels).resize(small.shape[1::-1], Image.Resampling.BILINEAR)
            assert np.abs(small.astype(int) - np.asarray(wanted)).mean() <= odd.tolerance + 8, odd.name


def test_checking_the_end_accepts_every_image_that_decodes_and_none_gives_a_warning() -> None:
    """Damage within the codes of pixels, which it accepts too, is found in its result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for odd in ALONE:
            end, whole = (made(odd, format="keep", restart=None, check=check) for check in ("end", "decode"))
            assert isinstance(whole, str) == (odd.pixels is None), odd.name
            made(odd, format="png")
            if isinstance(whole, str):
                assert end == whole, odd.name
            else:
                assert np.array_equal(end, whole), odd.name
                assert whole.shape == odd.pixels.shape, odd.name  # type: ignore[union-attr]
    assert [str(each.message) for each in caught] == []


def test_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == table(), "python -m tools.odd_images --table docs/odd-images.md"
