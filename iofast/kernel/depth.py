"""Gray samples that are not bytes from black to white: 12 to 32 bits, signed, floating point. As 8 bits each."""

from __future__ import annotations

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
_STEP = 1 << 18  # pixels that are converted at once


def to_bytes(image: Image.Image) -> Image.Image:
    """A decoded image as one of bytes: itself unless its samples are others.

    Unsigned samples of up to 16 bits keep their upper 8. Of all others a TIFF must declare the least and the greatest
    value (SMinSampleValue, SMaxSampleValue), which become black and white. Raises `StatusError` where it does not.
    """
    tags: Mapping[int, Any] = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    kind = int(_first(tags.get(_FORMAT), _UNSIGNED))
    if image.mode != "F" and not image.mode.startswith("I") and (image.mode != "L" or kind != _SIGNED):
        return image
    bits = int(_first(tags.get(_BITS), 16))
    samples = np.asarray(image)
    if kind == _UNSIGNED and bits <= 16:
        levels = _by_rows(samples, lambda part: part >> (bits - 8))
    else:
        kinds = {_UNSIGNED: np.uint32, _SIGNED: np.int8 if image.mode == "L" else np.int32}
        low, high = _declared(tags, kind, bits)
        levels = _by_rows(samples.view(kinds.get(kind, samples.dtype)), lambda part: _spread(part, low, high))
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        np.subtract(255, levels, out=levels)
    return Image.fromarray(levels)


def _declared(tags: Mapping[int, Any], kind: int, bits: int) -> tuple[float, float]:
    """The values that are black and white."""
    low, high = (_first(tags.get(tag), math.nan) for tag in (_LEAST, _GREATEST))
    if math.isfinite(low) and math.isfinite(high) and low < high:
        return low, high
    name = {_UNSIGNED: "unsigned", _SIGNED: "signed", _FLOAT: "floating-point"}.get(kind, "")
    raise StatusError(
        Status.UNSUPPORTED,
        f"{name} samples of {bits} bits without SMinSampleValue and SMaxSampleValue, which would be black and white",
    )


def _first(value: Any, default: float) -> float:
    """The value of a tag, that of the first sample where each has its own; `default` where there is no number."""
    try:
        return float(value[0] if isinstance(value, tuple) else value)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return default


def _by_rows(samples: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[np.uint8]:
    """Samples converted some rows at a time: numbers of 64 bits for all would take eight times the memory."""
    levels = np.empty(samples.shape, np.uint8)
    rows = max(1, _STEP // max(1, samples.shape[1]))
    for start in range(0, len(samples), rows):
        levels[start : start + rows] = convert(samples[start : start + rows])
    return levels


def _spread(samples: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Samples of which `low` is black and `high` is white; what is no number is black."""
    light = (samples.astype(np.float64) - low) * (255 / (high - low))
    return np.rint(np.nan_to_num(light, nan=0, posinf=255, neginf=0)).clip(0, 255)
