"""Changes to bytes, numbers and JSON, as a failing disk or an attacker makes them."""

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from iofast.containers.columns import type_of
from iofast.containers.index import Layout

LAYOUTS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}  # of `struct`, by bytes
_POWERS = [1 << bits for bits in (7, 8, 15, 16, 24, 31, 32, 47, 63, 64)]
EDGES = sorted({0, 3, 100, 511, 512, *(power + by for power in _POWERS for by in (-1, 0, 1))})
NESTED = "@nested@"  # stands for JSON that is too deep to be written from a value
WORDS = ("", " ", ".", "..", "/", "a/../b", "../x", "/etc/hostname", "\0", "a\0b", "\ud800", "\n", "a\nb", "\u00e9")
WORDS += ("a" * 5000,)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 0.5, -0.0, 1e308, math.inf, math.nan, 10**30, 10**400, NESTED),
    *EDGES, *WORDS, [], {}, [[]], [None], [1, 2], [1, 2, 3, 4], {"": 0}, {"a": [{}]},
)  # fmt: skip

_MARK = b'"crc32c":"'


def number(chance: random.Random, size: int, *near: int) -> int:
    """A number of `size` bytes: an edge, one near to the numbers `near`, or any."""
    kind = chance.random()
    if near and kind < 0.4:
        found = chance.choice(near) + chance.choice((-512, -8, -2, -1, 0, 1, 2, 8, 512))
    elif kind < 0.8:
        found = chance.choice(EDGES)
    else:
        found = chance.getrandbits(chance.choice((4, 8, 8 * size)))
    return found & (1 << 8 * size) - 1


def put(data: bytearray, layout: str, at: int, value: int) -> None:
    """Set a number; `layout` as in `struct`. A place outside is ignored."""
    size = struct.calcsize(layout)
    if 0 <= at <= len(data) - size:
        struct.pack_into(layout.upper(), data, at, value & (1 << 8 * size) - 1)


def anywhere(chance: random.Random, data: bytes, most: int = 4) -> bytes:
    """Make one to `most` changes at any place: bits, bytes, numbers, cuts, repeats."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, most)):
        if len(changed) < 2:
            break
        at = chance.randrange(len(changed))
        kind = chance.randrange(8)
        if kind <= 1:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x0A, 0x22))
        elif kind <= 4:
            size = chance.choice((2, 4, 8))
            value = number(chance, size, len(changed))
            put(changed, LAYOUTS[size], at - at % chance.choice((1, size)), value)
        elif kind == 5:
            del changed[at : at + chance.randint(1, 40)]
        elif kind == 6:
            changed[at:at] = changed[at : at + chance.randint(1, 40)]
        elif chance.random() < 0.3:
            del changed[at + 1 :]
    return bytes(changed)


def value(chance: random.Random, whole: Any) -> Any:
    """A JSON value with one place of it changed."""
    if not isinstance(whole, dict | list) or not whole or chance.random() < 0.05:
        return chance.choice(ODD)
    if isinstance(whole, list):
        at = chance.randrange(len(whole))
        kind = chance.randrange(6)
        if kind == 0:
            return whole[:at] + whole[at + 1 :]
        if kind == 1:
            return [*whole[:at], whole[at], *whole[at:]]
        if kind == 2:
            return chance.sample(whole, len(whole))
        return [*whole[:at], value(chance, whole[at]), *whole[at + 1 :]]
    name = chance.choice(list(whole))
    kind = chance.randrange(8)
    if kind == 0:
        return {own: each for own, each in whole.items() if own != name}
    if kind == 1:
        return {**whole, str(chance.choice(WORDS)): whole[name]}
    if kind == 2:
        return {**whole, name: whole[chance.choice(list(whole))]}
    return {**whole, name: value(chance, whole[name])}


def text(chance: random.Random, whole: Any, indent: str | None = None) -> bytes:
    """JSON of a value, with what no value can hold: repeated names, endless nesting."""
    written = json.dumps(whole, sort_keys=True, separators=(",", ":"), indent=indent)
    if NESTED in written:
        depth = chance.choice((40, 400, 20_000))
        opened = chance.choice(("[", '{"a":'))
        written = written.replace(f'"{NESTED}"', opened * depth + "1" + ("]" if opened == "[" else "}") * depth)
    if chance.random() < 0.05 and "," in written:
        part = chance.choice(written.split(","))
        written = written.replace(part, f"{part},{part}", 1)
    return written.encode()


def resealed(sealed: bytes) -> bytes:
    """Sealed JSON with a right checksum."""
    place = sealed.find(_MARK) + len(_MARK)
    if place < len(_MARK) or place + 8 > len(sealed):
        return sealed
    blank = sealed[:place] + b"00000000" + sealed[place + 8 :]
    return blank[:place] + b"%08x" % google_crc32c.value(blank.rstrip(b" ")) + blank[place + 8 :]


def columns(chance: random.Random, data: bytes, members: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """An index with other values, and its manifest, of `members`, in which all checksums are right."""
    body, sums, count = bytearray(data), dict(members["index"]), members["count"]
    starts = Layout(count, members["fields"]).starts
    for name in some(chance, sorted(starts), 3):
        dtype = type_of(name)
        near = [len(data), count, *np.frombuffer(data, dtype, count, starts[name]).tolist()[:4]]
        at = starts[name] + dtype.itemsize * chance.randrange(count)
        put(body, LAYOUTS[dtype.itemsize], at, number(chance, dtype.itemsize, *near))
        column = bytes(body[starts[name] : starts[name] + count * dtype.itemsize])
        sums[name] = f"{google_crc32c.value(column):08x}"
    text = json.dumps({**members, "index": sums}, sort_keys=True, separators=(",", ":")).encode()
    return bytes(body), resealed(text)


def some(chance: random.Random, of: Sequence[Any], most: int) -> list[Any]:
    """Up to `most` of them, each perhaps more than once."""
    return [chance.choice(of) for _ in range(chance.randint(1, most))]
