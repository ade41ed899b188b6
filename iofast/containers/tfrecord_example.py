"""`tf.train.Example`, read and written without protobuf.

A protobuf library copies values, but an index needs their places in the record. Its serialisation is not canonical: the
entries of a map have any order. This parser accepts exactly what protobuf accepts (tests compare the two), and keeps at
most `MAX_PARTS` places of one record.

    Example {1: Features {1: entry {1: name, 2: Feature {1: BytesList, 2: FloatList or 3: Int64List}}}}
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from iofast.errors import ContainerError
from iofast.kernel import crc32c

MAX_PARTS = 65_536  # features and values of one record: 13 MB of places
MAX_DEPTH = 64  # of nested unknown groups
MAX_NUMBERS = 1 << 20  # in one decoded list

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_TAG_1, _TAG_2 = b"\x0a", b"\x12"  # fields 1 and 2 with a length
_SMALL = 2048  # bytes; smaller values are copied into one piece
_TINY = 32  # bytes; features of values up to this length are cached
_SHORT = [bytes([number]) for number in range(0x80)]
_FLOAT = struct.Struct("<f")


class FeatureKind(enum.IntEnum):
    """The kind of list in a feature; the number is that of its field."""

    NONE = 0
    BYTES = 1
    FLOATS = 2
    INTEGERS = 3


class ByteSpan(NamedTuple):
    """Bytes of the record: one value of a bytes list, a packed run of numbers, or a run of tagged ones."""

    start: int
    stop: int
    packed: bool = True


class Feature(NamedTuple):
    """A parsed feature: the places of its values."""

    kind: FeatureKind
    spans: list[ByteSpan]


class EncodedExample(NamedTuple):
    """An Example as consecutive pieces of bytes, and the places of its payloads."""

    pieces: list[bytes]
    length: int
    crc: int  # CRC32C of all of it
    places: dict[str, int]  # feature → offset of its (only) bytes value


def encode(features: Mapping[str, bytes | int]) -> EncodedExample:
    """The canonical Example: entries sorted by name, integers packed. Large values are not copied.

    Raises `ContainerError` if an integer does not fit 64 bits.
    """
    pieces, places, at = [b""], {}, 0
    run: list[bytes] = []  # small pieces, joined because a checksum and a write cost more than a copy
    for name in sorted(features):  # code points and UTF-8 have the same order
        value = features[name]
        if isinstance(value, int) or len(value) <= _TINY:
            run.append(_whole(name, value))
            at += len(run[-1])
            if not isinstance(value, int):
                places[name] = at - len(value)
            continue
        run.append(_entry(name, FeatureKind.BYTES, len(value)))
        places[name] = at + len(run[-1])
        at = places[name] + len(value)
        if len(value) < _SMALL:
            run.append(value)
        else:
            pieces += [b"".join(run), value]
            run = []
    pieces.append(b"".join(run))
    pieces[0] = _TAG_1 + _varint(at)
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    head = len(pieces[0])
    return EncodedExample(pieces, head + at, crc, {name: head + place for name, place in places.items()})


def parse(data: bytes) -> dict[str, Feature]:
    """The features of a serialised Example, in the order of their first occurrence.

    Unknown fields are skipped, and repeated parts are merged as in protobuf. `integers` and `floats` decode numbers.
    Raises `ContainerError` if the bytes are not an Example, or have more parts than `MAX_PARTS`.
    """
    found: dict[str, Feature] = {}
    parts = iter(range(MAX_PARTS))
    for number, wire, start, stop in _fields(data, 0, len(data)):
        if (number, wire) == (1, _BYTES):
            for own, own_wire, at, end in _fields(data, start, stop):
                if (own, own_wire) == (1, _BYTES):
                    name, feature = _parse_entry(data, at, end, parts)
                    found[name] = feature  # the later of two entries of one name wins
    return found


def integers(data: bytes, feature: Feature) -> list[int]:
    """The numbers of an int64 list. Raises `ContainerError` for invalid varints, or more than `MAX_NUMBERS`."""
    numbers: list[int] = []
    for start, stop, packed in feature.spans:
        at = start
        while at < stop:
            if not packed:
                at += 1  # the tag: one byte, checked by `parse`
            value, at = _read_varint(data, at, stop, 10)
            numbers.append(value - (1 << 64) if value >> 63 else value)
            if len(numbers) > MAX_NUMBERS:
                raise ContainerError(f"a feature has more than {MAX_NUMBERS} integers")
    return numbers


def floats(data: bytes, feature: Feature) -> list[float]:
    """The numbers of a float list. Raises `ContainerError` for more than `MAX_NUMBERS`."""
    numbers: list[float] = []
    for start, stop, packed in feature.spans:
        step = 4 if packed else 5
        if (stop - start) // step + len(numbers) > MAX_NUMBERS:
            raise ContainerError(f"a feature has more than {MAX_NUMBERS} floats")
        numbers += [_FLOAT.unpack_from(data, at)[0] for at in range(start + step - 4, stop, step)]
    return numbers


def _take(parts: Iterator[int]) -> None:
    """Count one more part of a record; `parts` is an iterator over the parts that may be kept."""
    if next(parts, None) is None:
        raise ContainerError(f"an Example has more than {MAX_PARTS} features and values")


def _parse_entry(data: bytes, start: int, stop: int, parts: Iterator[int]) -> tuple[str, Feature]:
    name, feature = b"", Feature(FeatureKind.NONE, [])
    _take(parts)
    for number, wire, at, end in _fields(data, start, stop):
        if (number, wire) == (1, _BYTES):
            name = data[at:end]
            _text(name)
        elif (number, wire) == (2, _BYTES):
            feature = _parse_feature(data, at, end, feature, parts)
    return _text(name), feature


def _parse_feature(data: bytes, start: int, stop: int, feature: Feature, parts: Iterator[int]) -> Feature:
    """The feature in these bytes, merged into the earlier `feature`: a list of another kind replaces it."""
    for number, wire, at, end in _fields(data, start, stop):
        if wire == _BYTES and 1 <= number <= 3:
            if feature.kind != number:
                feature = Feature(FeatureKind(number), [])
            _parse_list(data, at, end, feature, parts)
    return feature


def _parse_list(data: bytes, start: int, stop: int, feature: Feature, parts: Iterator[int]) -> None:
    kind, spans = feature
    single = {FeatureKind.FLOATS: _FIXED32, FeatureKind.INTEGERS: _VARINT}.get(kind)
    before = start
    for number, wire, at, end in _fields(data, start, stop):
        if number == 1 and wire == _BYTES:
            if kind == FeatureKind.FLOATS and (end - at) % 4:
                raise ContainerError(f"a float list of {end - at} bytes at {at} is no multiple of 4")
            if kind == FeatureKind.INTEGERS and end > at and data[end - 1] >= 0x80:
                raise ContainerError(f"an int64 list at {at} ends within a number")
            _take(parts)
            spans.append(ByteSpan(at, end))
        elif number == 1 and wire == single:
            if spans and not spans[-1].packed and spans[-1].stop == before and data[before] == 8 | wire:
                spans[-1] = spans[-1]._replace(stop=end)
            else:
                _take(parts)
                spans.append(ByteSpan(at - 1, end, packed=False))
        before = end


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, start and stop of the value of every field of a message, without groups."""
    at = start
    while at < stop:
        tag = data[at]
        if tag & 0x87 == _BYTES and tag > 7 and at + 1 < stop and data[at + 1] < 0x80:  # the usual form
            first = at + 2
            at = first + data[at + 1]
            if at > stop:
                raise _beyond(tag >> 3, first, at, stop)
            yield tag >> 3, _BYTES, first, at
            continue
        tag, at = _read_varint(data, at, stop, 5)
        number, wire = tag >> 3, tag & 7
        if wire == _GROUP:
            at = _skip_group(data, at, stop, number)
            continue
        first, at = _value(data, at, stop, tag)
        yield number, wire, first, at


def _value(data: bytes, at: int, stop: int, tag: int) -> tuple[int, int]:
    """Offset of the value after a tag, and of the next tag."""
    number, wire = tag >> 3, tag & 7
    if number == 0 or tag >> 32:
        raise ContainerError(f"field number {number} before {at} is not 1 … 2²⁹−1")
    first = at
    if wire == _BYTES:
        length, first = _read_varint(data, at, stop, 5)
        at = first + length
    elif wire == _VARINT:
        at = _read_varint(data, at, stop, 10)[1]
    elif wire in (_FIXED32, _FIXED64):
        at += 4 if wire == _FIXED32 else 8
    else:
        raise ContainerError(f"wire type {wire} of field {number} before {at} does not exist, or ends no group")
    if at > stop:
        raise _beyond(number, first, at, stop)
    return first, at


def _beyond(number: int, first: int, at: int, stop: int) -> ContainerError:
    return ContainerError(f"field {number} at {first} ends at {at}, its message at {stop}")


def _skip_group(data: bytes, at: int, stop: int, number: int) -> int:
    """The end of an unknown group; nested groups are followed without recursion."""
    opened = [number]
    while opened:
        if len(opened) > MAX_DEPTH or not opened[-1]:
            raise ContainerError(f"groups before {at} are nested deeper than {MAX_DEPTH}, or have no number")
        tag, at = _read_varint(data, at, stop, 5)
        if tag & 7 == _GROUP:
            opened.append(tag >> 3)
        elif tag & 7 == _GROUP_END:
            if opened.pop() != tag >> 3:
                raise ContainerError(f"a group ends before {at} that did not begin")
        else:
            at = _value(data, at, stop, tag)[1]
    return at


def _read_varint(data: bytes, at: int, stop: int, most: int) -> tuple[int, int]:
    """A number of up to `most` bytes, and the offset after it."""
    value = shift = 0
    for here in range(at, min(stop, at + most)):
        byte = data[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, here + 1
        shift += 7
    raise ContainerError(f"the number at {at} ends nowhere, or needs more than {'64' if most > 5 else '32'} bits")


def _varint(number: int) -> bytes:
    if number <= 0x7F:
        return _SHORT[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _integer(number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise ContainerError(f"{number} does not fit an int64 feature")
    return _varint(number & (1 << 64) - 1)


@lru_cache(maxsize=4096)  # formats, sizes and labels repeat
def _whole(name: str, value: bytes | int) -> bytes:
    """A whole feature of one small value."""
    kind, data = (FeatureKind.INTEGERS, _integer(value)) if isinstance(value, int) else (FeatureKind.BYTES, value)
    return _entry(name, kind, len(data)) + data


@lru_cache(maxsize=4096)  # most records differ only in the image's; without the cache a record takes a tenth longer
def _entry(name: str, kind: FeatureKind, length: int) -> bytes:
    """The bytes before the only value (of `length` bytes) of a feature: map entry, name, feature, list."""
    key = name.encode()
    value = _TAG_1 + _varint(length)
    own = bytes([kind << 3 | _BYTES]) + _varint(len(value) + length) + value
    feature = _TAG_2 + _varint(len(own) + length) + own
    entry = _TAG_1 + _varint(len(key)) + key + feature
    return _TAG_1 + _varint(len(entry) + length) + entry


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ContainerError(f"a feature's name is not UTF-8: {name!r:.80}") from None
