"""The twin's transcoding: an image of any format made what a container stores, on Pillow."""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL import __version__ as pillow_version

from iofast.errors import DecodeError, OptionError
from iofast.kernel import colour, memory, pillow, raw, resampling
from iofast.kernel.contract import (
    MAX_BYTES,
    MAX_SIDE,
    Status,
    Transcoded,
    TranscodeRecipe,
    levels_of,
    mcus_per_row,
)

# What can be stored, and under which field; how many pixels a side can have.
_FIELDS = {"jpeg": "jpg", "png": "png", "webp": "webp", "rgb": "rgb", "yuv420": "yuv"}
_SIDES = {"jpeg": MAX_SIDE, "png": (1 << 31) - 1, "webp": 16_383, "rgb": MAX_SIDE, "yuv420": MAX_SIDE}
_SUBSAMPLING = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0"}


def transcode(data: bytes | bytearray | memoryview, recipe: TranscodeRecipe) -> Transcoded:
    """Decode, make upright and what a viewer shows (`colour`), resize, pad, encode. Raises `DecodeError`.

    EXIF and comments are left behind, and profiles with another `icc` than "keep". A grayscale image stays grayscale
    (one JPEG component).
    Huffman tables are the standard's, where the native kernel has better ones: the coefficients are the same. Raises
    `OptionError` for what only the native kernel can do.
    """
    if recipe.format == "keep" and recipe.restart:
        raise OptionError("restart markers in JPEGs that are kept need the native kernel (`iofast doctor`)")
    if isinstance(recipe.restart, int) and recipe.restart and not _writes_markers():
        raise OptionError(f"restart={recipe.restart} needs Pillow 10.2 or the native kernel, found {pillow_version}")
    return transcode_with(PILLOW, data, recipe)


class Codec(NamedTuple):
    """What works on the images that Pillow opens: Pillow itself, or the native kernel where it is faster."""

    decode: Callable[[pillow.Opened], Image.Image]  # as pillow.decode
    resample: Callable[[Image.Image, tuple[int, ...], tuple[int, int], str], Image.Image]  # as resampling.resample
    encode: Callable[[Image.Image, str, TranscodeRecipe, bytes], bytes]  # as encode


def transcode_with(codec: Codec, data: bytes | bytearray | memoryview, recipe: TranscodeRecipe) -> Transcoded:
    """`transcode` without its checks."""
    try:
        return _transcode(codec, data if isinstance(data, bytes) else bytes(data), recipe)
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise anything on damaged files
        raise pillow.decode_error(error) from error


def _transcode(codec: Codec, data: bytes, recipe: TranscodeRecipe) -> Transcoded:
    opened = pillow.open_image(data, 1 << 62)
    original = opened.upright(opened.orientation)
    blended = recipe.background != "drop"
    memory.check(recipe, original, memory.of_pillow(opened, original, (0, 0), "png", blended=False), opened.image.mode)
    size = recipe.resized(*original)
    box = recipe.crop(*size)
    width, height = recipe.padded(box[2] - box[0], box[3] - box[1])
    kept = recipe.format == "keep" and box == (0, 0, *original) and (width, height) == original
    if kept and opened.format in _FIELDS:
        asked = {"icc": recipe.icc == "srgb", "background": recipe.background not in (None, "drop")}
        if not colour.is_shown_otherwise(opened.image, **asked):
            pillow.check_end(opened)
            if recipe.check != "end":
                codec.decode(opened)  # a container holds only images that decode
            return Transcoded(data, _FIELDS[opened.format], *original, opened.orientation, *original)
    kind = recipe.format
    if kind == "keep":  # what no container stores loses nothing as PNG; new sizes are no longer the file's pixels
        kind = "png" if kept and opened.format not in ("jpeg", "webp") else "jpeg"
    if (reason := excess(kind, width, height, recipe)) is not None:
        raise pillow.StatusError(Status.LIMIT, f"{width}x{height} pixels after resizing", reason)
    needed = memory.of_pillow(opened, size, (width, height), kind, blended=blended)
    memory.check(recipe, original, needed, opened.image.mode)
    profile = colour.profile_of(opened.image) if recipe.icc == "keep" else b""
    return finish(codec, _resized(codec, opened, size, box, recipe), kind, recipe, original, profile)


def excess(kind: str, width: int, height: int, recipe: TranscodeRecipe) -> str | None:
    """Why pixels of this size cannot be stored as `kind`, any format but "keep"; None where they can."""
    if max(width, height) > _SIDES[kind]:
        return f"the image is longer than the {_SIDES[kind]:,} pixels a side that {kind} takes"
    if kind in ("rgb", "yuv420") and 3 * width * height > MAX_BYTES:  # no loader would read it
        return f"the image is larger than the {MAX_BYTES >> 20:,} MiB of raw pixels that a loader reads"
    if width * height > recipe.max_pixels:
        return f"the image is larger than the limit of {recipe.max_pixels:,} pixels (max_pixels)"
    return None


def finish(
    codec: Codec,
    pixels: Image.Image,
    kind: str,
    recipe: TranscodeRecipe,
    original: tuple[int, int],
    profile: bytes = b"",
) -> Transcoded:
    """Resampled pixels (`L` or `RGB`), padded and encoded as `kind`: any format but "keep"."""
    padded = pad(pixels, recipe)
    return Transcoded(codec.encode(padded, kind, recipe, profile), _FIELDS[kind], *padded.size, 1, *original)


def pad(pixels: Image.Image, recipe: TranscodeRecipe) -> Image.Image:
    """`pixels` in the middle of the canvas that the recipe wants, if it wants one."""
    size = recipe.padded(*pixels.size)
    if size == pixels.size:
        return pixels
    canvas = colour.blank(pixels, size, levels_of(recipe.pad_color or "black"))
    if pixels.mode != canvas.mode:
        pixels = pillow.replaced(pixels, pixels.convert(canvas.mode))
    canvas.paste(pixels, ((size[0] - pixels.width) // 2, (size[1] - pixels.height) // 2))
    return pillow.replaced(pixels, canvas)


def _resized(
    codec: Codec,
    opened: pillow.Opened,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    recipe: TranscodeRecipe,
) -> Image.Image:
    goal = size[::-1] if opened.orientation >= 5 else size
    scaled = _draft(opened, goal, recipe.reducing_gap)
    pixels, profile = _opaque(codec, opened, recipe)
    if scaled:  # a box in the stored image, so the resize comes before the turn
        small = pixels.resize(goal, resampling.FILTERS[recipe.filter], box=scaled)
        made = resampling.cut(pillow.turn(small, opened.orientation), box)
    else:
        upright = pillow.turn(pixels, opened.orientation)
        window = (box[2] - box[0], box[3] - box[1])
        made = codec.resample(upright, (0, 0, *upright.size, *size, box[0], box[1]), window, recipe.filter)
    return colour.to_srgb(made, profile)  # last: LittleCMS takes 24 ns a pixel, and mostly there are fewer by now


def _opaque(codec: Codec, opened: pillow.Opened, recipe: TranscodeRecipe) -> tuple[Image.Image, bytes]:
    """Decode: an opaque grayscale (`L`) or colour (`RGB`) image, and the profile that is still to be converted."""
    image = codec.decode(opened)
    profile = b"" if recipe.icc == "drop" else colour.profile_of(opened.image)
    alpha = None
    if recipe.background != "drop":
        image, alpha = colour.split_alpha(image)
    if image.mode in ("CMYK", "LAB"):  # the profile is for these numbers, not for those that Pillow makes of them
        image, profile = colour.to_srgb(image, profile), b""
    profile = b"" if recipe.icc == "keep" else profile
    image = pillow.plain(image)
    if alpha is None:
        return image, profile
    background = levels_of(recipe.background or "white")  # a colour of sRGB
    return colour.lay_over(colour.to_srgb(image, profile), alpha, background), b""


def _draft(opened: pillow.Opened, size: tuple[int, int], gap: float) -> tuple[float, float, float, float] | None:
    """Have a JPEG decoded at 1/2, 1/4 or 1/8: where the whole image will lie in those pixels. None: in full."""
    if opened.format != "jpeg" or not gap:
        return None
    drafted = opened.image.draft(None, (math.ceil(size[0] * gap), math.ceil(size[1] * gap)))
    return None if drafted is None or opened.image.size == opened.size else drafted[1]


def encode(pixels: Image.Image, kind: str, recipe: TranscodeRecipe, profile: bytes) -> bytes:
    """An `L` or `RGB` image as `kind`: any format but "keep"; with its profile, where that is for such images."""
    if kind == "rgb":
        return _colour(pixels).tobytes()
    if kind == "yuv420":
        return raw.pack_yuv(np.asarray(_colour(pixels)))
    embedded: dict[str, object] = {"icc_profile": profile} if colour.describes(profile, pixels) else {}
    if kind == "png":
        return _save(pixels, "PNG", embedded)
    if kind == "webp":
        return _save(pixels, "WEBP", {"quality": recipe.quality, **embedded})
    options: dict[str, object] = {"quality": recipe.quality, "subsampling": _SUBSAMPLING[recipe.subsampling]}
    components = 1 if pixels.mode == "L" else 3
    interval = recipe.interval(mcus_per_row(pixels.width, components, recipe.subsampling))
    if interval and _writes_markers():
        options["restart_marker_blocks"] = interval
    return _save(pixels, "JPEG", {**options, **embedded})


def _save(pixels: Image.Image, name: str, options: dict[str, object]) -> bytes:
    stream = BytesIO()
    pixels.info.clear()  # Pillow writes what it finds there: comments, and profiles with the time of day in them
    pixels.save(stream, name, **options)
    return stream.getvalue()


def _colour(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else pillow.replaced(image, image.convert("RGB"))


PILLOW = Codec(pillow.decode, resampling.resample, encode)


def _writes_markers() -> bool:
    return tuple(int(part) for part in pillow_version.split(".")[:2]) >= (10, 2)
