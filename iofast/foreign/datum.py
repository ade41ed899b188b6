"""Parse Caffe's `Datum`, the protobuf message in its LMDBs, without protobuf: the place of its pixels, and its label.

    optional int32 channels = 1, height = 2, width = 3; optional bytes data = 4; optional int32 label = 5;
    repeated float float_data = 6; optional bool encoded = 7

`data` is an image file if `encoded`, else bytes channel by channel, each row by row. Fields come in any order; of equal
ones the last counts. An unknown field is an error, since it belongs to another message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from iofast.errors import ContainerError

TAGS = frozenset(b"\x08\x10\x18\x22\x28\x32\x35\x38")  # bytes that a Datum can begin with; no image begins with one

_MAX_PARTS = 64  # a Datum has seven fields; each may be repeated
_WINDOW = 32  # a tag and a number, with room
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_KINDS = {1: _VARINT, 2: _VARINT, 3: _VARINT, 4: _BYTES, 5: _VARINT, 7: _VARINT}
_FLOATS = 6


class NoDatumError(ContainerError):
    """The bytes are not a Datum. (Failures to read them are other errors.)"""


class Datum(NamedTuple):
    """A parsed Datum; `data` is at [start, stop), empty if there is none."""

    channels: int
    height: int
    width: int
    start: int
    stop: int
    label: int
    encoded: bool

    @property
    def is_raw(self) -> bool:
        """Whether `data` has channels x height x width bytes."""
        size = self.channels * self.height * self.width
        return not self.encoded and self.start < self.stop and self.stop - self.start == size


def parse_datum(read: Callable[[int, int], bytes], length: int) -> Datum:
    """Parse a Datum of `length` bytes through `read(start, count)`, without reading `data`.

    Raises `NoDatumError` for other bytes and for a Datum of floats, and the errors of `read`.
    """
    numbers = {1: 0, 2: 0, 3: 0, 5: -1, 7: 0}  # a Datum without a label has none, whatever Caffe's default
    start = stop = at = 0
    for _ in range(_MAX_PARTS):
        if at == length:
            return Datum(numbers[1], numbers[2], numbers[3], start, stop, numbers[5], bool(numbers[7]))
        window = read(at, min(_WINDOW, length - at))
        tag, used = _varint(window, 0, at)
        number, wire = tag >> 3, tag & 7
        if number == _FLOATS and wire in (_BYTES, _FIXED32):
            raise NoDatumError("it is a Datum of floats, not an image")
        if _KINDS.get(number) != wire:
            raise NoDatumError(f"field {number} of wire type {wire} at {at} is not one of a Caffe Datum")
        value, used = _varint(window, used, at)
        at += used
        if number == 4:
            start, stop = at, at + value
            if stop > length:
                raise NoDatumError(f"data of {value} bytes at {at} goes beyond the {length} bytes of the Datum")
            at = stop
        else:
            numbers[number] = _int32(value, number)
    raise NoDatumError(f"a Datum has more than {_MAX_PARTS} parts")


def _int32(value: int, number: int) -> int:
    """An int32 of protobuf: the low 32 bits. Only a label may be negative."""
    if number == 7:
        return int(value != 0)
    low = value & 0xFFFFFFFF
    signed = low - (1 << 32) if low >> 31 else low
    if signed < 0 and number != 5:
        raise NoDatumError(f"field {number} of the Datum is {signed}, expected 0 or more")
    return signed


def _varint(window: bytes, at: int, base: int) -> tuple[int, int]:
    value = 0
    for used, byte in enumerate(window[at : at + 10]):
        value |= (byte & 0x7F) << 7 * used
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + used + 1
    raise NoDatumError(f"the number at {base + at} of the Datum is cut off, or has more than 64 bits")
