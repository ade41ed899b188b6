"""Conversion of gray samples of 12 to 32 bits, signed or floating-point, to 8 or 16 bits from black to white."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from iofast.kernel.contract import Status, StatusError

_BITS, _PHOTOMETRIC, _FORMAT, _LEAST, _GREATEST = 258, 262, 339, 340, 341  # TIFF tags
_UNSIGNED, _SIGNED, _FLOAT = 1, 2, 3  # SampleFormat
_WHITE_IS_ZERO = 0
_STEP = 1 << 18  # pixels converted at once


def to_bytes(image: Image.Image) -> Image.Image:
    """Convert the samples of a decoded image to bytes, or return it if they already are.

    Unsigned samples of up to 16 bits keep their upper 8 bits. For all others a TIFF must declare the values of black
    and white (SMinSampleValue, SMaxSampleValue). Raises `StatusError` if it does not.
    """
    levels = _levels(image, 8)
    return image if levels is None else Image.fromarray(levels)


def to_wide(image: Image.Image) -> NDArray[np.uint16]:
    """Return the gray values of a decoded image, uint16 (height, width). Raises like `to_bytes`."""
    levels = _levels(image, 16)
    return np.asarray(image.convert("L")).astype(np.uint16) * np.uint16(257) if levels is None else levels


def _levels(image: Image.Image, wanted: int) -> NDArray[Any] | None:
    """Convert samples to `wanted` unsigned bits, 8 or 16; None if they already are bytes from black to white."""
    tags: Mapping[int, Any] = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    kind = int(_first(tags.get(_FORMAT), _UNSIGNED))
    if image.mode != "F" and not image.mode.startswith("I") and (image.mode != "L" or kind != _SIGNED):
        return None
    bits = int(_first(tags.get(_BITS), 16))
    samples, white = np.asarray(image), (1 << wanted) - 1
    levels = np.empty(samples.shape, np.uint8 if wanted == 8 else np.uint16)
    if kind == _UNSIGNED and bits <= 16:
        _by_rows(samples, levels, lambda part: part >> (bits - wanted) if bits >= wanted else part << (wanted - bits))
    else:
        kinds = {_UNSIGNED: np.uint32, _SIGNED: np.int8 if image.mode == "L" else np.int32}
        low, high = _declared(tags, kind, bits)
        _by_rows(samples.view(kinds.get(kind, samples.dtype)), levels, lambda part: _spread(part, low, high, white))
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        np.subtract(white, levels, out=levels)
    return levels


def _declared(tags: Mapping[int, Any], kind: int, bits: int) -> tuple[float, float]:
    """Return the values of black and white. Raises `StatusError` if they are not declared."""
    low, high = (_first(tags.get(tag), math.nan) for tag in (_LEAST, _GREATEST))
    if math.isfinite(low) and math.isfinite(high) and low < high:
        return low, high
    name = {_UNSIGNED: "unsigned", _SIGNED: "signed", _FLOAT: "floating-point"}.get(kind, "")
    raise StatusError(
        Status.UNSUPPORTED,
        f"{name} samples of {bits} bits without SMinSampleValue and SMaxSampleValue, which would be black and white",
    )


def _first(value: Any, default: float) -> float:
    """Return the number in a tag, that of the first sample if each has its own, or `default`."""
    try:
        return float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return default


def _by_rows(samples: NDArray[Any], levels: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Convert a few rows at a time: 64-bit numbers for all would take eight times the memory."""
    rows = max(1, _STEP // max(1, samples.shape[1]))
    for start in range(0, len(samples), rows):
        levels[start : start + rows] = convert(samples[start : start + rows])


def _spread(samples: NDArray[Any], low: float, high: float, white: int) -> NDArray[np.float64]:
    """Map `low` to black and `high` to white; NaN becomes black."""
    light = (samples.astype(np.float64) - low) * (white / (high - low))
    return np.rint(np.nan_to_num(light, nan=0, posinf=white, neginf=0)).clip(0, white)
