"""Any image as an array of all its channels and bits; resampling and packing such arrays.

Nothing is converted: no colour profile, no background, no palette of 8 bits beyond what the palette says. Values are
resampled channel by channel in floating point, and those of whole numbers are rounded once.
"""

import math
import re
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from iofast.kernel import arrays, depth, jxl, memory, pillow, png
from iofast.kernel.arrays import Pixels
from iofast.kernel.contract import (
    MAX_MEMORY,
    MAX_PIXELS,
    TURNED,
    Header,
    Status,
    StatusError,
    Transcoded,
    TranscodeRecipe,
    levels_of,
)
from iofast.kernel.payload import Payload
from iofast.record import ARRAY_FIELD, FIELD_OF_FORMAT

NPY, PNG = ARRAY_FIELD, FIELD_OF_FORMAT["png"]
_PHOTOMETRIC, _FORMAT = 262, 339  # TIFF tags
_ASSOCIATED, _PLANES, _RGB = 1, 2, 2  # values of ExtraSamples, PlanarConfiguration, PhotometricInterpretation
_DEEP = re.compile("(RGB|RGBA|RGBX);16[BLN]")


def header(data: Payload, max_pixels: int, max_memory: int) -> Header:
    """Read the header of any image. Raises `StatusError`, also beyond the limits, or any error of Pillow."""
    kind = pillow.format_of(data)
    if kind == "npy":
        return arrays.npy_header(data)
    if kind == "jxl" and pillow.plugin(kind):  # without decoding it
        return jxl.header(data)
    opened = _opened(data, kind, max_pixels, max_memory)
    return arrays.tiff_header(data) if opened is None else pillow.header(opened)


def _opened(data: Payload, kind: str, max_pixels: int, max_memory: int = MAX_MEMORY) -> pillow.Opened | None:
    """Open an image by Pillow; None for a TIFF of channels or types that it does not know. Raises like `read`."""
    try:
        return memory.opened(data, max_pixels, max_memory, kind)
    except Exception as error:
        if kind == "tiff" and pillow.failure(error).status == Status.UNSUPPORTED:
            return None
        raise


def read(data: bytes, max_pixels: int) -> Pixels:
    """Read an image of any format without loss, turned by its EXIF orientation.

    Raises `StatusError`, or any error of Pillow.
    """
    kind = pillow.format_of(data)
    if kind == "npy":
        return arrays.read_npy(data, max_pixels)
    opened = None if kind == "tiff" and not _pillow_reads(data) else _opened(data, kind, max_pixels)
    if opened is None:
        return turned(*arrays.read_tiff(data, max_pixels))
    pillow.check_end(opened)
    modes = _raw_modes(opened.image)  # loading forgets them
    lower = _lower_bytes(data, opened.image, max_pixels)
    opened.image.load()
    if lower is not None:
        return turned(np.asarray(opened.image).astype(np.uint16) << 8 | lower, opened.orientation)
    return turned(_samples(opened, modes), opened.orientation)


@pillow.as_decode_errors()
def upright(data: bytes) -> Pixels:
    """As `read`. Raises `DecodeError`."""
    return read(data, MAX_PIXELS)


def shown(data: bytes) -> NDArray[np.uint8]:
    """An image for the eye, uint8 (height, width, 3): the first three channels, or the first alone.

    Values of more than 8 bits are stretched from the least to the greatest. Raises `DecodeError`.
    """
    pixels = upright(data)
    chosen = pixels[:, :, [0, 1, 2] if pixels.shape[2] >= 3 else [0, 0, 0]]
    if chosen.dtype == np.uint8:
        return np.ascontiguousarray(chosen)
    values = np.nan_to_num(chosen.astype(np.float64), posinf=0, neginf=0)
    low, high = values.min(), values.max()
    levels: NDArray[np.uint8] = np.rint((values - low) * (255 / max(high - low, 1e-300))).astype(np.uint8)
    return levels


def is_array(data: bytes, max_pixels: int) -> bool:
    """Whether a file is an array of no kind that Pillow opens: a TIFF of 13 channels, say, or any `.npy`."""
    kind = pillow.format_of(data)
    if kind != "tiff":
        return kind == "npy"
    try:
        return _opened(data, kind, max_pixels) is None
    except Exception:  # of damage the caller's own call will tell
        return False


def check_array(data: bytes, recipe: TranscodeRecipe) -> None:
    """Raise `StatusError` for an array, before it is read, that exceeds a limit of the recipe."""
    found = arrays.npy_header(data) if pillow.format_of(data) == "npy" else arrays.tiff_header(data)
    size = (found.width, found.height)
    memory.check(recipe, size, len(data) + 2 * found.nbytes, arrays.named(found.components, found.type))


def is_deep(opened: pillow.Opened) -> bool:
    """Whether an image that Pillow opens is gray or RGB with whole samples of 9 to 16 bits."""
    image = opened.image
    if opened.format == "npy":
        found = arrays.npy_header(opened.data)
        return found.type == "uint16" and found.components in (1, 3)
    gray = image.mode.startswith("I;16") or (opened.format == "png" and image.mode == "I")  # I: before Pillow 11
    return gray or (image.mode == "RGB" and _deep_mode(image) is not None)


def read_levels(data: bytes, max_pixels: int) -> Pixels:
    """As `read`, but white is 65,535 in gray of 9 to 16 bits: levels that a PNG shows as the image is meant."""
    opened = memory.opened(data, max_pixels)
    if opened.image.mode == "RGB":
        return read(data, max_pixels)
    opened.image.load()
    return turned(depth.to_wide(opened.image)[:, :, None], opened.orientation)


def transcode(pixels: Pixels, recipe: TranscodeRecipe, kind: str) -> Transcoded:
    """Resize and pad an upright image as `recipe` says, without loss of bits, to the field `kind`: `NPY` or `PNG`.

    Padding is 0, that of a PNG `pad_color`. Raises `StatusError`.
    """
    framing = recipe.framing(*pixels.shape[1::-1])
    pixel, (width, height) = pixels.shape[2] * pixels.dtype.itemsize, framing.size
    planes = 4 * (pixels.shape[0] * pixels.shape[1] + width * framing.original[1] + width * height)  # of float32
    needed = 2 * pixels.nbytes + planes + 3 * pixel * math.prod(framing.canvas)  # file and array; result and its bytes
    memory.check(recipe, framing.original, needed, arrays.named(pixels.shape[2], pixels.dtype.name))
    made = resample(pixels, framing.row, framing.window, recipe.filter)
    levels = levels_of(recipe.pad_color or "black") if kind == PNG else (0, 0, 0)
    if made.shape[2] == 1 and len(set(levels)) > 1 and made.shape[1::-1] != framing.canvas:  # gray on a colour
        made = made.repeat(3, axis=2)
    fill = tuple(257 * level for level in levels) if made.shape[2] == 3 else 257 * levels[0]
    made = arrays.padded(made, framing.canvas, fill)
    data = arrays.write_npy(made) if kind == NPY else png.write(made)
    return Transcoded(data, kind, *framing.canvas, 1, *framing.original)


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Make an array upright, given its EXIF orientation; a view."""
    if orientation in TURNED:
        pixels = pixels.transpose(1, 0, 2)
    across, down = orientation in (2, 3, 7, 8), orientation in (3, 4, 6, 7)
    if orientation in TURNED:  # of the transposed image
        across, down = orientation in (6, 7), orientation in (7, 8)
    return pixels[:: -1 if down else 1, :: -1 if across else 1]


def resample(pixels: Pixels, box: tuple[int, ...], size: tuple[int, int], filter: str) -> Pixels:
    """Return a window, (width, height), of a resampled region, as `pillow.resample` describes it.

    Pillow resamples in double precision and keeps float32 between its two passes.
    """
    x0, y0, x1, y1, *virtual, x, y = box
    if (x1 - x0, y1 - y0) == tuple(virtual):
        return pixels[y0 + y : y0 + y + size[1], x0 + x : x0 + x + size[0]]
    out = np.empty((size[1], size[0], pixels.shape[2]), pixels.dtype)
    for channel in range(pixels.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(pixels[y0:y1, x0:x1, channel], np.float32))
        made = np.asarray(pillow.resample(plane, (0, 0, *plane.size, *virtual, x, y), size, filter))
        if out.dtype.kind == "u":
            made = np.rint(made).clip(0, np.iinfo(out.dtype).max)  # negative lobes overshoot
        out[:, :, channel] = made
    return out


def _pillow_reads(data: bytes) -> bool:
    """Whether Pillow decodes a TIFF without loss, if it opens it. What it does to the others was seen in 13.0."""
    tags = pillow.tiff_tags(data)
    samples, planar, compression, photometric = (tags.get(tag, 1) for tag in (277, 284, 259, 262))
    bits, forms, extra = (tags.get(tag) or (default,) for tag, default in ((258, 1), (339, 1), (338, 0)))
    if samples == 1:
        swapped = data.startswith(b"MM") and compression != 1  # floats come in the wrong byte order
        return not (swapped and 3 in forms)
    if _ASSOCIATED in extra:  # colours are divided by it
        return False
    if planar == _PLANES:
        return max(bits) <= 8 and samples in (3, 4)
    return samples <= 4 and (max(bits) <= 8 or (max(bits) == 16 and photometric == _RGB))


def _samples(opened: pillow.Opened, modes: Sequence[str]) -> Pixels:
    """All channels of a decoded image with these raw modes; palettes become colours, CMYK and Lab RGB."""
    image = opened.image
    if is_deep(opened) or image.mode == "F":
        return np.asarray(image).astype(np.float32 if image.mode == "F" else np.uint16, copy=False)[:, :, None]
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    forms = tags.get(_FORMAT) or (1,)
    if image.mode == "I" or any(form not in (1, 4) for form in forms):
        raise StatusError(Status.UNSUPPORTED, f"signed or 32-bit samples: expected {', '.join(arrays.TYPES)}")
    if any(";16" in mode for mode in modes):
        raise StatusError(Status.UNSUPPORTED, "16 bits of gray with alpha: expected gray, RGB or RGBA")
    if image.mode in ("P", "PA") or "transparency" in image.info:
        image = image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    if image.mode == "1":
        image = image.convert("L")
    if image.mode not in ("L", "LA", "RGB", "RGBA", "RGBX"):
        image = pillow.plain(image)
    samples = np.asarray(image)
    if tags.get(_PHOTOMETRIC) == 0 and samples.ndim == 2:  # Pillow has inverted it
        samples = 255 - samples
    return samples if samples.ndim == 3 else samples[:, :, None]


def _raw_modes(image: Image.Image) -> list[str]:
    """Pillow's names for the layout of the samples of an image that is not loaded yet: `RGB;16B`."""
    firsts = [tile[3][0] if isinstance(tile[3], tuple) and tile[3] else tile[3] for tile in getattr(image, "tile", ())]
    return [first for first in firsts if isinstance(first, str)]


def _deep_mode(image: Image.Image) -> str | None:
    """The raw mode of colours of 16 bits, of which Pillow keeps the upper 8; None for other images."""
    return next((mode for mode in _raw_modes(image) if _DEEP.fullmatch(mode)), None)


def _lower_bytes(data: bytes, image: Image.Image, max_pixels: int) -> NDArray[np.uint8] | None:
    """The lower bytes of colours of 16 bits, by the raw mode of the other byte order; None for other images."""
    mode = _deep_mode(image)
    if mode is None:
        return None
    native = "L" if sys.byteorder == "little" else "B"
    order = native if mode[-1] == "N" else mode[-1]
    other = mode[:-1] + ("B" if order == "L" else "L")
    again = pillow.open_image(data, max_pixels).image
    assert isinstance(again, ImageFile)
    for place, tile in enumerate(again.tile):
        args = (other, *tile[3][1:]) if isinstance(tile[3], tuple) else other
        again.tile[place] = tile._replace(args=args) if hasattr(tile, "_replace") else (*tile[:3], args)  # type: ignore[assignment]
    again.load()
    return np.asarray(again)
