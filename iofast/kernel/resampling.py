"""Resampling by Pillow: of images that the C code does not resample."""

from __future__ import annotations

from PIL import Image

_NAMES = ("nearest", "box", "bilinear", "bicubic", "lanczos", "hamming")
FILTERS = {name: Image.Resampling[name.upper()] for name in _NAMES}


def cut(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Crop an image to a box inside it, without the size check of Pillow's `crop`."""
    if box == (0, 0, *image.size):
        return image
    piece = Image.new(image.mode, (box[2] - box[0], box[3] - box[1]))
    piece.paste(image, (-box[0], -box[1]))
    return piece


def resample(image: Image.Image, box: tuple[int, ...], size: tuple[int, int], name: str) -> Image.Image:
    """Return the window of `size` of the virtual image that `box`, a row of `decode_batch`'s boxes, describes.

    The caller limits the virtual image, which is made as a whole.
    """
    x0, y0, x1, y1, *virtual, x, y = box
    region = cut(image, (x0, y0, x1, y1))
    if region.size != tuple(virtual):  # Pillow would copy it
        region = region.resize((virtual[0], virtual[1]), FILTERS[name])
    return cut(region, (x, y, x + size[0], y + size[1]))
