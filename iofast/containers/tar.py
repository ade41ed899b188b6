"""The tar container: WebDataset's shards, in plain USTAR that every tar program reads (docs/format.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping

from iofast.containers.shard_reader import ShardReader
from iofast.containers.shard_writer import EncodedRecord, ShardWriter
from iofast.containers.shards import stem_with
from iofast.containers.tar_members import BLOCK
from iofast.record import ImageInfo

RECORD = 20 * BLOCK  # what tar programs pad an archive to
MTIME = 946_684_800  # 1 January 2000, a constant, so that equal records give equal bytes on any day

# A header without name, size and checksum. The checksum is computed with spaces in its own place.
_MODE_IDS = b"0000444\0" + b"0000000\0" * 2
_REST = b"0" + bytes(100) + b"ustar\x0000" + b"iofast".ljust(32, b"\0") * 2 + b"0000000\0" * 2 + bytes(167)
_MTIME = b"%011o\0" % MTIME
_FIXED = sum(_MODE_IDS) + sum(_MTIME) + sum(b" " * 8) + sum(_REST)


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
        """Zeros; see `ShardWriter.closing`."""
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
