"""PNG and WebP without Pillow: equal to it bit for bit, and left to it wherever it must decide."""

import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_images import View, batch_of, decode_views, expected, photo, save, upright
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from iofast.errors import DecodeError
from iofast.kernel import native, other_formats, pillow, recode
from iofast.kernel.contract import DecodeOptions, Status, TranscodeRecipe
from iofast.kernel.native_batch import FOREIGN
from tools.odd_images.scene import chunk

pytestmark = pytest.mark.skipif(FOREIGN != ("png", "webp"), reason=f"libraries found: {FOREIGN}")

PHOTO, PNG = photo(131, 97), b"\x89PNG\r\n\x1a\n"
NOISE = np.random.default_rng(3).integers(0, 256, (97, 131, 4), np.uint8)
WINDOW = View((7, 5, 121, 92, 100, 60, 3, 2), (90, 50), flip=1)
TURNED = WINDOW._replace(box=(5, 7, 92, 121, 100, 60, 3, 2))


def pillow_image(mode: str) -> Image.Image:
    if mode in ("RGBA", "LA"):
        return Image.fromarray(NOISE, "RGBA").convert(mode)
    return Image.fromarray(PHOTO).convert(mode)


def png(mode: str, **options: object) -> bytes:
    return save(pillow_image(mode), "PNG", **options)


def adam7() -> bytes:
    """A PNG whose header says that it is interlaced; its pixels are then another picture, or none."""
    data = png("RGB")
    return data[:8] + chunk(b"IHDR", data[16:28] + b"\1") + data[33:]


def filtered(rows: NDArray[np.uint8], filters: list[int], parts: int = 1) -> bytes:
    """An RGB PNG of these bytes (height, 3 * width) behind these filters, row by row in turn, in several chunks."""
    packed = zlib.compress(np.insert(rows, 0, np.resize(filters, len(rows)), axis=1).tobytes())
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", rows.shape[1] // 3, len(rows), 8, 2, 0, 0, 0))
    cuts = [len(packed) * part // parts for part in range(parts + 1)]
    data = [chunk(b"IDAT", packed[low:high]) for low, high in pairwise(cuts)]
    return PNG + head + b"".join(data) + chunk(b"IEND", b"")


def both(data: bytes, view: View = WINDOW, orientation: int = 1, indexed: tuple[int, ...] | None = None) -> list[str]:
    """Decode by the kernel and by Pillow alone; both must agree. Returns the ways of the kernel."""
    source, _alive = batch_of([data], [orientation])
    if indexed:
        source = source._replace(indexed=np.array([indexed], np.int32))
    boxes, flips = np.array([view.box], np.int32), np.array([view.flip], np.uint8)
    out, status = np.full((1, view.size[1], view.size[0], 3), 9, np.uint8), np.full(1, -1, np.int32)
    with closing(native.Context(DecodeOptions())) as context:
        native.decode_batch(context, source, boxes, flips, out, status, 0, 1)
        ways = [way for way, number in context.counts().ways.items() if number]
    if status[0] == Status.BOX:
        assert not out.any()
        return ["BOX"]
    try:
        with other_formats.decoded_row(source, 0, DecodeOptions()) as stored:
            image = pillow.turn(stored, orientation).convert("RGB")
        wanted, code = expected(image, view, "bilinear"), Status.OK
    except Exception as error:  # of Pillow's plugins
        wanted, code = np.zeros_like(out[0]), pillow.failure(error).status
    assert status[0] == code
    np.testing.assert_array_equal(out[0], wanted)
    return ways if code == Status.OK else [code.name]


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_a_png_of_every_mode(mode: str, orientation: int) -> None:
    assert both(png(mode), WINDOW if orientation < 5 else TURNED, orientation) == ["png"]


@pytest.mark.parametrize("colours", [2, 4, 12, 200])
def test_palettes_of_few_bits(colours: int) -> None:
    image = Image.fromarray(PHOTO).quantize(colours)
    assert both(save(image, "PNG")) == ["png"]
    assert both(save(image, "PNG", transparency=1)) == ["png"]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_gray_of_few_bits(bits: int) -> None:
    levels = PHOTO[:, :, 0] >> (8 - bits)
    row = np.zeros((97, -(-131 * bits // 8)), np.uint8)
    for x in range(131):
        row[:, x * bits // 8] |= (levels[:, x] << (8 - bits - x * bits % 8)).astype(np.uint8)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 131, 97, bits, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(np.insert(row, 0, 0, axis=1).tobytes()))
    assert both(PNG + head + data + chunk(b"IEND", b"")) == ["png"]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.tuples(st.integers(1, 40), st.integers(1, 30)),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_filter(filters: list[int], size: tuple[int, int], parts: int, smooth: bool) -> None:
    width, height = size
    pixels = (PHOTO if smooth else NOISE[:, :, :3])[:height, :width]
    data = filtered(pixels.reshape(height, 3 * width), filters, parts)
    assert both(data, View((0, 0, width, height, width, height, 0, 0), size)) == ["png"]


@pytest.mark.parametrize("options", [{"quality": 80}, {"lossless": True}, {"quality": 30, "method": 0}])
def test_a_webp(options: dict[str, object]) -> None:
    assert both(save(pillow_image("RGB"), "WEBP", **options)) == ["webp"]
    assert both(save(pillow_image("L"), "WEBP", **options), orientation=3) == ["webp"]


def short_palette() -> bytes:
    """With an index beyond the palette."""
    data = png("P")
    at = data.index(b"PLTE") - 4
    end = at + 12 + int.from_bytes(data[at : at + 4], "big")
    return data[:at] + chunk(b"PLTE", data[at + 8 : at + 8 + 30]) + data[end:]


ANIMATED = {"save_all": True, "append_images": [Image.fromarray(NOISE[:, :, :3])]}
LEFT: dict[str, Callable[[], bytes]] = {
    "16 bits": lambda: save(Image.fromarray(NOISE[:, :, 0].astype(np.uint16) * 257), "PNG"),
    "interlaced": adam7,
    "animated": lambda: save(pillow_image("RGB"), "PNG", **ANIMATED),
    "webp with alpha": lambda: save(pillow_image("RGBA"), "WEBP"),
    "webp with alpha, lossless": lambda: save(pillow_image("RGBA"), "WEBP", lossless=True),
    "animated webp": lambda: save(pillow_image("RGB"), "WEBP", **ANIMATED),
    "short palette": short_palette,
}


@pytest.mark.parametrize("name", LEFT)
def test_pillow_decodes_the_rest(name: str) -> None:
    assert both(LEFT[name]())[0] not in ("png", "webp")


@pytest.mark.parametrize("kind", ["AVIF", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 4, 8])
def test_what_pillow_decodes_is_finished_by_the_kernel(kind: str, orientation: int) -> None:
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    view = WINDOW if orientation < 5 else TURNED
    data = save(pillow_image("RGB"), kind)
    assert both(data, view, orientation) == ["pillow"]
    span = (0.5, 1.25, 80.75, 81.0)
    source, _alive = batch_of([data], [orientation])
    status, out = decode_views(
        source, [View((3, 4, 91, 93, 30, 40, 0, 0), (30, 40))], DecodeOptions(exact=True), [span]
    )
    wanted = upright(data, orientation).crop((3, 4, 91, 93)).resize((30, 40), Image.Resampling.BILINEAR, span)
    assert status == [Status.OK]
    np.testing.assert_array_equal(out[0], np.asarray(wanted))


def _cut(data: bytes, at: float) -> bytes:
    return data[: int(len(data) * at)]


def _flipped(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [_cut, _flipped])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_damage_is_judged_by_pillow(damage: Callable[[bytes, float], bytes], kind: str) -> None:
    data = save(pillow_image("RGB"), kind)
    for at in (0.001, 0.01, 0.05, 0.3, 0.6, 0.9, 0.97, 0.999):
        both(damage(data, at))


def test_a_wrong_checksum_of_a_chunk_is_judged_by_pillow() -> None:
    data, gamma = png("RGB"), chunk(b"gAMA", (45455).to_bytes(4, "big"))
    assert both(data[:33] + gamma + data[33:]) == ["png"]
    assert both(data[:33] + gamma[:-4] + bytes(4) + data[33:]) != ["png"]


def test_metadata_that_may_turn_it_is_read_by_pillow() -> None:
    """The index of a packed file knows the orientation: another one in the file means that it was replaced."""
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("Software", "a test")
    for data, known in ((png("RGB"), True), (png("RGB", exif=exif), False), (png("RGB", pnginfo=text), False)):
        assert (both(data, indexed=(0, 131, 97)) == ["png"]) == known
        assert both(data) == ["png"]
    assert both(png("RGB"), indexed=(0, 130, 97)) == ["CHANGED"]
    assert both(png("RGB", exif=exif), indexed=(0, 131, 97)) == ["CHANGED"]
    assert both(png("RGB", pnginfo=text), indexed=(0, 131, 97)) == ["pillow"]
    assert both(png("RGB", exif=exif), TURNED, 6, indexed=(0, 97, 131)) == ["pillow"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_packing_stores_pillows_pixels(kind: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = save(pillow_image(mode), kind), TranscodeRecipe(format="rgb")
    made = native.transcode(data, recipe)
    monkeypatch.setattr(recode, "FOREIGN", ())
    assert made == native.transcode(data, recipe)


def test_packing_says_what_pillow_says_of_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (_cut(png("RGB"), 0.6), _flipped(png("RGB"), 0.6), _cut(save(pillow_image("RGB"), "WEBP"), 0.6)):
        said = []
        for formats in (("png", "webp"), ()):
            monkeypatch.setattr(recode, "FOREIGN", formats)
            with pytest.raises(DecodeError) as error:
                native.transcode(data, TranscodeRecipe(format="keep"))
            said.append(str(error.value))
        assert said[0] == said[1]


def test_boxes_and_limits_are_judged_by_pillow() -> None:
    assert both(png("RGB"), WINDOW._replace(box=(7, 5, 132, 92, 100, 60, 3, 2))) == ["BOX"]
    source, _alive = batch_of([png("RGB")])
    assert decode_views(source, [WINDOW], DecodeOptions(max_pixels=131 * 97 - 1))[0] == [Status.LIMIT]
