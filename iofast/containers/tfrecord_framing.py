"""TFRecord framing: length, checksum of the length, data, checksum of the data; nothing else is in the file.

The length has its own checksum, so a walk over a file reads 12 bytes per record and recognises a record that was cut
off. docs/format.md section 6 has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from iofast.containers.file_bytes import FileBytes, retried
from iofast.errors import ContainerError
from iofast.kernel import crc32c

HEAD = 12  # u64 length, u32 masked CRC32C of these 8 bytes
FOOT = 4  # u32 masked CRC32C of the data
MAX_DATA = (1 << 31) - 1  # bytes of one record: no protobuf library reads a longer message

_LENGTH = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_DELTA = 0xA282EAD8
_ZLIB = {b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"}


class Framing(NamedTuple):
    """The place of one record's data in a file, without the framing."""

    offset: int  # of the data's first byte
    length: int  # bytes of data

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.offset + self.length + FOOT


def mask(crc: int) -> int:
    """The checksum as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The plain CRC32C of a stored one."""
    rotated = (masked - _DELTA) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def head(length: int) -> bytes:
    """The 12 bytes before the data. Raises `ContainerError` for more data than protobuf libraries read."""
    if length > MAX_DATA:
        raise ContainerError(f"a TFRecord of {length} bytes is longer than protobuf allows, {MAX_DATA}")
    packed = _LENGTH.pack(length)
    return packed + _U32.pack(mask(crc32c(packed)))


def foot(crc: int) -> bytes:
    """The 4 bytes after data with this (plain) CRC32C."""
    return _U32.pack(mask(crc))


def read_frame(data: FileBytes, offset: int) -> Framing:
    """The record at `offset`: its length is compared with its checksum and with the file; no data is read.

    Raises `ContainerError` that names file and offset.
    """
    rest = len(data) - offset
    if rest < HEAD:
        raise ContainerError(f"{data.path} ends within a record at offset {offset}: {rest} of {HEAD} bytes of its head")
    start = data[offset : offset + HEAD]
    length = _LENGTH.unpack_from(start)[0]
    if _U32.unpack_from(start, 8)[0] != mask(crc32c(start[:8])):
        compressed = compression(start) if offset == 0 else None
        if compressed is not None:
            raise ContainerError(
                f"{data.path} is compressed as a whole with {compressed}, so no record of it can be found: unpack it"
            )
        raise ContainerError(f"{data.path} is damaged at offset {offset}: the CRC32C of a record's length differs")
    if length > MAX_DATA:
        raise ContainerError(f"{data.path}: the record at offset {offset} has {length} bytes, more than {MAX_DATA}")
    if length > rest - HEAD - FOOT:
        expected = f"expected {length + HEAD + FOOT} bytes, found {rest}"
        raise ContainerError(f"{data.path} ends within the record at offset {offset}: {expected}")
    return Framing(offset + HEAD, length)


def read_data(data: FileBytes, frame: Framing) -> bytes:
    """The data of a record, checked. Raises `ContainerError` that names file and offset."""
    return retried(data, partial(_read_data, data, frame))


def _read_data(data: FileBytes, frame: Framing) -> bytes:
    both = data[frame.offset : frame.end]
    content = both[: frame.length]
    if _U32.unpack_from(both, frame.length)[0] != mask(crc32c(content)):
        at = frame.offset - HEAD
        raise ContainerError(f"{data.path} is damaged in the record at offset {at}: the CRC32C of its data differs")
    return content


def frames(data: FileBytes, offset: int = 0) -> Iterator[Framing]:
    """All records from `offset` to the end of the file. Raises like `read_frame` for an incomplete record."""
    while offset < len(data):
        frame = retried(data, partial(read_frame, data, offset))
        yield frame
        offset = frame.end


def compression(start: bytes) -> str | None:
    """The compression of a file that begins with these bytes, or None."""
    if start.startswith(b"\x1f\x8b"):
        return "GZIP"
    return "ZLIB" if start[:2] in _ZLIB else None
