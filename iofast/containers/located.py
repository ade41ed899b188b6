"""`Located`: where payloads lie, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.columns import ABSENT, NOWHERE, columns_of
from iofast.kernel import Payloads
from iofast.kernel.contract import MAX_PIXELS
from iofast.record import RAW_FIELDS, ImageInfo

STEP = 65_536  # rows of an index that are read together: 4 MB of columns


class Located(NamedTuple):
    """Where the payloads of one field lie, and what the index knows about their records: columns of N rows each.

    `crc` is None where the index has no checksums (a plain folder), and int64 with -1 for rows without one (containers
    joined with folders). `width` and `height` are upright, 0 = unknown. `kind` marks raw pixels: 1 + the field's place
    in `record.RAW_FIELDS`, 0 = any other payload.
    """

    indices: NDArray[np.int64]  # dense indices of the records
    label: NDArray[np.int32]  # -1 = no label
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    orientation: NDArray[np.uint8]  # EXIF 1-8 still to be applied; 0 = none, even if the image has one
    file: NDArray[np.uint32]  # number of the file; only the reader knows its meaning
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    kind: NDArray[np.uint8]
    crc: NDArray[np.uint32] | NDArray[np.int64] | None

    @property
    def certain(self) -> NDArray[np.bool_]:
        """Rows with a checksum: for them width, height and orientation hold for the bytes that are read."""
        if self.crc is None:
            return np.zeros(len(self.indices), np.bool_)
        return np.asarray(self.crc >= 0)

    def infos(self) -> list[ImageInfo]:
        """What the index knows about each record."""
        facts = self.label, self.width, self.height, self.orientation
        return list(map(ImageInfo, *(column.tolist() for column in facts)))

    def rows(self, rows: NDArray[np.int64] | slice) -> Located:
        """The same columns of some of the rows."""
        return Located._make(None if column is None else column[rows] for column in self)

    def bounded(self) -> Located:
        """Sizes beyond the limit on pixels as 0: no memory is taken for them, and the decoder refuses the image."""
        large = self.width.astype(np.int64) * self.height > MAX_PIXELS
        if not large.any():
            return self
        return self._replace(**{name: np.where(large, 0, getattr(self, name)) for name in ("width", "height")})

    def slices(self, most_bytes: int, most_rows: int) -> list[tuple[int, int]]:
        """Split the rows into runs [start, stop) of at most so many rows and payload bytes, or of one larger row."""
        ends = np.cumsum(self.length.astype(np.int64))
        runs, start = [], 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + most_bytes, "right"))
            stop = min(max(stop, start + 1), start + most_rows)
            runs.append((start, stop))
            start = stop
        return runs

    def payloads(
        self, rows: slice, fds: NDArray[np.int32], offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> Payloads:
        """Some rows as the kernel reads them, with their bytes at these places.

        A checksum proves that an encoded image is the indexed one. Without it the kernel compares the image's header.
        """
        kind, crcs, indexed = self.kind[rows], None if self.crc is None else self.crc[rows], None
        all_certain = crcs is not None and (crcs.dtype == np.uint32 or (crcs >= 0).all())
        if kind.any() or not all_certain:
            indexed = np.stack((kind, self.width[rows], self.height[rows]), 1, dtype=np.int32)
            indexed[self.certain[rows] & (kind == 0), 1:] = 0
        return Payloads(fds, offsets, lengths, crcs, self.orientation[rows], indexed)

    def nowhere(self) -> Located:
        """The same records without a payload: `file` is `ABSENT`, offset, length, kind and checksum are 0."""
        nothing = np.zeros(len(self.indices), np.uint64)
        file, kind = np.full(len(nothing), ABSENT, np.uint32), np.zeros(len(nothing), np.uint8)
        crc = None if self.crc is None else np.zeros(len(nothing), np.uint32)  # of no bytes
        return self._replace(file=file, offset=nothing, length=nothing, kind=kind, crc=crc)


def locate_in(
    columns: Mapping[str, NDArray[Any]], fields: Sequence[str], indices: NDArray[np.int64], file: NDArray[np.uint32]
) -> tuple[Located, NDArray[np.intp]]:
    """The places of the first of `fields` that each record has, and its number among them, -1 for none.

    `columns` are those of an index, with a row for each record; facts that are not among them are 0.
    """
    count = len(indices)
    number, kind = np.full(count, -1, np.intp), np.zeros(count, np.uint8)
    offset, length, crc = np.zeros(count, np.uint64), np.zeros(count, np.uint64), np.zeros(count, np.uint32)
    for own, name in reversed(list(enumerate(fields))):
        place, size, check = (columns[each] for each in columns_of(name))
        there = place != np.uint64(NOWHERE)
        number[there], kind[there] = own, 1 + RAW_FIELDS.index(name) if name in RAW_FIELDS else 0
        offset[there], length[there], crc[there] = place[there], size[there], check[there]
    zeros = np.zeros(count, np.int32)
    return Located(
        indices=indices,
        label=columns.get("label", zeros),
        width=columns.get("width", zeros),
        height=columns.get("height", zeros),
        orientation=columns.get("orientation", zeros.astype(np.uint8)),
        file=np.where(number < 0, np.uint32(ABSENT), file),
        offset=offset,
        length=length,
        kind=kind,
        crc=crc,
    ), number


def steps(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """The dense indices [start, stop), `STEP` at a time."""
    return (np.arange(at, min(at + STEP, stop), dtype=np.int64) for at in range(start, stop, STEP))


def pieces(indices: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Dense indices, `STEP` at a time."""
    return (indices[at : at + STEP] for at in range(0, len(indices), STEP))


def dense(indices: NDArray[np.int64], count: int, where: str, what: str = "records") -> NDArray[np.int64]:
    """Return indices as one contiguous row. Raises `IndexError` for an index outside 0 … `count` - 1."""
    indices = np.ascontiguousarray(indices, np.int64).reshape(-1)
    if indices.size and not 0 <= indices.min() <= indices.max() < count:
        raise IndexError(f"{where}: indices {indices.min()} to {indices.max()} of {count} {what}")
    return indices


def misplaced(located: Located, sizes: NDArray[np.uint64]) -> tuple[int, str] | None:
    """Dense index and place of the first payload outside its file, or None; `sizes` in bytes are uint64, (N,)."""
    size = sizes[np.where(located.file == ABSENT, 0, located.file)]
    wrong = (located.offset > size) | (located.length > size - np.minimum(located.offset, size))
    if not wrong.any():
        return None
    i = int(np.argmax(wrong))
    place = f"file {located.file[i]}, offset {located.offset[i]}, {located.length[i]} bytes"
    return int(located.indices[i]), place
