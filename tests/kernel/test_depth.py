"""Samples of more than 8 bits: from black to white as the file declares, or an error; and limits on pixels."""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kernel_images import photo, save
from PIL import Image

from iofast import kernel
from iofast.errors import DecodeError
from iofast.kernel.contract import TranscodeRecipe
from tools.odd_images.scene import png, tiff, twelve

RAMP = np.linspace(0, 255, 64 * 48).round().astype(np.uint8).reshape(48, 64)  # every level, black to white
UNSIGNED, SIGNED, FLOAT = 1, 2, 3


def cases() -> Iterator[tuple[str, bytes]]:
    """Files that show `RAMP`."""
    wide = RAMP.astype(np.int64)
    sixteen = wide * 257
    yield "tiff 12", tiff(twelve(wide * 16 + 5), 12)
    for order, name in (("<", "little"), (">", "big")):
        yield f"tiff 16 {name}", tiff(sixteen.astype(order + "u2").tobytes(), 16, order=order)
        floats = (RAMP / 255).astype(order + "f4").tobytes()
        yield f"tiff float {name}", tiff(floats, 32, FLOAT, order=order, span=(0, 1))
        own: dict[str, Any] = {"order": order, "span": (-1000, -1000 + 255 * 7)}
        yield f"tiff signed 16 {name}", tiff((wide * 7 - 1000).astype(order + "i2").tobytes(), 16, SIGNED, **own)
        own = {"order": order, "span": (-(1 << 31), (1 << 31) - 1)}
        signed = (wide * 0x01010101 - (1 << 31)).astype(order + "i4")
        yield f"tiff signed 32 {name}", tiff(signed.tobytes(), 32, SIGNED, **own)
    unsigned = (wide * 0x01010101).astype("<u4").tobytes()
    yield "tiff unsigned 32", tiff(unsigned, 32, span=(0, (1 << 32) - 1))
    yield "tiff signed 8", tiff((wide - 128).astype(np.int8).tobytes(), 8, SIGNED, span=(-128, 127))
    yield "tiff 16 white is zero", tiff((65_535 - sixteen).astype("<u2").tobytes(), 16, photometric=0)
    inverted = (1 - RAMP / 255).astype("<f4").tobytes()
    yield "tiff float white is zero", tiff(inverted, 32, FLOAT, photometric=0, span=(0, 1))
    packed = Image.fromarray(sixteen.astype(np.uint16))
    yield "tiff 16 packed", save(packed, "TIFF", compression="tiff_lzw")
    for name, samples, bits, kind, own in (
        ("12", twelve(wide * 16), 12, UNSIGNED, {}),
        ("unsigned 32", unsigned, 32, UNSIGNED, {"span": (0, (1 << 32) - 1)}),
        ("float", (RAMP / 255).astype("<f4").tobytes(), 32, FLOAT, {"span": (0, 1)}),
    ):
        yield f"tiff {name} packed", tiff(zlib.compress(samples), bits, kind, compression=8, **own)
    # the tag holds the greatest sample, not white: the standard forbids scaling by it
    yield "tiff 16 with statistics", save(packed, "TIFF", tiffinfo={280: 7, 281: 9000})
    yield "png gray", png(sixteen[..., None].astype(">u2"), 0, 16)
    yield "png colour", png(np.repeat(sixteen[..., None], 3, 2).astype(">u2"), 2, 16)
    yield "png alpha", png(np.stack([sixteen, np.full_like(sixteen, 65_535)], 2).astype(">u2"), 4, 16)
    yield "pgm 16", b"P5 64 48 65535\n" + sixteen.astype(">u2").tobytes()
    yield "pgm 10", b"P5 64 48 1023\n" + (wide * 1023 // 255).astype(">u2").tobytes()
    yield "pgm 4", b"P5 64 48 15\n" + (wide // 17).astype(np.uint8).tobytes()
    yield "ppm 10", b"P6 64 48 1023\n" + np.repeat((wide * 1023 // 255)[..., None], 3, 2).astype(">u2").tobytes()
    yield "pgm of text", b"P2 64 48 1023\n" + " ".join(map(str, (wide * 1023 // 255).ravel().tolist())).encode()


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in cases()])
def test_black_is_black_and_white_is_white(data: bytes) -> None:
    coarse = b" 15\n" in data[:20]
    found = kernel.decode(data).astype(int)
    assert (found == found[..., :1]).all()
    assert np.abs(found[..., 0] - RAMP).max() <= (17 if coarse else 1)
    made = kernel.transcode(data, TranscodeRecipe(format="rgb"))
    assert made.data == found.astype(np.uint8).tobytes()
    small = kernel.transcode(data, TranscodeRecipe(size=16, mode="exact", format="rgb"))
    assert np.ptp(np.frombuffer(small.data, np.uint8)) > 220


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (tiff(RAMP.astype("<i4").tobytes(), 32, SIGNED), "signed samples of 32 bits"),
        (tiff(RAMP.astype("<u4").tobytes(), 32), "unsigned samples of 32 bits"),
        (tiff(RAMP.astype("<i2").tobytes(), 16, SIGNED), "signed samples of 16 bits"),
        (tiff(RAMP.tobytes(), 8, SIGNED), "signed samples of 8 bits"),
        (tiff((RAMP / 255).astype("<f4").tobytes(), 32, FLOAT), "floating-point samples of 32 bits"),
        (tiff(RAMP.astype("<f4").tobytes(), 32, FLOAT, span=(0, 0)), "floating-point samples of 32 bits"),
        (tiff(RAMP.astype("<f4").tobytes(), 32, FLOAT, span=(0, np.inf)), "floating-point samples of 32 bits"),
        (tiff(RAMP.astype("<f8").tobytes(), 64, FLOAT), "(unknown pixel mode|a TIFF of shape .* and float64)"),
    ],
)
def test_an_undeclared_range_is_an_error(data: bytes, kind: str) -> None:
    for recipe in (TranscodeRecipe(), TranscodeRecipe(format="keep"), TranscodeRecipe(size=16, mode="pad")):
        with pytest.raises(DecodeError, match=rf"not an image that can be decoded here \({kind}"):
            kernel.transcode(data, recipe)
    with pytest.raises(DecodeError, match=kind):
        kernel.decode(data)


def test_nan_is_black() -> None:
    samples = np.full((48, 64), 0.5, "<f4")
    samples[0, :4] = np.nan, np.inf, -np.inf, 7
    found = kernel.decode(tiff(samples.tobytes(), 32, FLOAT, span=(0, 1)))
    assert found[0, :5, 0].tolist() == [0, 255, 0, 255, 128]


FRAMES = [Image.fromarray(photo(90, 60, seed)) for seed in range(3)]
SEVERAL: dict[str, Any] = {"save_all": True, "append_images": FRAMES[1:]}
LARGE: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF")),
    *(("TIFF", {"compression": "tiff_lzw"}), ("PNG", SEVERAL), ("WEBP", SEVERAL), ("GIF", SEVERAL | {"disposal": 2})),
]


@pytest.mark.parametrize(("kind", "options"), LARGE)
def test_pillows_limit_is_ignored(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It applies to a whole process: its value may be any, and other threads must not see it change."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = save(FRAMES[0].quantize(16) if kind == "GIF" else FRAMES[0], kind, **options)
    for recipe in (TranscodeRecipe(max_pixels=5400), TranscodeRecipe(size=120, mode="pad", format="png")):
        assert kernel.transcode(data, recipe).original_width == 90
    assert kernel.decode(data, 6).shape == (90, 60, 3)
    assert Image.MAX_IMAGE_PIXELS == 1000
    with pytest.raises(DecodeError, match="larger than the limit"):
        kernel.transcode(data, TranscodeRecipe(max_pixels=5399))
