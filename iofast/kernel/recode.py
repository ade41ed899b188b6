"""Transcoding of images that Pillow opens: any of them becomes what a container stores."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel import _native, colour, contract, depth, lossless, markers, memory, pillow
from iofast.kernel.contract import (
    MAX_BYTES,
    MAX_SIDE,
    Fitted,
    Kind,
    Status,
    Transcoded,
    TranscodeRecipe,
    levels_of,
    mcus_per_row,
)
from iofast.kernel.native_batch import FOREIGN, borrowed, decode_one
from iofast.kernel.other_formats import Buffer, as_bytes
from iofast.record import FIELD_OF_FORMAT

FIELDS = {**FIELD_OF_FORMAT, "rgb": "rgb"}  # by stored format
_SIDES = {"jpeg": MAX_SIDE, "png": (1 << 31) - 1, "webp": 16_383, "rgb": MAX_SIDE}
SAMPLING = {"420": (2, 2), "422": (2, 1), "444": (1, 1)}  # luma samples for one of chroma, across and down


@pillow.as_decode_errors()
def transcode(data: Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """Transcode an image that Pillow opens; see `native.transcode`."""
    data = as_bytes(data)
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
    framing = recipe.framing(*original)
    kept = recipe.format == "keep" and framing.is_whole
    if kept and whole and opened.format in FIELDS:
        icc, background = recipe.icc == "srgb", recipe.background not in (None, "drop")
        if not colour.is_shown_otherwise(opened.image, icc=icc, background=background):
            pillow.check_end(opened)
            if recipe.check != "end":
                _decode(opened)  # a container holds only images that decode
            return Transcoded(data, FIELDS[opened.format], *original, opened.orientation, *original)
    kind = recipe.format
    if kind == "keep":  # PNG keeps the pixels of formats that no container stores; resized images become JPEG
        kind = "png" if kept and opened.format not in ("jpeg", "webp") else "jpeg"
    if kind == "png" and lossless.is_deep(opened):
        shown = colour.is_shown_otherwise(opened.image, icc=recipe.icc != "drop", background=True)
        if not shown and not (recipe.icc == "keep" and colour.profile_of(opened.image)):  # which are for 8 bits
            return lossless.transcode(lossless.read_levels(data, recipe.max_pixels), recipe, lossless.PNG)
    width, height = framing.canvas
    if (reason := excess(kind, width, height, recipe)) is not None:
        raise pillow.StatusError(Status.LIMIT, f"{width}x{height} pixels after resizing", reason)
    needed = memory.of_pillow(opened, framing.size, framing.canvas, kind, blended=recipe.background != "drop")
    memory.check(recipe, original, needed, mode)
    profile = colour.profile_of(opened.image) if recipe.icc == "keep" else b""
    return finish(_resized(opened, framing, recipe), kind, recipe, framing, profile)


def excess(kind: str, width: int, height: int, recipe: TranscodeRecipe) -> str | None:
    """Explain why pixels of this size cannot be stored as `kind` (any format but "keep"), or return None."""
    if max(width, height) > _SIDES[kind]:
        return f"the image is longer than the {_SIDES[kind]:,} pixels a side that {kind} takes"
    if kind == "rgb" and 3 * width * height > MAX_BYTES:  # no loader would read it
        return f"the image is larger than the {MAX_BYTES >> 20:,} MiB of raw pixels that a loader reads"
    if width * height > recipe.max_pixels:
        return f"the image is larger than the limit on pixels, --max-pixels is {recipe.max_pixels}"
    return None


def finish(
    pixels: Image.Image, kind: str, recipe: TranscodeRecipe, framing: Fitted, profile: bytes = b""
) -> Transcoded:
    """Pad resampled pixels (`L` or `RGB`) and encode them as `kind` (any format but "keep")."""
    padded = _padded(pixels, framing.canvas, recipe)
    return Transcoded(_encode(padded, kind, recipe, profile), FIELDS[kind], *padded.size, 1, *framing.original)


def _padded(pixels: Image.Image, size: tuple[int, int], recipe: TranscodeRecipe) -> Image.Image:
    if size == pixels.size:
        return pixels
    canvas = colour.blank(pixels, size, levels_of(recipe.pad_color or "black"))
    if pixels.mode != canvas.mode:
        pixels = pillow.replaced(pixels, pixels.convert(canvas.mode))
    canvas.paste(pixels, ((size[0] - pixels.width) // 2, (size[1] - pixels.height) // 2))
    return pillow.replaced(pixels, canvas)


def _resized(opened: pillow.Opened, framing: Fitted, recipe: TranscodeRecipe) -> Image.Image:
    pixels, profile = colour.opaque(_decode(opened), colour.profile_of(opened.image), recipe)
    upright = pillow.turn(pixels, opened.orientation)
    resized = _resample(upright, framing.row, framing.window, recipe.filter)
    return colour.to_srgb(resized, profile)  # last: LittleCMS takes 24 ns per pixel, and most images are smaller now


def _decode(opened: pillow.Opened) -> Image.Image:
    """Decode to Pillow's mode for the image, with 8 bits per sample: opaque PNG and WebP by the C code.

    Where that finds damage, Pillow says what; of what Pillow decodes, it ignores damage that libjpeg only warns of.
    """
    image, (width, height) = opened.image, opened.size
    plain = image.mode in ("L", "RGB") and "transparency" not in image.info
    if opened.format in FOREIGN and plain and width * height <= contract.LARGE:
        out, box = np.empty((1, height, width, 3), np.uint8), [0, 0, width, height, width, height, 0, 0]
        with borrowed("nearest", width * height) as context:
            failed = decode_one(context, opened.data[:], 1, np.array([box], np.int32), out)
        if not failed:
            return _image(out[0], image.mode)
    image.load()
    return pillow.replaced(image, depth.to_bytes(image))


def _image(pixels: NDArray[np.uint8], mode: str) -> Image.Image:
    """Return (height, width, 3) as `RGB`, or its first channel as `L`."""
    return Image.fromarray(pixels if mode == "RGB" else np.ascontiguousarray(pixels[:, :, 0]))


def _resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], filter: str) -> Image.Image:
    """Resample an `L` or `RGB` image as `pillow.resample` does."""
    x0, y0, x1, y1, *virtual, _, _ = box
    if image.width * image.height > contract.LARGE or tuple(virtual) == (x1 - x0, y1 - y0):
        return pillow.resample(image, box, size, filter)
    pixels = (image if image.mode == "RGB" else image.convert("RGB")).tobytes()
    out, raw = np.empty((1, size[1], size[0], 3), np.uint8), np.array([[Kind.RGB, *image.size]], np.int32)
    with borrowed(filter, image.width * image.height) as context:
        status = decode_one(context, pixels, 1, np.array([box], np.int32), out, raw)
    if status:
        raise pillow.StatusError(Status(status))
    return _image(out[0], image.mode)


def _encode(pixels: Image.Image, kind: str, recipe: TranscodeRecipe, profile: bytes) -> bytes:
    """Encode an `L` or `RGB` image as `kind` (any format but "keep"), with its profile if that fits the mode."""
    if kind == "rgb":
        return (pixels if pixels.mode == "RGB" else pillow.replaced(pixels, pixels.convert("RGB"))).tobytes()
    profile = profile if colour.describes(profile, pixels) else b""
    if kind == "jpeg":
        return _jpeg(pixels, recipe, profile)
    options: dict[str, Any] = {"icc_profile": profile} if profile else {}
    if kind == "webp":
        options["quality"] = recipe.quality
    stream = BytesIO()
    pixels.info.clear()  # else Pillow writes its entries: comments, and profiles that contain the time of day
    pixels.save(stream, kind.upper(), **options)
    return stream.getvalue()


def _jpeg(pixels: Image.Image, recipe: TranscodeRecipe, profile: bytes) -> bytes:
    width, height, channels = *pixels.size, len(pixels.getbands())
    interval = recipe.interval(mcus_per_row(width, channels, recipe.subsampling))
    layout = (channels, width, height, recipe.quality, *SAMPLING[recipe.subsampling], interval)
    with borrowed("bilinear", width * height) as context:
        status, encoded = _native.encode(context.handle, pixels.tobytes(), *layout)
    if encoded is None:
        raise pillow.StatusError(Status(status))
    return markers.with_profile(encoded, profile) if profile else encoded
