"""The C code's functions for images that Pillow decodes: resampling and encoding."""

from __future__ import annotations

import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from kernel_images import photo, save, worst
from PIL import Image

from iofast.kernel import markers, native, pillow, recode
from iofast.kernel.contract import FILTERS, TranscodeRecipe

SOURCES = Path(__file__).parents[2] / "iofast" / "kernel" / "src"


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_resampling_is_pillows(mode: str, name: str) -> None:
    image = Image.fromarray(photo(150, 110)).convert(mode)
    for box, size in (
        ((0, 0, 150, 110, 40, 30, 0, 0), (40, 30)),
        ((0, 0, 150, 110, 300, 200, 100, 50), (64, 32)),
        ((20, 10, 120, 90, 100, 80, 0, 0), (100, 80)),
        ((0, 0, 150, 110, 1, 1, 0, 0), (1, 1)),
    ):
        found, wanted = (each(image, box, size, name) for each in (recode._resample, pillow.resample))
        assert found.mode == wanted.mode == mode
        assert worst(np.asarray(found), np.asarray(wanted)) <= 1


class TestEncoding:
    @pytest.mark.parametrize("subsampling", ["420", "422", "444"])
    @pytest.mark.parametrize("mode", ["L", "RGB"])
    @pytest.mark.parametrize("size", [(1, 1), (33, 17), (200, 150)], ids=str)
    def test_a_jpeg_has_pillows_coefficients(self, size: tuple[int, int], mode: str, subsampling: str) -> None:
        image = Image.fromarray(photo(*size)).convert(mode)
        recipe = TranscodeRecipe(quality=80, subsampling=subsampling)
        ours = recode._encode(image.copy(), "jpeg", recipe, b"")
        theirs = save(image, "JPEG", quality=80, subsampling=":".join(subsampling))
        np.testing.assert_array_equal(native.decode(ours), native.decode(theirs))
        assert Image.open(BytesIO(ours)).mode == mode

    def test_restart_intervals(self) -> None:
        image = Image.fromarray(photo(200, 150))
        for restart, interval in ((0, 0), (3, 3), ("auto", 1), (None, 1)):
            recipe = TranscodeRecipe(restart=restart)
            assert native.read_header(recode._encode(image, "jpeg", recipe, b"")).restart == interval

    @pytest.mark.parametrize("length", [1, 100, 65_519, 65_520, 200_000])
    def test_readers_find_an_inserted_profile(self, length: int) -> None:
        profile = np.random.default_rng(length).bytes(length)
        plain = recode._encode(Image.fromarray(photo(20, 20)), "jpeg", TranscodeRecipe(), b"")
        data = markers.with_profile(plain, profile)
        image = Image.open(BytesIO(data))
        assert image.info["icc_profile"] == markers.profile(data) == profile
        np.testing.assert_array_equal(native.decode(data), native.decode(plain))


def test_headers_with_the_interface_of_libjpeg_8(tmp_path: Path) -> None:
    """Ubuntu's: some names differ, one error is missing."""
    compiler = shutil.which("cc")
    found = next(iter(sorted(Path("/usr/include").rglob("jconfig.h"))), None)
    if compiler is None or found is None:
        pytest.skip("no compiler, or no headers of libjpeg-turbo")
    (tmp_path / "jconfig.h").write_text(re.sub(r"(JPEG_LIB_VERSION\s+)\d+", r"\g<1>80", found.read_text()))
    for name in ("jpeglib.h", "jmorecfg.h", "jerror.h"):
        shutil.copy(f"/usr/include/{name}", tmp_path)
    for source in ("jpeg.c", "encode.c"):
        command = [compiler, "-std=gnu11", "-fsyntax-only", f"-I{tmp_path}", SOURCES / source]
        subprocess.run(command, check=True)
