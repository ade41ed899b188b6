"""Strips of raw pixels: the sixteen parts of a payload `rgb` or `yuv` that the index has a checksum each of.

A crop reads the strips that hold its rows, and every byte that is used is checked without reading all the others
(docs/format.md 3.1 is the specification). Sizes are of the image as it is stored. Strips are counted in pairs of rows,
a row of chroma each, so that all planes of I420 are cut alike.
"""

from __future__ import annotations

STRIPS = 16  # 256 rows in 16 strips: a training crop reads 6 % more than its rows, and an index row has 64 bytes more


def raw_length(field: str, width: int, height: int) -> int:
    """The bytes of a payload `rgb` or `yuv` of `width` x `height` pixels."""
    if field == "rgb":
        return 3 * width * height
    return width * height + 2 * ((width + 1) // 2) * ((height + 1) // 2)


def strip_bounds(height: int) -> list[int]:
    """The pairs of rows that the strips of an image of `height` rows begin with, and the last one's end: 17 numbers."""
    pairs = (height + 1) // 2
    return [pairs * strip // STRIPS for strip in range(STRIPS + 1)]


def spans(field: str, width: int, height: int, first: int, end: int) -> list[tuple[int, int]]:
    """The bytes of pairs of rows [first, end), as ranges of the payload: one of `rgb`; Y, Cb and Cr of `yuv`."""
    start, stop = 2 * first, min(2 * end, height)
    if field == "rgb":
        return [(3 * width * start, 3 * width * stop)]
    row = (width + 1) // 2
    blue = width * height
    red = blue + row * ((height + 1) // 2)
    return [
        (width * start, width * stop),
        (blue + row * first, blue + row * end),
        (red + row * first, red + row * end),
    ]
