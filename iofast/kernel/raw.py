"""Raw pixels in NumPy: the twin of src/raw.c, with the same integers, which are libjpeg's.

`rgb` is rows of R G B. `yuv` is I420: the planes Y, Cb, Cr one after another, chroma halved in both directions (odd
sides are rounded up), BT.601 with the full range, as in a JPEG.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iofast.kernel.contract import Kind
from iofast.record import RAW_FIELDS, raw_length

Pixels = NDArray[np.uint8]
_Plane = NDArray[np.int32]

_NARROW = 2  # chroma samples per row up to which libjpeg repeats them instead of interpolating
_STEP = 1 << 18  # pixels packed at once
_HALF = 1 << 15  # rounds the 16 fractional bits of the colour conversion


def length(kind: int, width: int, height: int) -> int:
    """Return the bytes of a payload of `width` x `height` pixels."""
    return raw_length(RAW_FIELDS[kind - 1], width, height)


def unpack(data: bytes, kind: int, width: int, height: int) -> Pixels:
    """Convert a payload of the right length to RGB, uint8 (height, width, 3)."""
    samples = np.frombuffer(data, np.uint8)
    if kind == Kind.RGB:
        return samples.reshape(height, width, 3)
    chroma = samples[width * height :].reshape(2, (height + 1) // 2, (width + 1) // 2).astype(np.int32)
    luma = samples[: width * height].reshape(height, width).astype(np.int32)
    blue, red = (_upsampled(plane)[:height, :width] - 128 for plane in chroma)
    return _stacked(
        luma + (91_881 * red + _HALF >> 16),
        luma + (-22_554 * blue - 46_802 * red + _HALF >> 16),
        luma + (116_130 * blue + _HALF >> 16),
    )


def _upsampled(plane: _Plane) -> _Plane:
    """Double a plane of chroma in both directions by libjpeg's triangle filter."""
    if plane.shape[1] <= _NARROW:
        return plane.repeat(2, axis=0).repeat(2, axis=1)
    padded = np.pad(plane, 1, mode="edge")
    above, below = padded[:-2], padded[2:]
    rows = np.stack((3 * padded[1:-1] + above, 3 * padded[1:-1] + below), axis=1).reshape(-1, padded.shape[1])
    own = 3 * rows[:, 1:-1]
    return np.stack((own + rows[:, :-2] + 8 >> 4, own + rows[:, 2:] + 7 >> 4), axis=2).reshape(len(rows), -1)


def pack_yuv(pixels: Pixels) -> bytes:
    """Convert RGB pixels (height, width, 3) to a payload `yuv`."""
    rows = max(2, _STEP // pixels.shape[1] & ~1)  # the integers take ten times the memory of the pixels
    parts = [_planes(pixels[start : start + rows]) for start in range(0, len(pixels), rows)]
    return b"".join(plane for planes in zip(*parts, strict=True) for plane in planes)


def _planes(pixels: Pixels) -> tuple[bytes, ...]:
    """Return Y, Cb and Cr of an even number of rows, or of the last ones."""
    red, green, blue = (pixels[:, :, c].astype(np.int32) for c in range(3))
    luma = 19_595 * red + 38_470 * green + 7_471 * blue + _HALF >> 16
    middle = (128 << 16) + _HALF - 1
    chroma = (
        -11_059 * red - 21_709 * green + (blue << 15) + middle >> 16,
        (red << 15) - 27_439 * green - 5_329 * blue + middle >> 16,
    )
    return tuple(plane.astype(np.uint8).tobytes() for plane in (luma, *map(_halved, chroma)))


def _halved(plane: _Plane) -> _Plane:
    """Average 2 x 2 samples; odd edges are repeated, and halves are rounded down and up alternately."""
    height, width = plane.shape
    even = np.pad(plane, ((0, height % 2), (0, width % 2)), mode="edge")
    sums = even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]
    halved: _Plane = sums + 1 + np.arange(sums.shape[1]) % 2 >> 2
    return halved


def _stacked(*channels: _Plane) -> Pixels:
    return np.stack(channels, axis=2).clip(0, 255).astype(np.uint8)
