"""Colour profiles of displays and cameras (a curve per channel and a matrix) as tables that convert pixels to sRGB.

The C code applies them in a tenth of LittleCMS's time. LittleCMS stays the judge: `of` compares its tables with a
transform of LittleCMS and returns None for every profile whose colours they do not give.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Table = NDArray[np.float64]
Products = NDArray[np.int32]

ONE = 1 << 14  # light of 1.0; LittleCMS's precision too, so that results are the same
SIZE = 3 * 256 * 4 * 4 + ONE + 64  # bytes of the tables; the C code's iof_shaper
_HEADER, _TAG, _MOST_TAGS = 128, 12, 100
_PARAMETERS = (1, 3, 4, 5, 7)  # by type of a parametric curve (ICC.1:2010, 10.15)
_LOOKUPS = (b"A2B0", b"A2B1", b"A2B2", b"D2B0", b"D2B1", b"D2B2")  # tables that come before curves and matrix
_TOLERANCE = 1  # levels
_STEP = 15  # levels between compared colours


def of(profile: bytes, to_rgb: Any) -> bytes | None:
    """Return the tables for RGB pixels of a profile, or None if they do not give the results of `to_rgb`.

    `to_rgb` is Pillow's transform of the profile to sRGB. The tables are int32 [3][256][4], what each level of a
    channel adds to the linear red, green and blue (the fourth is zero), and uint8 [ONE + 64], the level of a sum.
    """
    try:
        curves, matrix = _parsed(profile)
    except (struct.error, ValueError, IndexError):
        return None
    with np.errstate(all="ignore"):  # numbers that are not finite are refused
        light = np.floor(curves * ONE + 0.5)
        factors = np.floor(matrix @ _from_xyz() * ONE + 0.5)  # row: a channel's red, green, blue
        products = light[:, :, None] * factors[:, None, :]
    if not np.isfinite(products).all() or np.abs(products).max((1, 2)).sum() >= (1 << 31) - ONE:
        return None
    table = np.zeros((3, 256, 4), np.int32)
    table[:, :, :3] = products
    table[0, :, :3] += ONE // 2  # rounds the sum
    levels = _levels()
    return table.tobytes() + levels.tobytes() if _agrees(table, levels, to_rgb) else None


def convert(table: Products, levels: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Apply the tables to pixels (..., 3); the C code's definition."""
    sums = sum((table[c][pixels[..., c]][..., :3] for c in range(3)), np.zeros((), np.int32)) >> 14
    return np.asarray(levels[sums.clip(0, ONE)])


def _agrees(table: Products, levels: NDArray[np.uint8], to_rgb: Any) -> bool:
    axis = np.arange(0, 256, _STEP, dtype=np.uint8)
    colours = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(len(axis), -1, 3)
    wanted = np.asarray(to_rgb.apply(Image.fromarray(colours)))
    return bool(np.abs(convert(table, levels, colours).astype(int) - wanted).max() <= _TOLERANCE)


@lru_cache(1)
def _from_xyz() -> Table:
    """LittleCMS's matrix from XYZ (D50) to linear sRGB, to be multiplied from the right."""
    from PIL import ImageCms

    srgb: Any = ImageCms.createProfile("sRGB")
    return np.linalg.inv(np.array([srgb.red_colorant[0], srgb.green_colorant[0], srgb.blue_colorant[0]]))


@lru_cache(1)
def _levels() -> NDArray[np.uint8]:
    """The level 0-255 of light 0 to ONE; then zeros, because vector loads read beyond the end."""
    light = np.arange(ONE + 1) / ONE
    value = np.where(light < 0.04045 / 12.92, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.concatenate([np.floor(value * 255 + 0.5), np.zeros(63)]).astype(np.uint8)


def _parsed(profile: bytes) -> tuple[Table, Table]:
    """Return the curves [3][256] and the primaries [3][XYZ] of a profile. Raises `ValueError`, `struct.error`."""
    if profile[16:24] != b"RGB XYZ " or profile[36:40] != b"acsp":
        raise ValueError("not a profile of RGB that refers to XYZ")
    (count,) = struct.unpack_from(">I", profile, _HEADER)
    if count > _MOST_TAGS:
        raise ValueError(f"{count} tags")
    tags = {}
    for number in range(count):
        name, start, size = struct.unpack_from(">4sII", profile, _HEADER + 4 + _TAG * number)
        tags[name] = profile[start : start + size]
    if any(name in tags for name in _LOOKUPS):
        raise ValueError("a profile with lookup tables")
    curves = [_curve(tags.get(name, b"")) for name in (b"rTRC", b"gTRC", b"bTRC")]
    return np.stack(curves), np.array([_xyz(tags.get(name, b"")) for name in (b"rXYZ", b"gXYZ", b"bXYZ")])


def _xyz(tag: bytes) -> list[float]:
    if tag[:4] != b"XYZ ":
        raise ValueError("not a colour")
    return [value / 65536 for value in struct.unpack_from(">3i", tag, 8)]


def _curve(tag: bytes) -> Table:
    """The light of the levels 0-255."""
    level = np.arange(256) / 255
    if tag[:4] == b"para":
        (kind,) = struct.unpack_from(">H", tag, 8)
        numbers = struct.unpack_from(f">{_PARAMETERS[kind]}i", tag, 12)
        return _parametric(kind, [value / 65536 for value in numbers], level)
    if tag[:4] != b"curv":
        raise ValueError("not a curve")
    (count,) = struct.unpack_from(">I", tag, 8)
    if count == 0:
        return level
    if count == 1:
        return _parametric(0, [struct.unpack_from(">H", tag, 12)[0] / 256], level)
    entries = np.frombuffer(tag, ">u2", count, 12)
    return np.asarray(np.floor(np.interp(level * (count - 1), np.arange(count), entries) + 0.5) / 65535)


def _parametric(kind: int, numbers: list[float], level: Table) -> Table:
    """A parametric curve of ICC.1:2010, table 65."""
    g, a, b, c, d, e, f = [*numbers, *[0.0] * 7][:7]
    if kind == 0:
        a, b = 1.0, 0.0
    elif kind < 3:
        d, e, f, c = (-b / a if a else 0.0), (c if kind == 2 else 0.0), (c if kind == 2 else 0.0), 0.0
    with np.errstate(all="ignore"):
        return np.asarray(np.where(level >= d, np.maximum(a * level + b, 0) ** g + e, c * level + f))
