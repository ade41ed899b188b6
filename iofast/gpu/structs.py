"""The structures of kernel/src/device.h, as NumPy types."""

from typing import Any

import numpy as np

from iofast.kernel import _native
from iofast.kernel.contract import TYPES

DAMAGED = 1  # of a status
TAPS = 16
OVERREAD = 2048
TYPE_NUMBERS = {name: number for number, name in enumerate(TYPES)}


def _struct(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    return np.dtype(list(fields), align=True)


def _ints(*names: str) -> list[tuple[str, type[np.int32]]]:
    return [(name, np.int32) for name in names]


def _pointers(*names: str) -> list[tuple[str, type[np.uint64]]]:
    return [(name, np.uint64) for name in names]


FILE = _struct(
    ("place", np.uint64),
    ("scan", np.uint32),
    ("segments", np.uint32),
    *_ints("width", "height", "components", "h", "v", "across", "down", "restart"),
    ("dc", np.int32, 3),
    ("ac", np.int32, 3),
)
IMAGE = _struct(
    ("file", FILE),
    ("box", np.int32, 8),
    *_ints("flip", "exif", "aliased", "refused", "left", "top", "right", "bottom"),
    ("mcus", np.int32, 4),
    *_ints("first", "in_row", "step", "segments"),
    ("fours", np.int32, 3),
    ("blocks", np.int32),
    *_pointers("coefs", "samples", "pixels"),
)
BLUR = _struct(*_ints("wide", "high"), ("across", np.uint16, 128), ("down", np.uint16, 128))
WORK = _struct(
    *_pointers("codes", "numbers"),
    *_ints("steps", "erasings"),
    *_pointers("erased", "fills", "amounts", "noise"),
    ("scale", np.float32, (2, 3)),
)
MIX = _struct(*_pointers("partners", "shares", "patches"))
BATCH = _struct(
    *_pointers("images", "jpegs", "codes", "coefs", "samples", "pixels"),
    *_pointers("taps", "starts", "counts", "weights", "status", "moved"),
    *_pointers("canvas", "other", "rows", "blurs", "blurred", "given", "out"),
    ("given_strides", np.int64, 4),
    ("strides", np.int64, 4),
    ("work", WORK),
    ("mix", MIX),
    *_ints("count", "room", "width", "height", "type"),
)
TABLES = _native.device_sizes()[3]
CODES = 8 + 4 * 64  # where a table set's codes begin
assert (FILE.itemsize, IMAGE.itemsize, BATCH.itemsize) == _native.device_sizes()[:3]
assert BLUR.itemsize == _native.device_sizes()[4]
