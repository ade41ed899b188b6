"""Operations as frozen dataclasses, and the checks of their fields.

A check takes "Class: field" and a value. It returns the value's normal form or raises `OptionError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, SupportsIndex, TypeVar, dataclass_transform

from iofast.errors import OptionError, shown

T = TypeVar("T")
Check = Callable[[str, Any], Any]
Span = tuple[float, float]
RGB = tuple[float, float, float]

MOST_FACTOR = 63.0  # of brightness, contrast, saturation and sharpness: the kernel's factors have 6 integer bits
MOST_REACH = 63  # pixels that a blur reaches on each side

_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}  # Image.Resampling, also torchvision's


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def operation(**checks: Check) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass that checks and normalises its fields before its own `__post_init__`."""

    def decorate(cls: type[T]) -> type[T]:
        own = getattr(cls, "__post_init__", None)

        def check_and_finish(self: T) -> None:
            check_fields(self, **checks)
            if own is not None:
                own(self)

        setattr(cls, "__post_init__", check_and_finish)  # noqa: B010  mypy knows no such attribute
        return dataclass(frozen=True, slots=True)(cls)

    return decorate


def check_fields(op: object, **checks: Check) -> None:
    """Replace fields of the frozen dataclass `op` by what their checks return."""
    for name, check in checks.items():
        object.__setattr__(op, name, check(f"{type(op).__name__}: {name}", getattr(op, name)))


def optional(check: Check, default: object = None) -> Check:
    """`check`, with `default` for None."""
    return lambda name, value: default if value is None else check(name, value)


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


def whole(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`, or from `low` on."""

    return lambda name, value: check_whole(name, value, low, high)


def check_whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int; raises `OptionError` unless it is a whole number from `low` to `high`. Refuses bools."""
    try:  # arrays and tensors have an `__index__`, which fails for most of them
        number = None if isinstance(value, bool) or not isinstance(value, SupportsIndex) else index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or number < low or (high is not None and number > high):
        limits = f"from {low} on" if high is None else f"from {low} to {high}"
        raise OptionError(f"{name} must be a whole number {limits}, found {shown(value)}")
    return number


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
            raise OptionError(f"{name} must be {' or '.join(map(str, counts))} finite numbers, found {values!r}")
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
