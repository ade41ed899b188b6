"""What several operations ask of their arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from iofast.errors import OptionError

Span = tuple[float, float]

MOST_FACTOR = 63.0  # of brightness, contrast, saturation and sharpness: factors have 6 bits before the point
MOST_REACH = 63  # pixels that a blur reaches on each side


_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Image.Resampling, also torchvision's


def interpolation_name(given: object) -> object:
    """The name of an interpolation, also of torchvision's InterpolationMode and Pillow's number; else what it was."""
    name = getattr(given, "value", given)
    if isinstance(name, int) and not isinstance(name, bool):
        name = _PILLOW.get(name)
    return "nearest" if name == "nearest-exact" else name  # the centre of the pixel, as Pillow's nearest


class _Random(Protocol):
    @property
    def p(self) -> float: ...


def span(name: str, values: Sequence[float]) -> Span:
    """(low, high) with 0 <= low <= high and 0 < high, finite, or `OptionError`."""
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be (low, high), found {values!r}") from None
    if not 0 <= low <= high < math.inf or high == 0:
        raise OptionError(f"{name} must be 0 <= low <= high, found {values!r}")
    return low, high


def probability(op: _Random) -> None:
    """Raise `OptionError` unless `op.p` is a probability."""
    if not isinstance(op.p, int | float) or not 0 <= op.p <= 1:
        raise OptionError(f"{type(op).__name__}: p must be 0 to 1, found {op.p!r}")


def per_channel(name: str, values: Sequence[float]) -> tuple[float, float, float]:
    """Three finite numbers, or one for all channels, or `OptionError`."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be 3 numbers (or 1 for all channels), found {values!r}") from None
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise OptionError(f"{name} must be 3 finite numbers (or 1 for all channels), found {values!r}")
    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue
