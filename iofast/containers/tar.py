"""The tar container: WebDataset's shards, in plain USTAR that every tar program reads (docs/format.md section 5).

`TarFile` reads the members of any tar file: USTAR, GNU long names, pax headers. Every value in the file is checked
before use.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from iofast.containers.file_bytes import FileBytes
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shard_writer import EncodedRecord, ShardWriter
from iofast.containers.shards import stem_with
from iofast.errors import ContainerError
from iofast.record import ImageInfo

BLOCK = 512
RECORD = 20 * BLOCK  # what tar programs pad an archive to
MTIME = 946_684_800  # 1 January 2000, a constant, so that equal records give equal bytes on any day

# A header without name, size and checksum. The checksum is computed with spaces in its own place.
_MODE_IDS = b"0000444\0" + b"0000000\0" * 2
_REST = b"0" + bytes(100) + b"ustar\x0000" + b"iofast".ljust(32, b"\0") * 2 + b"0000000\0" * 2 + bytes(167)
_MTIME = b"%011o\0" % MTIME
_FIXED = sum(_MODE_IDS) + sum(_MTIME) + sum(b" " * 8) + sum(_REST)
MAX_EXTENSION = 1 << 20  # bytes of a long name or a pax header
_WINDOW = 1 << 15  # bytes of one read: a header and the beginning of an image
_PAX = re.compile(rb"(\d{1,7}) ([^=]+)=", re.ASCII)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}


class TarWriter(ShardWriter):
    """Writes a set of tar shards; see `ShardWriter`."""

    def encode(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> EncodedRecord:  # noqa: ARG002
        pieces: list[bytes] = []
        offsets, at = {}, 0
        for name in sorted(fields):
            payload = fields[name]
            padding = -len(payload) % BLOCK
            pieces += [header(f"{key}.{name}", len(payload)), payload, bytes(padding)]
            offsets[name] = at + BLOCK
            at += BLOCK + len(payload) + padding
        return EncodedRecord(pieces, at, offsets)

    def closing(self, size: int) -> bytes:
        return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)

    def _name(self, split: str, number: int, total: int) -> str:  # noqa: ARG002
        return f"{stem_with(self.stem, split)}-{number:06d}{self.suffix}"


class TarReader(ShardReader):
    """Random access to a set of tar shards that iofast wrote; see `ShardReader`."""

    container = "tar"
    writer = TarWriter


def header(name: str, size: int) -> bytes:
    """The USTAR header of a regular file; `name` is ASCII of less than 100 bytes, `size` below 8 GiB."""
    text, octal = name.encode("ascii"), b"%011o\0" % size
    checksum = b"%06o\0 " % (_FIXED + sum(text) + sum(octal))
    return b"".join((text.ljust(100, b"\0"), _MODE_IDS, octal, _MTIME, checksum, _REST))


class Member(NamedTuple):
    """A regular file in the archive; `offset` is that of its first byte."""

    name: str
    offset: int
    size: int


class TarFile:
    """One tar file, read by position. Errors are `ContainerError` that name `path` and the offset."""

    def __init__(self, file: FileBytes) -> None:
        self.path, self._file, self._size = file.path, file, len(file)
        self._start, self._window = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file; fewer where it ends."""
        at = offset - self._start
        if not 0 <= at <= len(self._window) - length:
            self._window = self._file[offset : offset + max(length, _WINDOW)]
            self._start, at = offset, 0
        return self._window[at : at + length]

    def fetch_again(self, offset: int, length: int) -> bool:
        """Fetch bytes again that were found damaged; see `FileBytes.fetch_again`."""
        self._window = b""
        return self._file.fetch_again(offset, offset + length)

    def members(self) -> Iterator[Member]:
        """All regular files, in order, without directories, links and devices.

        Raises `ContainerError` for a damaged header, and for an archive that is compressed, cut off, or has no end.
        """
        offset, name, size = 0, "", -1  # name and size of the next member, from an extended header
        while True:
            block = self.read(offset, BLOCK)
            if len(block) < BLOCK:
                self._refuse_compressed(block, offset)
                raise ContainerError(f"{self.path} was cut off: at offset {offset} it has no header and no end mark")
            if not any(block):
                return
            try:
                kind, own = self._header(block, offset)
            except ContainerError:
                if not self.fetch_again(offset, BLOCK):
                    raise
                block = self.read(offset, BLOCK)
                kind, own = self._header(block, offset)
            data = offset + BLOCK
            if kind in b"xgLK":
                body = self._extension(data, own)
                if kind == b"L":
                    name = _text(body.rstrip(b"\0"))
                elif kind == b"x":
                    name, size = self._pax(body, offset, name, size)
                offset = data + own + -own % BLOCK
                continue
            if kind in b"123456":  # links, devices and directories have no data, whatever their size field
                own = 0
            elif size >= 0:
                own = size
            if own > self._size - data:
                found = f"a member of {own} bytes at offset {data} goes beyond its end at {self._size}"
                raise ContainerError(f"{self.path} was cut off: {found}")
            if kind == b"S":
                raise ContainerError(f"{self.path} has a sparse file at offset {offset}, which is not supported")
            path = name or _name(block)
            if kind in b"0\x007" and not path.endswith("/"):
                yield Member(path, data, own)
            offset, name, size = data + own + -own % BLOCK, "", -1

    def _header(self, block: bytes, offset: int) -> tuple[bytes, int]:
        """Kind and size of a member."""
        noted = _number(block[148:156])
        blank = block[:148] + b"        " + block[156:]
        # Adler-32 begins with the sum of the bytes modulo 65,521, at a twentieth of the time of `sum`
        unsigned = (zlib.adler32(blank) & 0xFFFF) - 1
        if noted != unsigned and noted != (unsigned := sum(blank)):
            high = sum(1 for byte in block[:148] + block[156:] if byte > 127)
            if noted != unsigned - 256 * high:  # some old programs added signed bytes
                self._refuse_compressed(block, offset)
                what = "is no tar file" if offset == 0 else "is damaged"
                raise ContainerError(f"{self.path} {what}: the checksum of the header at offset {offset} differs")
        size = _number(block[124:136])
        if size is None:
            raise ContainerError(f"{self.path}: the header at offset {offset} has an invalid size {block[124:136]!r}")
        return block[156:157], size

    def _refuse_compressed(self, block: bytes, offset: int) -> None:
        for magic, name in _COMPRESSED.items():
            if offset == 0 and block.startswith(magic):
                reason = "so no record can be read without all before it; decompress it first"
                raise ContainerError(f"{self.path} is compressed with {name}, {reason}")

    def _extension(self, offset: int, size: int) -> bytes:
        if size > MAX_EXTENSION:
            raise ContainerError(
                f"{self.path}: a long name or pax header at offset {offset} has {size} bytes, too many"
            )
        body = self.read(offset, size)
        if len(body) < size:
            raise ContainerError(f"{self.path} was cut off in the extended header at offset {offset}")
        return body

    def _pax(self, body: bytes, offset: int, name: str, size: int) -> tuple[str, int]:
        """Path and size of the next member from a pax header, by default `name` and `size`."""
        at = 0
        while at < len(body) and body[at]:
            found = _PAX.match(body, at)
            end = at + int(found[1]) if found else 0
            if found is None or not found.end() < end <= len(body) or body[end - 1 : end] != b"\n":
                raise ContainerError(f"{self.path}: the pax header at offset {offset} is damaged at its byte {at}")
            key, value = found[2], body[found.end() : end - 1]
            if key.startswith(b"GNU.sparse"):
                raise ContainerError(f"{self.path} has a sparse file at offset {offset}, which is not supported")
            if key == b"path":
                name = _text(value)
            elif key == b"size":
                if not value.isdigit() or len(value) > 18:
                    raise ContainerError(f"{self.path}: the pax header at offset {offset} has the size {value!r:.40}")
                size = int(value)
            at = end
        return name, size


def _number(field: bytes) -> int | None:
    """The number in octal digits, or in GNU's big-endian form that begins with 0x80. None if it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    return int(digits or b"0", 8) if not digits.strip(b"01234567") else None


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
