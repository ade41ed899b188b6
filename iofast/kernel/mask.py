"""Masks: images whose values are labels. They follow the geometry of their image and keep their values."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.errors import DecodeError
from iofast.kernel import arrays, memory, pillow
from iofast.kernel.contract import Header, TranscodeRecipe

_MODES = ("1", "L", "P", "LA", "RGB", "RGBA", "I", "I;16", "I;16L", "I;16B", "I;16N")


@pillow.as_decode_errors()
def transcode_mask(
    data: bytes, recipe: TranscodeRecipe, image: Header, *, upright: bool = False, fill: int = 0
) -> bytes:
    """Turn, resize (nearest), crop and pad a mask as its image with the header `image` is; return a PNG.

    A mask of the image's stored size is turned like the image. If stored and upright size are equal, `upright` means
    that the mask was drawn on the upright image. Palette indexes and 16-bit values are preserved. `fill` is the value
    of the padding. An unchanged PNG stays identical. Raises `DecodeError`.
    """
    opened = memory.opened(data, recipe.max_pixels, recipe.max_memory)
    pillow.check_end(opened)
    if opened.format == "png" and data[24] == 16 and data[25] in (2, 6):
        raise DecodeError("a mask of 16-bit colour would lose its lower bits: expected gray, palette or 8 bits")
    turn, framing = _turn(opened, image, upright), recipe.framing(image.width, image.height)
    opened.image.load()
    if turn == 1 and opened.orientation == 1 and opened.format == "png" and framing.is_whole:
        return data
    mask = pillow.turn(opened.image, turn if turn > 1 else opened.orientation)
    if mask.mode not in _MODES:
        raise DecodeError(f"a mask of mode {mask.mode} cannot be stored: expected gray, palette or RGB")
    labels, (across, down), (x0, y0, x1, y1) = np.asarray(mask), framing.size, framing.box
    rows, columns = _nearest(labels.shape[0], down, y0, y1), _nearest(labels.shape[1], across, x0, x1)
    labels = labels[rows[:, None], columns]
    if labels.dtype.itemsize == 1 and fill > 255 and labels.shape[1::-1] != framing.canvas:
        raise DecodeError(f"mask_fill {fill} does not fit into a mask of 8 bits")
    return _png(arrays.padded(labels, framing.canvas, fill), mask)


def _turn(opened: pillow.Opened, image: Header, upright: bool) -> int:
    """Return the EXIF orientation to apply to the mask. Raises `DecodeError` if its size is wrong."""
    size, shown = opened.upright(opened.orientation), (image.width, image.height)
    stored = shown[::-1] if image.orientation >= 5 else shown
    if opened.orientation == 1 and size == stored and not (upright and stored == shown):
        return image.orientation
    if size == shown:
        return 1
    raise DecodeError(f"the mask has {size[0]}x{size[1]} pixels, its image {shown[0]}x{shown[1]}")


def _nearest(length: int, goal: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the source pixels, of `length`, that contain the centres of the outputs [start, stop) of `goal`."""
    return ((2 * np.arange(start, stop, dtype=np.int64) + 1) * length) // (2 * goal)


def _png(labels: NDArray[Any], original: Image.Image) -> bytes:
    if labels.dtype.kind in "iu" and labels.dtype.itemsize > 1:
        if labels.size and not 0 <= labels.min() <= labels.max() <= 65_535:
            raise DecodeError(f"a mask's values must be 0 to 65535, found {labels.min()} to {labels.max()}")
        labels = labels.astype(np.uint16)
    image, options = Image.fromarray(np.ascontiguousarray(labels)), {}
    if original.mode == "P":
        colours = original.getpalette() or []
        image.putpalette(colours + [0] * (768 - len(colours)))  # all, or Pillow may store too few bits for `fill`
        if "transparency" in original.info:
            options["transparency"] = original.info["transparency"]
    stream = BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()
