"""Frozen data classes as JSON and back, by their annotations: observations of a run can be judged again later."""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def plain(value: Any) -> Any:
    """A value for JSON: data classes become objects, tuples lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key.value if isinstance(key, Enum) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def read(kind: type[Kind], value: Any) -> Kind:
    """The inverse: an object of the data class `kind`. Raises KeyError or ValueError for a value that does not fit."""
    hints = _hints(kind)
    return kind(**{name: _typed(hints[name], each) for name, each in value.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _typed(hint: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is None or hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _typed(next(each for each in inner if each is not type(None)), value)
    if origin is tuple:
        return tuple(_typed(inner[0], each) for each in value)
    if origin is dict:
        return {_typed(inner[0], key): _typed(inner[1], each) for key, each in value.items()}
    if is_dataclass(hint):
        return read(typing.cast(type, hint), value)
    return hint(value)
