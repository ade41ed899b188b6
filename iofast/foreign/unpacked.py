"""Read compressed files; those used last are kept in memory, unpacked."""

from __future__ import annotations

import bz2
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers.file_bytes import FileBytes
from iofast.containers.open_files import OpenFiles
from iofast.errors import ContainerError
from iofast.foreign.cached_index import Same

KEPT = 4  # unpacked files in memory, 64 MB each by MosaicML's default
LARGEST = 1 << 30  # bytes; larger files are not unpacked
_GZIP = 16 + zlib.MAX_WBITS


class PackedFiles(OpenFiles):
    """`OpenFiles`, some of them compressed. `packed`: number → (compression such as `zstd:3`, unpacked size).

    Random access unpacks a file for every few samples, so they should be read in order, once.
    """

    def __init__(self, paths: Sequence[str], stamped: NDArray[np.int64], packed: Mapping[int, tuple[str, int]]) -> None:
        super().__init__(paths, Same(paths, stamped))
        self._stamped, self._packed = stamped, dict(packed)
        self._unpacked: OrderedDict[int, bytes] = OrderedDict()

    def __getstate__(self) -> Any:
        return self.paths, self._stamped, self._packed

    def __setstate__(self, state: Any) -> None:
        PackedFiles.__init__(self, *state)

    def get(self, number: int) -> FileBytes | None:
        """The open file, or None for a compressed one, whose payloads are read into memory."""
        return None if number in self._packed else super().get(number)

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a file, unpacked where it is compressed."""
        if number not in self._packed:
            return super().read(number, offset, length)
        data = self._unpacked.get(number)
        if data is None:
            compression, size = self._packed[number]
            data = self._unpacked[number] = unpack(self.paths[number], compression, size)
            while len(self._unpacked) > KEPT:
                self._unpacked.popitem(last=False)
        return data[offset : offset + length]


def unpack(path: str, compression: str, size: int) -> bytes:
    """Return the `size` bytes of a compressed file. Raises `ContainerError` for any other size, naming the file."""
    name = compression.partition(":")[0]
    if size > LARGEST:
        raise ContainerError(f"{path}: expected at most {LARGEST} unpacked bytes, found {size}; unpack it first")
    packed = FileBytes(path)[:]
    try:
        if name == "gz":
            data = zlib.decompressobj(_GZIP).decompress(packed, size + 1)
        elif name == "bz2":
            data = bz2.BZ2Decompressor().decompress(packed, size + 1)
        elif name == "zstd":
            data = _zstd(path, packed, size + 1)
        else:
            raise ContainerError(f"{path} is compressed with {name!r:.20}, which is not supported: unpack it first")
    except ContainerError:  # a ValueError, too
        raise
    except (zlib.error, OSError, EOFError, ValueError) as error:
        raise ContainerError(f"{path} cannot be unpacked ({name}): {error}") from None
    if len(data) != size:
        raise ContainerError(f"{path} unpacks to {'more' if len(data) > size else len(data)} bytes, expected {size}")
    return data


def _zstd(path: str, packed: bytes, most: int) -> bytes:
    """The first `most` unpacked bytes, from whichever zstd module is installed. Raises `ValueError` for damage."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            zstd: Any = import_module(name)
        except ImportError:
            continue
        try:
            if name == "zstandard":
                return bytes(zstd.ZstdDecompressor().stream_reader(packed).read(most))
            return bytes(zstd.ZstdDecompressor().decompress(packed, most))
        except zstd.ZstdError as error:
            raise ValueError(error) from None
    raise ContainerError(f"{path} is compressed with zstd: pip install 'iofast[zstd]', or unpack it first")
