"""The native kernel's Python side: the same functions as the twin. What the C code does not take, the twin does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel import _native, colour, markers, memory, native_codec, pillow, recode, twin
from iofast.kernel.contract import (
    MAX_BYTES,
    MAX_PIXELS,
    MAX_SIDE,
    MESSAGES,
    WAYS,
    Header,
    Kind,
    Status,
    StatusError,
    Transcoded,
    TranscodeRecipe,
    mcus_per_row,
)
from iofast.kernel.native_batch import Context as Context
from iofast.kernel.native_batch import borrowed, decode_one
from iofast.kernel.native_batch import cached as cached
from iofast.kernel.native_batch import decode_batch as decode_batch
from iofast.kernel.native_batch import decode_each as decode_each
from iofast.kernel.native_batch import finish_batch as finish_batch
from iofast.kernel.native_batch import read_rows as read_rows
from iofast.kernel.twin import Buffer

crc32c = _native.crc32c

_INT_MAX = (1 << 31) - 1  # of the C code's coordinates, those of a virtual image among them
_AS_PIXELS = MAX_BYTES // 3  # pixels, where they are not encoded
_KINDS = {
    "jpeg": (Kind.ENCODED, "jpg"),
    "keep": (Kind.ENCODED, "jpg"),
    "rgb": (Kind.RGB, "rgb"),
    "yuv420": (Kind.YUV420, "yuv"),
}  # what the C code makes, and under which field it is stored
STANDARD, OPTIMAL = -1, 0  # Huffman tables: those of the JPEG standard, the best for one image


def read_header(data: Buffer) -> Header:
    """Format, upright size and orientation. Raises `DecodeError`; of a file's beginning, the whole may still do."""
    status, width, height, orientation, components, progressive, *intervals = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return twin.read_header(data)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    return Header("jpeg", width, height, orientation, components, bool(progressive), *intervals)


def check(data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS) -> None:
    """Raise `DecodeError` where `decode` would, in half the time where a JPEG is whole and has no restart markers.

    For its last pixel our decoder goes through all Huffman codes, and those alone can be damaged; whatever it does not
    take, or finds wrong, is decoded in full.
    """
    status, width, height, tagged, _, _, restart, _ = _native.read_header(data)
    if not status and not restart and 0 < width * height <= max_pixels:
        right, low = (height, width) if tagged >= 5 else (width, height)
        with borrowed("nearest", width * height) as context:
            before = _rows(context)
            last = np.array([[right - 1, low - 1, right, low, 1, 1, 0, 0]], np.int32)
            if not decode_one(context, data, 1, last, np.empty((1, 1, 1, 3), np.uint8)) and _rows(context) > before:
                return
    decode(data, orientation, max_pixels)


def _rows(context: Context) -> int:
    """How many images a context has decoded with our own decoder through all their rows."""
    return _native.counters(context.handle, -1)[0][WAYS.index("rows")]


def decode(data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """A whole image as upright RGB, uint8 (height, width, 3), given its EXIF orientation. Raises `DecodeError`."""
    status, width, height, tagged, *_ = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return twin.decode(data, orientation, max_pixels)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    if (tagged >= 5) != (5 <= orientation <= 8):
        width, height = height, width
    if width * height > max_pixels:
        raise DecodeError(MESSAGES[Status.LIMIT])
    out = np.empty((1, height, width, 3), np.uint8)
    boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
    with borrowed("nearest", width * height) as context:
        status = decode_one(context, data, orientation, boxes, out)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    image: NDArray[np.uint8] = out[0]
    return image


def transcode(data: Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """Decode, make upright, resize and encode in one call without the GIL. Results and errors are the twin's."""
    status, width, height, orientation, components, progressive, _, mcus = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return recode.transcode_with(native_codec.CODEC, data, recipe)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    size = recipe.resized(width, height)
    x0, y0, x1, y1 = recipe.crop(*size)
    window = x1 - x0, y1 - y0
    whole = (x0, y0, x1, y1) == (0, 0, width, height) and recipe.padded(width, height) == (width, height)
    kept = recipe.format == "keep" and whole
    profile = _profile(data, components, recipe, kept)
    both = bool(profile) or recipe.format not in _KINDS or (recipe.mode == "pad" and not kept)
    stored = "jpeg" if recipe.format == "keep" else recipe.format
    canvas = recipe.padded(*window)
    fits = recode.excess(stored, *canvas, recipe) is None
    needed = memory.of_native(
        (width, height),
        canvas if fits and (both or not kept) else (0, 0),
        (memory.BY_BOTH if both else memory.NATIVE)[stored],
        coefficients=components if progressive else 0,
        whole=kept or window != size,
    )
    _check(recipe, (width, height), len(data) + needed, components)
    if both:
        if fits and components <= 3 and _takes(window, size, _AS_PIXELS):
            return _by_both(data, recipe, stored, components, profile)
        decode(data, orientation, recipe.max_pixels)  # Pillow says nothing of damage that libjpeg only warns of
        return recode.transcode_with(native_codec.CODEC, data, recipe)
    if kept:
        if recipe.check != "end":
            check(data, orientation, recipe.max_pixels)  # a container holds only images that decode
        elif not markers.has_end(data if isinstance(data, bytes) else bytes(data)):
            raise DecodeError(MESSAGES[Status.TRUNCATED])
        written = rewrite(data, recipe.interval(mcus), OPTIMAL, recipe.max_pixels) if recipe.restart and mcus else None
        return Transcoded(bytes(data) if written is None else written, "jpg", width, height, orientation, width, height)
    kind, field = _KINDS[recipe.format]
    if not _takes(window, size, recipe.max_pixels if kind == Kind.ENCODED else min(recipe.max_pixels, _AS_PIXELS)):
        raise DecodeError(_too_large(window, recipe))
    if window != size and not _by_planes(kind, recipe):
        check(data, orientation, recipe.max_pixels)  # damage in what is cut off and not decoded shows in no pixel
    with borrowed(recipe.filter, width * height) as context:
        status, payload = _native.transcode(
            context.handle,
            data,
            (0, 0, width, height, *size, x0, y0),
            *window,
            orientation,
            recipe.quality,
            *native_codec.SAMPLING["420" if kind == Kind.YUV420 else recipe.subsampling],
            recipe.interval(mcus_per_row(window[0], min(components, 3), recipe.subsampling)),
            _denominator((width, height), size, recipe.reducing_gap),
            kind,
        )
    if status == Status.UNSUPPORTED:
        return recode.transcode_with(native_codec.CODEC, data, recipe)
    if payload is None:
        raise DecodeError(MESSAGES[Status(status)])
    return Transcoded(payload, field, *window, 1, width, height)


def _too_large(window: tuple[int, int], recipe: TranscodeRecipe) -> str:
    """Why a result of this size is not made."""
    reason = recode.excess(recipe.format, *window, recipe) or MESSAGES[Status.LIMIT]
    return f"{reason} ({window[0]}x{window[1]} pixels after resizing)"


def _check(recipe: TranscodeRecipe, size: tuple[int, int], needed: int, components: int) -> None:
    """Raise `DecodeError` for a JPEG above a limit."""
    try:
        memory.check(recipe, size, needed, {1: "L", 3: "RGB"}.get(components, "CMYK"))
    except StatusError as error:
        raise pillow.decode_error(error) from None


def _takes(window: tuple[int, int], size: tuple[int, int], most: int) -> bool:
    """Whether the C code makes a window of an image resampled to `size`, if `most` pixels may be stored."""
    return max(window) <= MAX_SIDE and math.prod(window) <= most and max(size) <= _INT_MAX


def _by_planes(kind: Kind, recipe: TranscodeRecipe) -> bool:
    """Whether the C code decodes a usual JPEG as a whole, and cuts its planes; else it decodes what a window needs."""
    return kind != Kind.RGB and recipe.subsampling != "444" and recipe.filter in ("box", "bilinear")


def _profile(data: Buffer, components: int, recipe: TranscodeRecipe, kept: bool) -> bytes:
    """The colour profile of a JPEG, where it has to be handed on or converted to sRGB."""
    if recipe.icc == "drop" or (kept and recipe.icc != "srgb"):
        return b""
    profile = markers.profile(data if isinstance(data, bytes) else bytes(data))
    return profile if recipe.icc == "keep" or colour.needs_conversion(profile, components) else b""


def _by_both(data: Buffer, recipe: TranscodeRecipe, stored: str, components: int, profile: bytes) -> Transcoded:
    """Decoded and resampled by the C code, then converted to sRGB, padded and encoded as other formats are."""
    mode = "long" if recipe.mode == "pad" else recipe.mode
    made = transcode(data, replace(recipe, format="rgb", icc="drop", mode=mode, pad_color=None, check=None))
    pixels, original = Image.frombytes("RGB", made[2:4], made.data), made[-2:]
    del made  # as large as the pixels
    if components == 1:
        pixels = pixels.getchannel(0)
    if recipe.icc != "keep":
        pixels, profile = colour.to_srgb(pixels, profile), b""
    return recode.finish(native_codec.CODEC, pixels, stored, recipe, original, profile)


def rewrite(data: Buffer, restart: int, tables: int = OPTIMAL, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """A JPEG with the same coefficients and the same APPn and COM markers, as baseline in one scan.

    `restart` is MCUs per interval, 0 = no markers. `tables`: OPTIMAL for this image, the STANDARD ones, or 1 to 100 for
    those that `transcode` takes at that quality. None where the pixels would not be the same (more blocks per MCU than
    one scan may have, coefficients out of range, quantisation that changes between scans, missing scans). Raises
    `DecodeError` for damage.
    """
    _, width, height, *_ = _native.read_header(data)
    with borrowed("nearest", width * height) as context:
        status, payload = _native.rewrite(context.handle, data, restart, tables, max_pixels)
    if status not in (Status.OK, Status.UNSUPPORTED):
        raise DecodeError(MESSAGES[Status(status)])
    return payload


def _denominator(original: tuple[int, int], size: tuple[int, int], gap: float) -> int:
    """The DCT reduction that leaves at least `gap` times the wanted size: the rule of Pillow's `draft`."""
    if not gap:
        return 1
    room = min(have // math.ceil(want * gap) for have, want in zip(original, size, strict=True))
    return next(scale for scale in (8, 4, 2, 1) if room >= scale or scale == 1)
