"""Single images: by the C code, or by Pillow what that does not support."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel import _native, colour, markers, memory, other_formats, pillow, recode
from iofast.kernel.contract import (
    MAX_MEMORY,
    MAX_PIXELS,
    MESSAGES,
    TURNED,
    WAYS,
    Fitted,
    Header,
    Kind,
    Status,
    Transcoded,
    TranscodeRecipe,
    check_size,
    mcus_per_row,
)
from iofast.kernel.native_batch import Context as Context
from iofast.kernel.native_batch import borrowed, decode_one
from iofast.kernel.native_batch import decode_batch as decode_batch
from iofast.kernel.native_batch import finish_batch as finish_batch
from iofast.kernel.native_batch import read_rows as read_rows
from iofast.kernel.other_formats import Buffer, as_bytes

_INT_MAX = (1 << 31) - 1  # the limit of the C code's coordinates, including those of a virtual image
_KINDS = {"jpeg": Kind.ENCODED, "rgb": Kind.RGB}  # formats that the C code writes
STANDARD, OPTIMAL = -1, 0  # Huffman tables: those of the JPEG standard, the best for one image


def read_header(data: Buffer, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY) -> Header:
    """Read the header of an image. Raises `DecodeError`, also if decoding it would exceed a limit.

    If it fails on the first part of a file, it may still succeed on the whole.
    """
    header = _header(data)
    if header is None or header.width * header.height > max_pixels:
        return other_formats.read_header(data, max_pixels, max_memory)
    return header


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of `data`; `value` is the CRC32C of the bytes before it."""
    return _native.crc32c(data, value)


def _header(data: Buffer) -> Header | None:
    """Return the header of a JPEG, or None for data that the C code does not support. Raises `DecodeError`."""
    status, width, height, orientation, components, progressive, restart, mcus = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return None
    _demand(status)
    return Header("jpeg", width, height, orientation, components, bool(progressive), restart, mcus)


def _demand(status: int) -> None:
    """Raise `DecodeError` unless `status` is OK."""
    if status:
        raise DecodeError(MESSAGES[Status(status)])


def check(data: Buffer, orientation: int, max_pixels: int, max_memory: int) -> None:
    """Raise `DecodeError` where `decode` would, in half the time for an undamaged JPEG without restart markers.

    To decode its last pixel, our decoder reads all Huffman codes, and only those can be damaged. Images that it does
    not support, or finds damaged, are decoded in full.
    """
    header = _header(data)
    if header is not None and not header.restart and 0 < header.width * header.height <= max_pixels:
        right, low = header.width, header.height
        if header.orientation in TURNED:
            right, low = low, right
        with borrowed("nearest", right * low) as context:
            before = _whole_scans(context)
            last = np.array([[right - 1, low - 1, right, low, 1, 1, 0, 0]], np.int32)
            failed = decode_one(context, data, 1, last, np.empty((1, 1, 1, 3), np.uint8))
            if not failed and _whole_scans(context) > before:
                return
    decode(data, orientation, max_pixels, max_memory)


def _whole_scans(context: Context) -> int:
    """Return how many images of a context our own decoder has decoded by whole rows."""
    return _native.counters(context.handle, -1)[0][WAYS.index("rows")]


def decode(
    data: Buffer, orientation: int = 1, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY
) -> NDArray[np.uint8]:
    """Decode a whole image with an EXIF orientation to upright RGB, uint8 (height, width, 3). Raises `DecodeError`."""
    header = _header(data)
    if header is None:
        return other_formats.decode(data, orientation, max_pixels, max_memory)
    width, height = header.width, header.height
    if (header.orientation in TURNED) != (orientation in TURNED):
        width, height = height, width
    with pillow.as_decode_errors():
        check_size(width, height, max_pixels)
        memory.check_whole(header, len(data), max_memory)
    out = np.empty((1, height, width, 3), np.uint8)
    boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
    with borrowed("nearest", width * height) as context:
        _demand(decode_one(context, data, orientation, boxes, out))
    return np.asarray(out[0])


def transcode(data: Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """Decode, make upright, convert to sRGB and an opaque background (see `colour`), resize, pad, encode.

    EXIF and comments are dropped, and so are profiles unless `icc` is "keep". A grayscale image stays grayscale (one
    JPEG component). For JPEGs this is one call without the GIL. Raises `DecodeError`.
    """
    header = None if recipe.format == "npy" else _header(data)
    if header is None:
        return recode.transcode(data, recipe)
    framing = recipe.framing(header.width, header.height)
    kept = recipe.format == "keep" and framing.is_whole
    stored = "jpeg" if recipe.format == "keep" else recipe.format
    profile = _profile(data, header.components, recipe, kept)
    pillow_encodes = bool(profile) or stored not in memory.NATIVE or (recipe.mode == "pad" and not kept)
    fits = recode.excess(stored, *framing.canvas, recipe) is None
    needed = memory.of_native(
        framing.original,
        framing.canvas if fits and (pillow_encodes or not kept) else (0, 0),
        memory.NATIVE_THEN_PILLOW[stored] if pillow_encodes else memory.NATIVE[stored],
        coefficients=header.components if header.progressive else 0,
        whole=kept or framing.window != framing.size,
    )
    with pillow.as_decode_errors():
        memory.check(recipe, (header.width, header.height), len(data) + needed, memory.mode_of(header))
    if pillow_encodes:
        if fits and header.components <= 3 and _too_large("rgb", framing, recipe) is None:
            return _encoded_by_pillow(data, header, recipe, stored, framing, profile)
        if recipe.truncated is None:
            # Pillow ignores damage that libjpeg only warns of
            decode(data, header.orientation, recipe.max_pixels, recipe.max_memory)
        return recode.transcode(data, recipe)
    if kept:
        return _kept(data, header, recipe) if recipe.truncated is None else _kept_if_whole(data, header, recipe)
    return _encoded(data, header, recipe, stored, framing)


def _kept(data: Buffer, header: Header, recipe: TranscodeRecipe) -> Transcoded:
    """Keep a file after validation, or rewrite it with restart markers."""
    if recipe.check != "end":
        # a container holds only images that decode
        check(data, header.orientation, recipe.max_pixels, recipe.max_memory)
    elif not markers.has_end(as_bytes(data)):
        _demand(Status.TRUNCATED)
    rewritten = None
    if recipe.restart and header.mcus:
        rewritten = rewrite(data, recipe.interval(header.mcus), OPTIMAL, recipe.max_pixels)
    size = header.width, header.height
    return Transcoded(bytes(data) if rewritten is None else rewritten, "jpg", *size, header.orientation, *size)


def _kept_if_whole(data: Buffer, header: Header, recipe: TranscodeRecipe) -> Transcoded:
    """Keep a file, complete one that lacks only its end-of-image marker, and encode what is there of any other."""
    for whole, how in ((data, recipe.check), (as_bytes(data) + markers.END, None)):
        with suppress(DecodeError):
            return _kept(whole, header, replace(recipe, check=how))
    return transcode(data, replace(recipe, format="jpeg"))


def _encoded(data: Buffer, header: Header, recipe: TranscodeRecipe, stored: str, framing: Fitted) -> Transcoded:
    """Decode, resample, crop, convert and encode as `stored`, all in the C code."""
    kind, original, window = _KINDS[stored], framing.original, framing.window
    if (reason := _too_large(stored, framing, recipe)) is not None:
        raise DecodeError(f"{reason} ({window[0]}x{window[1]} pixels after resizing)")
    # For some filters and formats a usual JPEG is decoded as a whole, and its planes are cropped. Otherwise only what
    # the window needs is decoded, and damage elsewhere would not show in any pixel. The nearest pixels may not include
    # the last.
    by_planes = kind != Kind.RGB and recipe.subsampling != "444" and recipe.filter in ("box", "bilinear")
    strict = recipe.truncated is None
    if strict and (recipe.filter == "nearest" or (window != framing.size and not by_planes)):
        check(data, header.orientation, recipe.max_pixels, recipe.max_memory)
    with borrowed(recipe.filter, math.prod(original), strict=strict) as context:
        status, payload = _native.transcode(
            context.handle,
            data,
            framing.row,
            *window,
            header.orientation,
            recipe.quality,
            *recode.SAMPLING[recipe.subsampling],
            recipe.interval(mcus_per_row(window[0], min(header.components, 3), recipe.subsampling)),
            _denominator(original, framing.size, recipe.reducing_gap),
            kind,
        )
    if status == Status.UNSUPPORTED:
        return recode.transcode(data, recipe)
    if payload is None:
        raise DecodeError(MESSAGES[Status(status)])
    return Transcoded(payload, recode.FIELDS[stored], *window, 1, *original)


def _too_large(stored: str, framing: Fitted, recipe: TranscodeRecipe) -> str | None:
    """Explain why the C code cannot make this window as `stored`, or return None."""
    reason = recode.excess(stored, *framing.window, recipe)
    return MESSAGES[Status.LIMIT] if reason is None and max(framing.size) > _INT_MAX else reason


def _profile(data: Buffer, components: int, recipe: TranscodeRecipe, kept: bool) -> bytes:
    """Return the colour profile of a JPEG if it must be passed on or converted to sRGB, else b""."""
    if recipe.icc == "drop" or (kept and recipe.icc != "srgb"):
        return b""
    profile = markers.profile(as_bytes(data))
    return profile if recipe.icc == "keep" or colour.needs_conversion(profile, components) else b""


def _encoded_by_pillow(
    data: Buffer, header: Header, recipe: TranscodeRecipe, stored: str, framing: Fitted, profile: bytes
) -> Transcoded:
    """Decode and resample in the C code, then convert from `profile` to sRGB, pad and encode like other formats."""
    mode = "long" if recipe.mode == "pad" else recipe.mode
    resized = transcode(data, replace(recipe, format="rgb", icc="drop", mode=mode, pad_color=None, check=None))
    pixels = Image.frombytes("RGB", framing.window, resized.data)
    del resized  # as large as the pixels
    if header.components == 1:
        pixels = pixels.getchannel(0)
    if recipe.icc != "keep":
        pixels, profile = colour.to_srgb(pixels, profile), b""
    return recode.finish(pixels, stored, recipe, framing, profile)


def rewrite(data: Buffer, restart: int, tables: int = OPTIMAL, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """Rewrite a JPEG with the same coefficients and the same APPn and COM markers, as baseline in one scan.

    `restart` is MCUs per interval, 0 = no markers. `tables`: OPTIMAL for this image, the STANDARD ones, or 1 to 100 for
    those of `transcode` at that quality. Returns None if the pixels would change (more blocks per MCU than one scan can
    hold, coefficients out of range, quantisation that changes between scans, missing scans). Raises `DecodeError` for
    damage.
    """
    _, width, height, *_ = _native.read_header(data)
    with borrowed("nearest", width * height) as context:
        status, payload = _native.rewrite(context.handle, data, restart, tables, max_pixels)
    if status != Status.UNSUPPORTED:
        _demand(status)
    return payload


def _denominator(original: tuple[int, int], size: tuple[int, int], gap: float) -> int:
    """Return the DCT reduction that leaves at least `gap` times the wanted size, by the rule of Pillow's `draft`."""
    if not gap:
        return 1
    room = min(have // math.ceil(want * gap) for have, want in zip(original, size, strict=True))
    return next(scale for scale in (8, 4, 2, 1) if room >= scale or scale == 1)
