"""JSON text that carries the CRC32C of itself: canonical, equal contents are equal bytes (docs/format.md 2.1)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import google_crc32c

from iofast.errors import ContainerError

MAX_BYTES = 64 << 20

_MARK = b'"crc32c":"'
_BLANK = "00000000"


def seal(members: Mapping[str, object]) -> bytes:
    """Canonical JSON of `members` and of `crc32c`. Raises `ContainerError` for values that JSON does not have."""
    blank = {**members, "crc32c": _BLANK}
    try:
        text = json.dumps(blank, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ContainerError(f"the manifest cannot be written as JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise ContainerError(f"the manifest has {len(text)} bytes, more than {MAX_BYTES}")
    place = text.index(_MARK) + len(_MARK)
    return text[:place] + b"%08x" % google_crc32c.value(text) + text[place + 8 :]


def unseal(data: bytes) -> dict[str, Any]:
    """The object in sealed text; `crc32c` is not checked yet, and spaces may follow. Raises `ContainerError`."""
    if len(data) > MAX_BYTES + 64:
        raise ContainerError(f"the manifest has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        text = data.decode()
        parsed = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_float=_finite)
    except ContainerError:
        raise
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"the manifest is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ContainerError("the manifest is not a JSON object")
    return parsed


def check_seal(data: bytes) -> None:
    """Raise `ContainerError` unless the text has the CRC32C of its own member `crc32c`."""
    text = data.rstrip(b" ")
    place = text.find(_MARK) + len(_MARK)
    found = text[place : place + 8]
    expected = b"%08x" % google_crc32c.value(text[:place] + _BLANK.encode() + text[place + 8 :])
    if found != expected:
        raise ContainerError(f"the manifest is damaged: expected CRC32C {expected.decode()}, found {found!r}")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ContainerError("a name occurs twice in one object of the manifest")
    return members


def _no_constant(text: str) -> NoReturn:
    raise ContainerError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)
