"""Frozen dataclasses whose fields are checked: operations, orders.

A check takes "Class: field" and a value. It returns the value's normal form or raises `OptionError`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any, SupportsIndex, TypeVar, cast, dataclass_transform

from iofast.errors import OptionError, shown
from iofast.option import names_checked

T = TypeVar("T")
Check = Callable[[str, Any], Any]

MAX_SEED = (1 << 64) - 1
REPLACEMENTS = 255  # the most of one sample that cannot be decoded


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(**checks: Check) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass that checks and normalises its fields before its own `__post_init__`.

    A keyword that it lacks is an `OptionError` with the nearest name.
    """

    def decorate(cls: type[T]) -> type[T]:
        own = getattr(cls, "__post_init__", None)

        def check_and_finish(self: T) -> None:
            check_fields(self, **checks)
            if own is not None:
                own(self)

        setattr(cls, "__post_init__", check_and_finish)  # noqa: B010  mypy knows no such attribute
        made: Any = dataclass(frozen=True)(cls)
        made.__init__ = names_checked(made.__init__)
        return cast("type[T]", made)

    return decorate


def check_fields(op: object, **checks: Check) -> None:
    """Replace fields of the frozen dataclass `op` by what their checks return."""
    for name, check in checks.items():
        object.__setattr__(op, name, check(f"{type(op).__name__}: {name}", getattr(op, name)))


def optional(check: Check, default: object = None) -> Check:
    """`check`, with `default` for None."""
    return lambda name, value: default if value is None else check(name, value)


def integer(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`, or from `low` on."""

    return lambda name, value: check_integer(name, value, low, high)


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int; raises `OptionError` unless it is a whole number from `low` to `high`. Refuses bools."""
    try:  # arrays and tensors have an `__index__`, which fails for most of them
        number = None if isinstance(value, bool) or not isinstance(value, SupportsIndex) else index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or number < low or (high is not None and number > high):
        limits = f"from {low} on" if high is None else f"from {low} to {high}"
        raise OptionError(f"{name} must be a whole number {limits}, found {shown(value)}")
    return number
