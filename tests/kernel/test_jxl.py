"""JPEG XL, with the plugin for Pillow where it is installed; its size is known before anything is decoded."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from kernel_images import exif, save
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel import TranscodeRecipe, jxl, read_header, transcode
from iofast.kernel.contract import StatusError

plugin = pytest.importorskip("pillow_jxl")


def encoded(width: int, height: int, **options: object) -> bytes:
    rng = np.random.default_rng(width * 1000 + height)
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    stream = io.BytesIO()
    image.save(stream, "JXL", effort=1, **options)
    return stream.getvalue()


SIZES = [(1, 1), (8, 8), (256, 256), (64, 48), (48, 64), (257, 3), (513, 300), (9000, 2), (2, 9000), (160, 90)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("use_container", [False, True])
def test_size_is_that_of_the_plugin(size: tuple[int, int], use_container: bool) -> None:
    data = encoded(*size, use_container=use_container)
    assert jxl.header(data)[1:3] == size == Image.open(io.BytesIO(data)).size
    found = read_header(data)
    assert (found.format, found.width, found.height, found.orientation) == ("jxl", *size, 1)


def test_lossless_pixels_arrive() -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (40, 60, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JXL", lossless=True)
    made = transcode(stream.getvalue(), TranscodeRecipe(format="png"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made.data))), pixels)


def test_restored_jpeg_is_turned(tmp_path: Path) -> None:
    """A JPEG packed without loss has its EXIF orientation, which the plugin does not apply."""
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (5, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    (tmp_path / "a.jpg").write_bytes(save(Image.fromarray(pixels), "JPEG", quality=95, exif=exif(6)))
    stream = io.BytesIO()
    with Image.open(tmp_path / "a.jpg") as image:
        image.save(stream, "JXL", lossless_jpeg=True)
        wanted = np.rot90(np.asarray(image), -1)
    assert read_header(stream.getvalue())[1:3] == (40, 64)
    made = transcode(stream.getvalue(), TranscodeRecipe(format="png"))
    shown = np.asarray(Image.open(io.BytesIO(made.data)))
    assert np.abs(shown.astype(int) - wanted).max() <= 2


def test_limits_before_decoding() -> None:
    data = encoded(64, 48)
    with pytest.raises(DecodeError, match="limit on pixels"):
        transcode(data, TranscodeRecipe(format="png", max_pixels=1000))
    huge = b"\xff\x0a" + struct.pack("<Q", 0 | 3 << 1 | (1 << 30) - 1 << 3 | 1 << 33) + bytes(8)  # 2^30 a side
    with pytest.raises(DecodeError, match="limit"):
        transcode(huge, TranscodeRecipe(format="png"))


def test_damage() -> None:
    data = encoded(64, 48, use_container=True)
    for cut in (3, 20, len(data) // 2):
        with pytest.raises(DecodeError):
            transcode(data[:cut], TranscodeRecipe(format="png"))
    with pytest.raises(StatusError, match="JPEG XL"):
        jxl.header(data[:12])
