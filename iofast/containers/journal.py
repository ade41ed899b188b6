"""The journal: encoded records between workers and builder, which survive a kill (docs/format.md section 9).

Each worker process appends blocks to its own file; one process reads them in the order of its plan.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Self

from iofast.containers.file_bytes import read_at
from iofast.containers.shard_files import write
from iofast.errors import ContainerError, TargetError, because
from iofast.kernel import crc32c
from iofast.record import MAX_PAYLOAD, ImageInfo, check_field

HEADER_SIZE = 40
MAX_BODY = 1 << 36  # a few largest payloads; limits the memory for a damaged header

_HEADER = struct.Struct("<4sHHQIIQI")
_U32 = struct.Struct("<I")
_RECORD = struct.Struct("<QHHiIIBB")
_FIELD = struct.Struct("<BI")
_FAILURE = struct.Struct("<QII")
_MAGIC, _VERSION = b"IFJB", 1


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One encoded record. `split` is a number defined by the plan of the run."""

    position: int
    split: int
    info: ImageInfo
    fields: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class JournalFailure:
    """A position that could not be packed; `path` is relative, in bytes of the file system."""

    position: int
    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Block:
    """The results of one chunk of work."""

    chunk: int
    records: tuple[JournalRecord, ...]
    failures: tuple[JournalFailure, ...]


class BlockPlace(NamedTuple):
    """Offset and length of a block in its journal, in bytes."""

    offset: int
    length: int


class JournalWriter:
    """Appends blocks to the journal at `path`, after the last complete block of an existing one.

    Raises `TargetError` if the file cannot be written; earlier blocks stay complete.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 - lives as long as the worker
            self._end = max((place.offset + place.length for _, place in _blocks(self._file)), default=0)
            self._file.truncate(self._end)
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def append(
        self, chunk: int, records: Sequence[JournalRecord], failures: Sequence[JournalFailure] = ()
    ) -> BlockPlace:
        """Append one block and return its place; readers can see it at once."""
        body = [*_encode_records(records), *map(_encode_failure, failures)]  # not joined: that copies megabytes
        length = sum(map(len, body))
        if length > MAX_BODY:
            raise ContainerError(f"{self.path}: a block of {length} bytes is larger than {MAX_BODY}")
        crc = 0
        for piece in body:
            crc = crc32c(piece, crc)
        head = _HEADER.pack(_MAGIC, _VERSION, HEADER_SIZE, chunk, len(records), len(failures), length, crc)
        place = BlockPlace(self._end, HEADER_SIZE + length)
        try:
            write(self._file.fileno(), [head + _U32.pack(crc32c(head)), *body], None)
        except OSError as error:
            self._file.truncate(self._end)
            raise _cannot_write(self.path, error) from None
        self._end += place.length
        return place

    def sync(self) -> None:
        """Make all blocks survive a power failure; a kill alone needs no sync."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_block(path: str | os.PathLike[str], offset: int) -> Block:
    """Read the block at `offset` into its own memory. Raises `ContainerError` unless it is complete and undamaged."""
    path = os.fspath(path)
    try:
        with open(path, "rb", buffering=0) as file:
            return _decode(*_read(file, offset, os.fstat(file.fileno()).st_size))
    except ContainerError as error:
        raise ContainerError(f"{path}: block at offset {offset}: {error}") from None


def read_blocks(path: str | os.PathLike[str]) -> Iterator[Block]:
    """Read all complete blocks of a journal, in order; a torn end is ignored."""
    return (read_block(path, place.offset) for place in scan(path).values())


def scan(path: str | os.PathLike[str]) -> dict[int, BlockPlace]:
    """Map each chunk to the place of its first block, in the order of the file. Memory: one block.

    Every checksum is checked; a torn end is ignored.
    """
    places: dict[int, BlockPlace] = {}
    with open(path, "rb", buffering=0) as file:
        for chunk, place in _blocks(file):
            places.setdefault(chunk, place)
    return places


def _blocks(file: BinaryIO) -> Iterator[tuple[int, BlockPlace]]:
    """Chunk and place of each block, up to the first one that is incomplete or damaged."""
    size, end = os.fstat(file.fileno()).st_size, 0
    while end < size:
        try:
            chunk, _, _, body = _read(file, end, size)
        except ContainerError:
            return
        place = BlockPlace(end, HEADER_SIZE + len(body))
        yield chunk, place
        end += place.length


def _read(file: BinaryIO, offset: int, size: int) -> tuple[int, int, int, bytes]:
    """Chunk, number of records, number of failures and checked body of a block in a file of `size` bytes."""
    data = os.pread(file.fileno(), HEADER_SIZE, offset)
    if len(data) < HEADER_SIZE:
        raise ContainerError(f"expected a header of {HEADER_SIZE} bytes, found {len(data)}")
    magic, version, header_size, chunk, records, failures, length, crc = _HEADER.unpack_from(data)
    if (magic, version, header_size) != (_MAGIC, _VERSION, HEADER_SIZE):
        raise ContainerError(f"expected {_MAGIC!r} version {_VERSION}, found {magic!r} version {version}")
    if _U32.unpack_from(data, HEADER_SIZE - 4)[0] != crc32c(data[: HEADER_SIZE - 4]):
        raise ContainerError("its header is damaged: the CRC32C differs")
    if length > min(MAX_BODY, size - offset - HEADER_SIZE):
        raise ContainerError(f"its body of {length} bytes goes beyond the end of the file")
    body = read_at(file.fileno(), offset + HEADER_SIZE, length)
    if len(body) < length:
        raise ContainerError(f"the file ends {length - len(body)} bytes early")
    if crc32c(body) != crc:
        raise ContainerError("its body is damaged: the CRC32C differs")
    return chunk, records, failures, body


def _encode_records(records: Sequence[JournalRecord]) -> Iterable[bytes]:
    for record in records:
        info = record.info
        sizes = (info.label, info.width, info.height, info.orientation, 0)
        yield _RECORD.pack(record.position, record.split, len(record.fields), *sizes)
        for name, payload in record.fields.items():
            if len(payload) > MAX_PAYLOAD:
                raise ContainerError(f"field {name} of position {record.position} has {len(payload)} bytes, too many")
            text = check_field(name).encode()
            yield _FIELD.pack(len(text), len(payload)) + text
            yield payload


def _encode_failure(failure: JournalFailure) -> bytes:
    reason = failure.reason.encode(errors="backslashreplace")
    return _FAILURE.pack(failure.position, len(failure.path), len(reason)) + failure.path + reason


def _decode(chunk: int, records: int, failures: int, body: bytes) -> Block:
    cursor = _Cursor(body)
    block = Block(
        chunk,
        tuple([_decode_record(cursor) for _ in range(records)]),
        tuple([_decode_failure(cursor) for _ in range(failures)]),
    )
    if cursor.at != len(body):
        raise ContainerError(f"{len(body) - cursor.at} bytes follow its last entry")
    return block


def _decode_record(cursor: _Cursor) -> JournalRecord:
    position, split, count, label, width, height, orientation, _ = cursor.unpack(_RECORD)
    fields = {}
    for _ in range(count):
        name_length, length = cursor.unpack(_FIELD)
        name = cursor.take(name_length).decode("ascii", errors="replace")
        fields[check_field(name)] = cursor.take(length)
    return JournalRecord(position, split, ImageInfo(label, width, height, orientation), fields)


def _decode_failure(cursor: _Cursor) -> JournalFailure:
    position, path_length, reason_length = cursor.unpack(_FAILURE)
    return JournalFailure(position, cursor.take(path_length), cursor.take(reason_length).decode(errors="replace"))


class _Cursor:
    """Reads a body in order, and never past its end."""

    def __init__(self, body: bytes) -> None:
        self._body, self.at = body, 0

    def take(self, length: int) -> bytes:
        return self._body[self._pass(length) : self.at]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self._body, self._pass(layout.size))

    def _pass(self, length: int) -> int:
        """Pass `length` bytes; returns where they begin."""
        start = self.at
        if length > len(self._body) - start:
            raise ContainerError(f"an entry of {length} bytes at {start} goes beyond the body of {len(self._body)}")
        self.at += length
        return start


def _cannot_write(path: str, error: OSError) -> TargetError:
    return TargetError(f"{path} cannot be written: {because(error)}")
