"""Transcoding on Pillow: an image of any format becomes what a container stores."""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from PIL import Image
from PIL import __version__ as pillow_version

from iofast.errors import DecodeError, OptionError
from iofast.kernel import colour, lossless, markers, memory, pillow, resampling
from iofast.kernel.contract import (
    MAX_BYTES,
    MAX_SIDE,
    Status,
    Transcoded,
    TranscodeRecipe,
    levels_of,
    mcus_per_row,
)
from iofast.record import FIELD_OF_FORMAT

FIELDS = {**FIELD_OF_FORMAT, "rgb": "rgb"}  # by stored format
_SIDES = {"jpeg": MAX_SIDE, "png": (1 << 31) - 1, "webp": 16_383, "rgb": MAX_SIDE}
_SUBSAMPLING = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0"}


def transcode(data: bytes | bytearray | memoryview, recipe: TranscodeRecipe) -> Transcoded:
    """Decode, make upright, convert to sRGB and an opaque background (see `colour`), resize, pad, encode.

    EXIF and comments are dropped, and so are profiles unless `icc` is "keep". A grayscale image stays grayscale (one
    JPEG component). The coefficients are the native kernel's; the Huffman tables are the standard's, not optimised.
    Raises `DecodeError`, and `OptionError` for options that need the native kernel.
    """
    if recipe.format == "keep" and recipe.restart:
        raise OptionError("restart markers in JPEGs that are kept need the native kernel (`iofast doctor`)")
    if isinstance(recipe.restart, int) and recipe.restart and not _writes_markers():
        raise OptionError(f"restart={recipe.restart} needs Pillow 10.2 or the native kernel, found {pillow_version}")
    return transcode_with(PILLOW, data, recipe)


class Codec(NamedTuple):
    """The functions for images that Pillow decodes: Pillow's own, or the native kernel's where they are faster."""

    resample: Callable[[Image.Image, tuple[int, ...], tuple[int, int], str], Image.Image]  # as resampling.resample
    encode: Callable[[Image.Image, str, TranscodeRecipe, bytes], bytes]  # as encode
    decode: Callable[[pillow.Opened], Image.Image]  # as pillow.decode


def transcode_with(codec: Codec, data: bytes | bytearray | memoryview, recipe: TranscodeRecipe) -> Transcoded:
    """Run `transcode` by a codec, without the checks of options."""
    try:
        return _transcode(codec, data if isinstance(data, bytes) else bytes(data), recipe)
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise anything on damaged files
        raise pillow.decode_error(error) from error


def _transcode(codec: Codec, data: bytes, recipe: TranscodeRecipe) -> Transcoded:
    to_array = recipe.format == "npy" or (recipe.format == "keep" and recipe.size is None)
    if to_array and lossless.is_array(data, 1 << 62):
        lossless.check_array(data, recipe)
        return lossless.transcode(lossless.read(data, recipe.max_pixels), recipe, lossless.NPY)
    opened = pillow.open_image(data, 1 << 62)
    whole = recipe.truncated is None or opened.format != "jpeg" or markers.has_end(data)
    opened = opened if whole else pillow.mend_end(opened)
    original, mode = opened.upright(opened.orientation), opened.image.mode
    memory.check(recipe, original, memory.of_pillow(opened, original, (0, 0), "png", blended=False), mode)
    if recipe.format == "npy":
        return lossless.transcode(lossless.read(data, recipe.max_pixels), recipe, lossless.NPY)
    size = recipe.resized(*original)
    box = recipe.crop(*size)
    width, height = recipe.padded(box[2] - box[0], box[3] - box[1])
    kept = recipe.format == "keep" and box == (0, 0, *original) and (width, height) == original
    if kept and whole and opened.format in FIELDS:
        icc, background = recipe.icc == "srgb", recipe.background not in (None, "drop")
        if not colour.is_shown_otherwise(opened.image, icc=icc, background=background):
            pillow.check_end(opened)
            if recipe.check != "end":
                codec.decode(opened)  # a container holds only images that decode
            return Transcoded(data, FIELDS[opened.format], *original, opened.orientation, *original)
    kind = recipe.format
    if kind == "keep":  # PNG keeps the pixels of formats that no container stores; resized images become JPEG
        kind = "png" if kept and opened.format not in ("jpeg", "webp") else "jpeg"
    if kind == "png" and lossless.is_deep(opened) and not _needs_colours(opened.image, recipe):
        return lossless.transcode(lossless.read_levels(data, recipe.max_pixels), recipe, lossless.PNG)
    if (reason := excess(kind, width, height, recipe)) is not None:
        raise pillow.StatusError(Status.LIMIT, f"{width}x{height} pixels after resizing", reason)
    needed = memory.of_pillow(opened, size, (width, height), kind, blended=recipe.background != "drop")
    memory.check(recipe, original, needed, mode)
    profile = colour.profile_of(opened.image) if recipe.icc == "keep" else b""
    return finish(codec, _resized(codec, opened, size, box, recipe), kind, recipe, original, profile)


def _needs_colours(image: Image.Image, recipe: TranscodeRecipe) -> bool:
    """Whether a profile or transparency has to be dealt with, which is done in 8 bits."""
    shown = colour.is_shown_otherwise(image, icc=recipe.icc != "drop", background=True)
    return shown or (recipe.icc == "keep" and bool(colour.profile_of(image)))


def excess(kind: str, width: int, height: int, recipe: TranscodeRecipe) -> str | None:
    """Explain why pixels of this size cannot be stored as `kind` (any format but "keep"), or return None."""
    if max(width, height) > _SIDES[kind]:
        return f"the image is longer than the {_SIDES[kind]:,} pixels a side that {kind} takes"
    if kind == "rgb" and 3 * width * height > MAX_BYTES:  # no loader would read it
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
    """Pad resampled pixels (`L` or `RGB`) and encode them as `kind` (any format but "keep")."""
    padded = _padded(pixels, recipe)
    return Transcoded(codec.encode(padded, kind, recipe, profile), FIELDS[kind], *padded.size, 1, *original)


def _padded(pixels: Image.Image, recipe: TranscodeRecipe) -> Image.Image:
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
        resized = resampling.cut(pillow.turn(small, opened.orientation), box)
    else:
        upright = pillow.turn(pixels, opened.orientation)
        window = (box[2] - box[0], box[3] - box[1])
        resized = codec.resample(upright, (0, 0, *upright.size, *size, box[0], box[1]), window, recipe.filter)
    return colour.to_srgb(resized, profile)  # last: LittleCMS takes 24 ns per pixel, and most images are smaller now


def _opaque(codec: Codec, opened: pillow.Opened, recipe: TranscodeRecipe) -> tuple[Image.Image, bytes]:
    """Decode to an opaque grayscale (`L`) or colour (`RGB`) image, and return the profile still to be converted."""
    image = codec.decode(opened)
    profile = b"" if recipe.icc == "drop" else colour.profile_of(opened.image)
    alpha = None
    if recipe.background != "drop":
        image, alpha = colour.split_alpha(image)
    if image.mode in ("CMYK", "LAB"):  # the profile describes these values, not Pillow's conversion to RGB
        image, profile = colour.to_srgb(image, profile), b""
    profile = b"" if recipe.icc == "keep" else profile
    image = pillow.plain(image)
    if alpha is None:
        return image, profile
    background = levels_of(recipe.background or "white")  # a colour in sRGB
    return colour.lay_over(colour.to_srgb(image, profile), alpha, background), b""


def _draft(opened: pillow.Opened, size: tuple[int, int], gap: float) -> tuple[float, float, float, float] | None:
    """Make Pillow decode a JPEG at 1/2, 1/4 or 1/8 and return the box of the whole image there; None: in full."""
    if opened.format != "jpeg" or not gap:
        return None
    drafted = opened.image.draft(None, (math.ceil(size[0] * gap), math.ceil(size[1] * gap)))
    return None if drafted is None or opened.image.size == opened.size else drafted[1]


def encode(pixels: Image.Image, kind: str, recipe: TranscodeRecipe, profile: bytes) -> bytes:
    """Encode an `L` or `RGB` image as `kind` (any format but "keep"), with its profile if that fits the mode."""
    if kind == "rgb":
        return _colour(pixels).tobytes()
    embedded: dict[str, object] = {"icc_profile": profile} if colour.describes(profile, pixels) else {}
    if kind == "png":
        return _save(pixels, "PNG", embedded)
    if kind == "webp":
        return _save(pixels, "WEBP", {"quality": recipe.quality, **embedded})
    options: dict[str, object] = {"quality": recipe.quality, "subsampling": _SUBSAMPLING[recipe.subsampling]}
    interval = recipe.interval(mcus_per_row(pixels.width, len(pixels.getbands()), recipe.subsampling))
    if interval and _writes_markers():
        options["restart_marker_blocks"] = interval
    return _save(pixels, "JPEG", {**options, **embedded})


def _save(pixels: Image.Image, name: str, options: dict[str, object]) -> bytes:
    stream = BytesIO()
    pixels.info.clear()  # else Pillow writes its entries: comments, and profiles that contain the time of day
    pixels.save(stream, name, **options)
    return stream.getvalue()


def _colour(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else pillow.replaced(image, image.convert("RGB"))


PILLOW = Codec(resampling.resample, encode, pillow.decode)


def _writes_markers() -> bool:
    return tuple(int(part) for part in pillow_version.split(".")[:2]) >= (10, 2)
