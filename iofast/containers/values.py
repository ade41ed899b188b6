"""Payloads of one field of many records, for containers whose payloads lie in files: `Reader.values`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import google_crc32c
import numpy as np

from iofast.containers.base import Failures, Located, Reader
from iofast.containers.file_bytes import read_at
from iofast.containers.index import ABSENT
from iofast.errors import ContainerError


def read_values(
    reader: Reader, located: Located, field: str | None, check: bool, failed: Failures | None
) -> list[bytes | None]:
    """What `Reader.values` gives, of records that were located: one `pread` each, by file and offset."""
    values: list[bytes | None] = [None] * len(located.indices)
    rows = np.flatnonzero(located.file != ABSENT)
    rows = rows[np.lexsort((located.offset[rows], located.file[rows]))]
    with reader.payloads(located, 0, len(values)) as places:
        fds, offsets, lengths = (column.tolist() for column in places[:3])
        crcs = places.crcs.tolist() if check and places.crcs is not None else None
        for row in rows.tolist():
            try:
                data = _read(fds[row], offsets[row], lengths[row])
                if len(data) < lengths[row]:
                    raise ContainerError(f"ends after {len(data)} of {lengths[row]} bytes: the file was cut off")
                if crcs is not None and google_crc32c.value(data) != crcs[row]:
                    raise ContainerError("is damaged: its CRC32C differs")
                values[row] = data
            except (ContainerError, OSError) as error:
                found = _at(reader.name(int(located.indices[row])), field, offsets[row], error)
                if failed is None:
                    raise found from None
                failed[row] = found
    return values


def read_view(reader: Reader, index: int, field: str | None, read: Callable[[int, int, int], bytes]) -> memoryview:
    """What `Reader.view` gives: what `read(file, offset, length)` returns, compared with its checksum if it has one."""
    located = reader.locate(np.array([index]), field)
    if located.file[0] == ABSENT:
        raise KeyError(f"{reader.name(index)} has no {'image' if field is None else f'field {field!r}'}")
    start = int(located.offset[0])
    payload = read(int(located.file[0]), start, int(located.length[0]))
    if located.crc is not None and google_crc32c.value(payload) != located.crc[0]:
        raise _at(reader.name(index), field, start, ContainerError("is damaged: its CRC32C differs"))
    return memoryview(payload)


def _read(fd: int, offset: int, length: int) -> bytes:
    """What `Payloads` says: bytes of a file, or at an address."""
    return ctypes.string_at(offset, length) if fd == -1 else read_at(fd, offset, length)


def _at(name: str, field: str | None, offset: int, error: ContainerError | OSError) -> ContainerError:
    what = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    return ContainerError(f"{name}: {'image' if field is None else field} at offset {offset} {what}")
