"""Photographs as JPEGs of many kinds, and iofast's opener in the place of Pillow's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter, JpegImagePlugin

from iofast.run import images, notes


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same picture as JPEGs of several kinds, and a truncated one."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    pixels = np.kron(random.integers(0, 255, (30, 41, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    picture = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2))
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "rgb": (picture, {"quality": 90}),
        "exif": (picture, {"exif": exif}),
        "gray": (picture.convert("L"), {}),
        "cmyk": (picture.convert("CMYK"), {}),
        "progressive": (picture, {"progressive": True}),
        "444": (picture, {"subsampling": 0, "icc_profile": b"x" * 300}),
    }
    for name, (image, options) in made.items():
        image.save(folder / f"{name}.jpg", "JPEG", **options)
    data = (folder / "rgb.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(data[: len(data) // 2])
    return {path.stem: path for path in sorted(folder.iterdir())}


@pytest.fixture
def by_iofast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Call with True or False to let iofast or Pillow open JPEGs. Counts begin anew."""
    monkeypatch.setattr(notes, "_notes", None)
    Image.preinit()

    def choose(wanted: bool) -> None:
        factory = images.open_jpeg if wanted else JpegImagePlugin.jpeg_factory
        Image.register_open("JPEG", factory, JpegImagePlugin._accept)  # type: ignore[arg-type]

    yield choose
    choose(False)
