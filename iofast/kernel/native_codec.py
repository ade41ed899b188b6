"""The C code's functions for images that Pillow opens: decoding, resampling and JPEG encoding."""

from __future__ import annotations

import numpy as np
from PIL import Image

from iofast.kernel import _native, colour, contract, libraries, markers, pillow, recode, resampling
from iofast.kernel.contract import Kind, Status, TranscodeRecipe, mcus_per_row
from iofast.kernel.native_batch import borrowed, decode_one

SAMPLING = {"420": (2, 2), "422": (2, 1), "444": (1, 1)}  # luma samples for one of chroma, across and down
KINDS = {"jpeg": Kind.ENCODED, "rgb": Kind.RGB}  # formats that the C code writes


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], filter: str) -> Image.Image:
    """Replace `resampling.resample` for an `L` or `RGB` image."""
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
    """Replace `recode.encode`: JPEGs get the kernel's Huffman tables and restart markers."""
    if kind != "jpeg":
        return recode.encode(pixels, kind, recipe, profile)
    width, height, channels = *pixels.size, len(pixels.getbands())
    interval = recipe.interval(mcus_per_row(width, channels, recipe.subsampling))
    layout = (channels, width, height, recipe.quality, *SAMPLING[recipe.subsampling], interval)
    with borrowed("bilinear", width * height) as context:
        status, encoded = _native.encode(context.handle, pixels.tobytes(), *layout)
    if encoded is None:
        raise pillow.StatusError(Status(status))
    return markers.with_profile(encoded, profile) if colour.describes(profile, pixels) else encoded


def decode(opened: pillow.Opened) -> Image.Image:
    """Replace `pillow.decode` for opaque PNG and WebP of 8 bits; where the kernel finds damage, Pillow says what."""
    image, (width, height) = opened.image, opened.size
    plain = image.mode in ("L", "RGB") and "transparency" not in image.info
    if opened.format not in libraries.FOREIGN or not plain or width * height > contract.LARGE:
        return pillow.decode(opened)
    out, box = np.empty((1, height, width, 3), np.uint8), [0, 0, width, height, width, height, 0, 0]
    with borrowed("nearest", width * height) as context:
        if decode_one(context, opened.data[:], 1, np.array([box], np.int32), out):
            return pillow.decode(opened)
    return Image.fromarray(out[0] if image.mode == "RGB" else np.ascontiguousarray(out[0, :, :, 0]))


CODEC = recode.Codec(resample, encode, decode)
