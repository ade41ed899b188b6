"""Listings and indexes as members and arrays of a columns file (`containers.columns`)."""

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iofast.containers.columns import Arrays
from iofast.remote.urls import RemotePath, is_url
from iofast.source.arrays import Strings
from iofast.source.listing import Column, ContainerRows, Listing, Versions, Watched

_KINDS = {kind.__name__: kind for kind in (Strings, Column, ContainerRows, Listing, Versions, Watched)}
_ARRAY, _BYTES, _MEMBERS, _KIND = "array", "bytes", "members", "is"  # what an object in JSON stands for


def taken_apart(value: object) -> tuple[dict[str, Any], Arrays]:
    """A dataclass of numbers, text, arrays, bytes, sequences, mappings and such dataclasses, for `columns.store`.

    Paths are left out, because a listing may be read at another place.
    """
    arrays: Arrays = {}

    def plain(each: Any, name: str) -> Any:
        if isinstance(each, np.ndarray):
            arrays[name] = each
            return {_ARRAY: name, "shape": list(each.shape)}
        if isinstance(each, bytes | memoryview):
            arrays[name] = np.frombuffer(each, np.uint8)
            return {_BYTES: name}
        if isinstance(each, Mapping):
            return {_MEMBERS: {key: plain(own, f"{name}.{key}") for key, own in each.items()}}
        if isinstance(each, list | tuple):
            return [plain(own, f"{name}.{number}") for number, own in enumerate(each)]
        if is_dataclass(each):
            own = {field.name: plain(getattr(each, field.name), f"{name}.{field.name}") for field in fields(each)}
            return {_KIND: type(each).__name__, **own}
        return None if isinstance(each, Path) else each

    members: dict[str, Any] = plain(value, "")
    return members, arrays


def value_of(members: Mapping[str, Any], arrays: Arrays, *kinds: type) -> Any:
    """The dataclass that `taken_apart` took apart; `kinds` are its classes beside those of a listing.

    Sequences become tuples. Raises `LookupError` or `TypeError` for members of another version; no value is checked.
    """
    known = _KINDS | {kind.__name__: kind for kind in kinds}

    def built(each: Any) -> Any:
        if isinstance(each, list):
            return tuple(map(built, each))
        if not isinstance(each, Mapping):
            return each
        if _ARRAY in each:
            return arrays[each[_ARRAY]].reshape(each["shape"])
        if _BYTES in each:
            return arrays[each[_BYTES]].data
        if _MEMBERS in each:
            return {key: built(own) for key, own in each[_MEMBERS].items()}
        return known[each[_KIND]](**{name: built(own) for name, own in each.items() if name != _KIND})

    return built(members)


def root_of(source: str | os.PathLike[str], kind: str) -> Path | str:
    """The root of the listing of `source`, of a kind of `Listing.kind`."""
    name = os.fspath(source)
    place = str(RemotePath.of(name)) if is_url(name) else os.path.abspath(name)
    if kind == "manifest":
        place = os.path.dirname(place)
    return place if is_url(name) else Path(place)
