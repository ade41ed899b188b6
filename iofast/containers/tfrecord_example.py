"""`tf.train.Example`, read and written without protobuf.

A protobuf library copies values, but an index needs their places in the record. Its serialisation is not canonical: the
entries of a map have any order. What protobuf reads this parser reads with the same values (tests compare the two), or
refuses: groups, which proto3 does not have.

    Example {1: Features {1: entry {1: name, 2: Feature {1: BytesList, 2: FloatList or 3: Int64List}}}}
"""

import enum
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from iofast.errors import ContainerError
from iofast.kernel import crc32c

MAX_PARTS = 65_536  # features and values of one record: 13 MB of places

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_TAG_1, _TAG_2 = b"\x0a", b"\x12"  # fields 1 and 2 with a length
_SMALL = 2048  # bytes; smaller values are copied into one piece


class FeatureKind(enum.IntEnum):
    """The kind of list in a feature; the number is that of its field."""

    NONE = 0
    BYTES = 1
    FLOATS = 2
    INTEGERS = 3


class ByteSpan(NamedTuple):
    """Bytes of the record: one value of a bytes list, or one or more numbers."""

    start: int
    stop: int


class Feature(NamedTuple):
    """A parsed feature: the places of its values."""

    kind: FeatureKind
    spans: list[ByteSpan]


def encode(features: Mapping[str, bytes | int]) -> tuple[list[bytes], int, dict[str, int]]:
    """The canonical Example: entries sorted by name, integers packed. Large values are not copied.

    Returns consecutive pieces of it, the CRC32C of all of it, and where in it the (only) value of each feature begins.
    Raises `ContainerError` if an integer does not fit 64 bits.
    """
    pieces, places, at = [b""], {}, 0
    run: list[bytes] = []  # small pieces, joined because a checksum and a write cost more than a copy
    for name in sorted(features):  # code points and UTF-8 have the same order
        value = features[name]
        kind, data = (FeatureKind.INTEGERS, _integer(value)) if isinstance(value, int) else (FeatureKind.BYTES, value)
        run.append(_entry(name, kind, len(data)))
        places[name] = at + len(run[-1])
        at = places[name] + len(data)
        if len(data) < _SMALL:
            run.append(data)
        else:
            pieces += [b"".join(run), data]
            run = []
    pieces.append(b"".join(run))
    pieces[0] = _TAG_1 + _varint(at)
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return pieces, crc, {name: len(pieces[0]) + place for name, place in places.items()}


def parse(data: bytes) -> dict[str, Feature]:
    """The features of a serialised Example, in the order of their first occurrence.

    Unknown fields are skipped, and repeated parts are merged as in protobuf. `integers` decodes numbers. Raises
    `ContainerError` if the bytes are not an Example, or have more parts than `MAX_PARTS`.
    """
    found: dict[str, Feature] = {}
    parts = 0
    for start, stop in _messages(data, 0, len(data)):
        for at, end in _messages(data, start, stop):
            name, feature = "", Feature(FeatureKind.NONE, [])
            for number, wire, first, last in _fields(data, at, end):
                if (number, wire) == (1, _BYTES):
                    name = _text(data[first:last])
                elif (number, wire) == (2, _BYTES):
                    feature = _feature(data, first, last, feature)
            found[name] = feature  # the later of two entries of one name wins
            parts += 1 + len(feature.spans)
            if parts > MAX_PARTS:
                raise ContainerError(f"an Example has more than {MAX_PARTS} features and values")
    return found


def integers(data: bytes, feature: Feature) -> list[int]:
    """The numbers of an int64 list. Raises `ContainerError` for invalid ones."""
    numbers: list[int] = []
    for at, stop in feature.spans:
        while at < stop:
            value, at = _read_varint(data, at, stop, 10)
            numbers.append(value - (1 << 64) if value >> 63 else value)
    return numbers


def _messages(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The places of the messages in field 1 of a message."""
    return ((at, end) for number, wire, at, end in _fields(data, start, stop) if (number, wire) == (1, _BYTES))


def _feature(data: bytes, start: int, stop: int, feature: Feature) -> Feature:
    """The feature in these bytes, merged into the earlier `feature`: a list of another kind replaces it."""
    for number, wire, at, end in _fields(data, start, stop):
        if wire != _BYTES or not 1 <= number <= 3:
            continue
        if feature.kind != number:
            feature = Feature(FeatureKind(number), [])
        single = {FeatureKind.FLOATS: _FIXED32, FeatureKind.INTEGERS: _VARINT}.get(feature.kind)
        for own, own_wire, first, last in _fields(data, at, end):
            if own == 1 and own_wire in (_BYTES, single):
                feature.spans.append(ByteSpan(first, last))
                if len(feature.spans) > MAX_PARTS:
                    raise ContainerError(f"an Example has more than {MAX_PARTS} features and values")
    return feature


def _fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, start and stop of the value of every field of a message."""
    at = start
    while at < stop:
        tag = data[at]
        if tag & 0x87 == _BYTES and tag > 7 and at + 1 < stop and data[at + 1] < 0x80:  # the usual form
            number, wire, first = tag >> 3, _BYTES, at + 2
            at = first + data[at + 1]
        else:
            tag, first = _read_varint(data, at, stop, 5)
            number, wire = tag >> 3, tag & 7
            if number == 0 or tag >> 32:
                raise ContainerError(f"field number {number} before {first} is not 1 … 2²⁹−1")
            if wire == _BYTES:
                length, first = _read_varint(data, first, stop, 5)
                at = first + length
            elif wire == _VARINT:
                at = _read_varint(data, first, stop, 10)[1]
            elif wire in (_FIXED32, _FIXED64):
                at = first + (4 if wire == _FIXED32 else 8)
            else:
                raise ContainerError(f"field {number} before {first} has wire type {wire}, which proto3 does not have")
        if at > stop:
            raise ContainerError(f"field {number} at {first} ends at {at}, its message at {stop}")
        yield number, wire, first, at


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
