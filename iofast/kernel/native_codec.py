"""The C code's part in transcoding images that Pillow opens: PNG's filters, resampling, JPEG and YUV420."""

from __future__ import annotations

import zlib

import numpy as np
from PIL import Image

from iofast.kernel import _native, colour, contract, markers, pillow, recode, resampling
from iofast.kernel.contract import Kind, Status, TranscodeRecipe, mcus_per_row
from iofast.kernel.native_batch import borrowed, decode_one

SAMPLING = {"420": (2, 2), "422": (2, 1), "444": (1, 1)}  # luma samples for one of chroma, across and down

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_HARMLESS = (b"tEXt", b"tIME", b"eXIf")  # behind a PNG's pixels: what changes none of them
_KINDS = {"jpeg": Kind.ENCODED, "yuv420": Kind.YUV420}


def decode(opened: pillow.Opened) -> Image.Image:
    """`pillow.decode`. Of usual PNGs the rows are unfiltered here, in a fifth of the time; all else is Pillow's."""
    image, (width, height) = opened.image, opened.size
    channels = _CHANNELS.get(image.mode, 0)
    whole = ("zip", (0, 0, width, height), image.mode)
    if opened.format != "png" or not channels or width * height > contract.LARGE or len(image.tile) != 1:
        return pillow.decode(opened)
    codec, extent, offset, rawmode = image.tile[0]
    if (codec, extent, rawmode) != whole or image.info.get("interlace") or image.n_frames != 1:  # type: ignore[attr-defined]
        return pillow.decode(opened)
    filtered = _inflated(opened.data[:], offset - 8, (1 + width * channels) * height)
    rows = None if filtered is None else _native.png_rows(filtered, width, height, channels)
    if rows is None:
        return pillow.decode(opened)
    made = Image.frombuffer(image.mode, image.size, rows, "raw", image.mode, 0, 1)
    made.info.update(image.info)
    return made


def _inflated(data: bytes, at: int, size: int) -> bytes | None:
    """What a PNG's IDAT chunks hold, `size` bytes, the first chunk from `at` on; None where anything is unusual."""
    view, parts, name = memoryview(data), [], b"IDAT"
    while at + 8 <= len(data) and name != b"IEND":
        length, name = int.from_bytes(view[at : at + 4], "big"), data[at + 4 : at + 8]
        if name == b"IDAT":
            parts.append(view[at + 8 : at + 8 + length])
        elif name not in (*_HARMLESS, b"IEND"):
            return None
        at += 12 + length
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(b"".join(parts), size + 1)
    except zlib.error:
        return None
    return found if unpacker.eof and len(found) == size else None


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], filter: str) -> Image.Image:
    """`resampling.resample` of an `L` or `RGB` image."""
    x0, y0, x1, y1, *virtual, _, _ = box
    if image.width * image.height > contract.LARGE or tuple(virtual) == (x1 - x0, y1 - y0):
        return resampling.resample(image, box, size, filter)
    pixels = (image if image.mode == "RGB" else image.convert("RGB")).tobytes()
    out, raw = np.empty((1, size[1], size[0], 3), np.uint8), np.array([[Kind.RGB, *image.size]], np.int32)
    with borrowed(filter, image.width * image.height) as context:
        status = decode_one(context, pixels, 1, np.array([box], np.int32), out, raw)
    if status:
        raise pillow.StatusError(Status(status))
    return Image.fromarray(out[0] if image.mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0]))


def encode(pixels: Image.Image, kind: str, recipe: TranscodeRecipe, profile: bytes) -> bytes:
    """`recode.encode`, with the Huffman tables and restart markers that JPEGs get here."""
    if kind not in _KINDS:
        return recode.encode(pixels, kind, recipe, profile)
    if kind == "yuv420" and pixels.mode != "RGB":
        pixels = pillow.replaced(pixels, pixels.convert("RGB"))
    width, height, channels = *pixels.size, 1 if pixels.mode == "L" else 3
    samples, interval = SAMPLING[recipe.subsampling], recipe.interval(mcus_per_row(width, channels, recipe.subsampling))
    how = (channels, width, height, recipe.quality, *samples, interval, _KINDS[kind])
    with borrowed("bilinear", width * height) as context:
        status, made = _native.encode(context.handle, pixels.tobytes(), *how)
    if made is None:
        raise pillow.StatusError(Status(status))
    return markers.with_profile(made, profile) if colour.describes(profile, pixels) else made


CODEC = recode.Codec(decode, resample, encode)
