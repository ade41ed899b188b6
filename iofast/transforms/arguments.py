"""Checks of the fields of transforms. Numbers are for pixels in [0, 1] (8-bit level / 255), as after `ToTensor`."""

import math
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

from iofast.arguments import Check
from iofast.errors import OptionError
from iofast.work import Edge

Span = tuple[float, float]
RGB = tuple[float, float, float]
Pair = tuple[int, int]  # height, width
Sides = tuple[int, int, int, int]  # left, top, right, bottom

MOST_FACTOR = 63.0  # of brightness, contrast, saturation and sharpness: the kernel's factors have 6 integer bits
MAX_SIZE = 32_767  # pixels a side of a transform's result: times 65,500 it still fits the int32 of a box

RANDOM = "random"  # bilinear or bicubic with equal chance for each image: timm's default
EDGES = {edge.name.lower(): edge for edge in Edge}  # torchvision's padding modes
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Image.Resampling, also torchvision's


def between(low: float, high: float) -> Check:
    """A number from `low` to `high`."""

    def check(name: str, value: object) -> float:
        if not isinstance(value, int | float) or not low <= value <= high:
            raise OptionError(f"{name} must be {low:g} to {high:g}, found {value!r}")
        return float(value)

    return check


probability = between(0, 1)


def above_zero(name: str, value: object) -> float:
    """A finite number above 0."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise OptionError(f"{name} must be above 0, found {value!r}")
    return float(value)


def span(name: str, values: Any) -> Span:
    """Finite (low, high) with 0 <= low <= high and 0 < high."""
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be (low, high), found {values!r}") from None
    if not 0 <= low <= high < math.inf or high == 0:
        raise OptionError(f"{name} must be 0 <= low <= high, found {values!r}")
    return low, high


def positive_span(name: str, values: Any) -> Span:
    """A `span` with low > 0."""
    low, high = span(name, values)
    if low == 0:
        raise OptionError(f"{name} must be above 0, found {values!r}")
    return low, high


def numbers(*counts: int) -> Check:
    """As many finite numbers as one of `counts`."""

    def check(name: str, values: Any) -> tuple[float, ...]:
        try:
            found = tuple(float(value) for value in values)
        except (TypeError, ValueError):
            found = ()
        if len(found) not in counts or not all(map(math.isfinite, found)):
            raise OptionError(
                f"{name} must be a list of {' or '.join(map(str, counts))} finite numbers, found {values!r}"
            )
        return found

    return check


def symmetric(name: str, value: Any) -> Span:
    """(low, high); one number d stands for -d to d."""
    low, high = numbers(2)(name, (-value, value) if isinstance(value, int | float) else value)
    if low > high:
        raise OptionError(f"{name} must be a number from 0 on, or low <= high, found {value!r}")
    return low, high


def channels(name: str, values: Sequence[float]) -> RGB:
    """Three finite numbers, from three or from one for all channels."""
    found = numbers(1, 3)(name, values)
    red, green, blue = found * (3 // len(found))
    return red, green, blue


def colour(name: str, value: float | Sequence[float] | None) -> RGB:
    """Three numbers from 0 to 1, from three or from one for all channels; None is black."""
    levels = channels(name, [0.0 if value is None else value] if isinstance(value, int | float | None) else value)
    if not all(0 <= level <= 1 for level in levels):
        raise OptionError(f"{name} must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), found {value!r}")
    return levels


def interpolation_name(value: object) -> object:
    """The name of an interpolation given as torchvision's InterpolationMode or Pillow's number; else the value."""
    name = getattr(value, "value", value)
    if isinstance(name, int) and not isinstance(name, bool):
        name = _PILLOW.get(name)
    return "nearest" if name == "nearest-exact" else name  # the centre of the pixel, as Pillow's nearest


def warp_filter(name: str, value: object) -> str:
    """ "nearest" or "bilinear": the interpolations of warps."""
    found = interpolation_name(value)
    if found != "nearest" and found != "bilinear":
        raise OptionError(f"{name} must be nearest or bilinear, found {value!r}")
    return str(found)


def pair(name: str, size: Any) -> Pair:
    """(height, width) of a `size` given as one int, as [int] or as (height, width); each 1 to 32,767."""
    try:
        sides = [index(size)] if isinstance(size, SupportsIndex) else [index(side) for side in size]
    except TypeError:
        raise OptionError(f"{name} must be an int or (height, width), found {size!r}") from None
    if len(sides) not in (1, 2) or not all(1 <= side <= MAX_SIZE for side in sides):
        raise OptionError(f"{name} must be 1 or 2 whole numbers from 1 to {MAX_SIZE}, found {size!r}")
    return sides[0], sides[-1]


def padding_mode(name: str, mode: object) -> object:
    """One of torchvision's padding modes."""
    if not isinstance(mode, str) or mode not in EDGES:
        raise OptionError(f"{name} must be {', '.join(EDGES)}, found {mode!r}")
    return mode


def sides(name: str, padding: Any) -> Sides:
    """Left, top, right, bottom of a padding; None is none."""
    if padding is None:
        return 0, 0, 0, 0
    try:
        found = [index(padding)] if isinstance(padding, SupportsIndex) else [index(side) for side in padding]
    except TypeError:
        found = []
    if len(found) not in (1, 2, 4) or not all(0 <= side <= MAX_SIZE for side in found):
        raise OptionError(f"{name} must be 1, 2 or 4 whole numbers from 0 to {MAX_SIZE}, found {padding!r}")
    left, top, right, bottom = found * (4 // len(found))
    return left, top, right, bottom
