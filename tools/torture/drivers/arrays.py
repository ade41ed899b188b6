"""Damaged images of many bits and channels: `.npy`, PNG and TIFF."""

import io
import random
from pathlib import Path

import numpy as np
import tifffile

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel import arrays, lossless, png
from tools.torture.drivers import Driver, damage

MAX_PIXELS = 1 << 16
_FORMATS = ("npy", "npy", "png", "keep", "jpeg")


def corpus() -> list[bytes]:
    """Small arrays of all types, in both orders, as planes and as pixels."""
    rng, seeds = np.random.default_rng(5), []
    for channels, kind in ((1, "uint8"), (3, "uint16"), (4, "uint16"), (13, "uint16"), (5, "float32")):
        array = (rng.random((19, 23, channels)) * 250).astype(kind)
        seeds += [
            arrays.write_npy(array),
            _npy(np.asfortranarray(array)),
            _npy(array.astype(array.dtype.newbyteorder(">"))),
        ]
        if kind != "float32" and channels <= 4:
            seeds.append(png.write(array))
        photometric = "rgb" if channels in (3, 4) else "minisblack"
        for order in "<>":
            seeds.append(_tiff(array if channels > 1 else array[:, :, 0], byteorder=order, photometric=photometric))
            if channels > 4:
                planes = {"photometric": "minisblack", "planarconfig": "separate", "compression": "zlib"}
                seeds.append(_tiff(array.transpose(2, 0, 1), byteorder=order, **planes))
    return seeds


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array)
    return out.getvalue()


def _tiff(array: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, array, **options)
    return out.getvalue()


class Arrays(Driver):
    """Damage anywhere: an image of the limits, or a `DecodeError`."""

    MEMORY = 48

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = corpus()

    def step(self, chance: random.Random) -> str:
        data = damage.anywhere(chance, chance.choice(self.seeds))
        recipe = self.recipe(chance)
        try:
            header = kernel.read_header(data)
            assert header.width * header.height > 0
            packed = kernel.transcode(data, recipe)
        except DecodeError:
            return "refused"
        height, width, channels = lossless.read(packed.data, MAX_PIXELS).shape
        assert (width, height) == (packed.width, packed.height)
        assert channels <= arrays.MAX_CHANNELS
        return packed.field

    def recipe(self, chance: random.Random) -> kernel.TranscodeRecipe:
        """A format, with or without another size."""
        resized = {"size": 8, "mode": chance.choice(("short", "crop", "pad"))} if chance.random() < 0.5 else {}
        return kernel.TranscodeRecipe(format=chance.choice(_FORMATS), max_pixels=MAX_PIXELS, **resized)
