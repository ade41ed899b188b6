"""Colour profiles (ICC, version 2) that exchange or widen colours, so that ignoring one shows."""

import struct
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tools.odd_images.scene import Odd, Pixels, gray, jpeg, save, scene

Matrix = NDArray[np.float64]

WHITE = np.array((0.9642, 1.0, 0.8249))  # D50, to which profiles refer
SRGB = np.array(((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)))  # a primary a row
WIDE = np.array(((0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841)))  # Display P3
CURVE = 1024  # entries


def linear(levels: NDArray[np.generic]) -> Matrix:
    """sRGB's levels 0-255 as light 0-1."""
    value = levels / 255.0
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def levels(light: Matrix) -> Pixels:
    """The reverse."""
    light = light.clip(0, 1)
    value = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return (value * 255).round().astype(np.uint8)


def _fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def _xyz(value: Matrix) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(map(_fixed, value))


def _curve(table: Matrix) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">I", len(table)) + (table * 65535).round().astype(">u2").tobytes()


def profile(space: bytes, pcs: bytes, tags: dict[bytes, bytes], kind: bytes = b"mntr") -> bytes:
    """A profile with these tags, and the three that every one must have."""
    name = b"odd"
    text = b"desc\0\0\0\0" + struct.pack(">I", len(name) + 1) + name + b"\0" + bytes(78)
    tags = {b"desc": text, b"cprt": b"text\0\0\0\0none\0", b"wtpt": _xyz(WHITE), **tags}
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for tag, data in tags.items():
        table += tag + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    head = struct.pack(">I4s4s4s4s4s", start + len(body), b"\0\0\0\0", b"\2\x10\0\0", kind, space, pcs)
    head += struct.pack(">6H", 2020, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + b"".join(map(_fixed, WHITE)) + bytes(48)
    return head + table + body


def rgb_profile(primaries: Matrix) -> bytes:
    """A display whose primaries are these, with sRGB's curve."""
    curve = _curve(linear(np.linspace(0, 255, CURVE)))
    names = ((b"rXYZ", b"rTRC"), (b"gXYZ", b"gTRC"), (b"bXYZ", b"bTRC"))
    tags = {}
    for (colour, tone), primary in zip(names, primaries, strict=True):
        tags |= {colour: _xyz(primary), tone: curve}
    return profile(b"RGB ", b"XYZ ", tags)


def gray_profile() -> bytes:
    """Levels of gray that are linear in light."""
    return profile(b"GRAY", b"XYZ ", {b"kTRC": _curve(np.linspace(0, 1, CURVE))})


def cmyk_profile() -> bytes:
    """A printer that has cyan where others have magenta, and the other way round; corners only."""
    light = np.array(
        [[(1 - m) * (1 - k), (1 - c) * (1 - k), (1 - y) * (1 - k)] for c, m, y, k in product((0, 1), repeat=4)]
    )
    ratio = light @ SRGB / WHITE
    root = np.where(ratio > 0.008856, np.cbrt(ratio), ratio * 7.787 + 16 / 116)
    lab = np.stack([116 * root[:, 1] - 16, 500 * (root[:, 0] - root[:, 1]), 200 * (root[:, 1] - root[:, 2])], 1)
    grid = (lab * (2.55, 1, 1) + (0, 128, 128)).round().clip(0, 255).astype(np.uint8)
    identity = b"".join(map(_fixed, np.eye(3).ravel()))
    ramp = bytes(range(256))
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + identity + 4 * ramp + grid.tobytes() + 3 * ramp
    return profile(b"CMYK", b"Lab ", {b"A2B0": table}, b"prtr")


def profiled() -> list[Odd]:
    """Images whose numbers mean something else than sRGB."""
    from PIL import ImageCms

    shown = scene()
    mixed = rgb_profile(SRGB[[2, 0, 1]])  # channels hold blue, red, green
    stored = np.ascontiguousarray(shown[..., [2, 0, 1]])
    wide = levels(linear(shown) @ SRGB @ np.linalg.inv(WIDE))
    usual = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    flat = (linear(gray(shown)) * 255).round().astype(np.uint8)
    pure = scene(corners=((255, 0, 0), (0, 255, 0), (255, 255, 255), (255, 255, 0)))
    ink = Image.fromarray(255 - np.dstack([pure[..., [1, 0, 2]], np.full(pure.shape[:2], 255, np.uint8)]), "CMYK")
    printed = save(ink, "JPEG", quality=95, icc_profile=cmyk_profile())
    noise, misplaced = jpeg(shown, icc_profile=bytes(range(200))), jpeg(shown, icc_profile=gray_profile())
    return [
        Odd(b"icc_mixed.jpg", "JPEG, profile with exchanged primaries", jpeg(stored, icc_profile=mixed), shown),
        Odd(b"icc_mixed.png", "PNG, the same", save(stored, "PNG", icc_profile=mixed), shown, 2),
        Odd(b"icc_mixed.webp", "WebP, the same", save(stored, "WEBP", lossless=True, icc_profile=mixed), shown, 2),
        Odd(b"icc_mixed.tif", "TIFF, the same", save(stored, "TIFF", icc_profile=mixed), shown, 2),
        Odd(b"icc_wide.jpg", "JPEG, Display P3 as phones write it", jpeg(wide, icc_profile=rgb_profile(WIDE)), shown),
        Odd(b"icc_srgb.jpg", "JPEG, sRGB profile: nothing to convert", jpeg(shown, icc_profile=usual), shown),
        Odd(b"icc_gray.jpg", "gray JPEG, linear profile", jpeg(flat, "L", icc_profile=gray_profile()), gray(shown), 5),
        Odd(b"icc_cmyk.jpg", "CMYK JPEG, profile of a printer", printed, pure, 8),
        Odd(b"icc_broken.jpg", "JPEG, profile of random bytes: ignored", noise, shown),
        Odd(b"icc_cut.jpg", "JPEG, profile that is cut off: ignored", jpeg(shown, icc_profile=mixed[:300]), shown),
        Odd(b"icc_of_gray.jpg", "colour JPEG, profile for gray: ignored", misplaced, shown),
    ]
