"""`Located`: where payloads lie, as columns; and how rows of the binary index become such columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.containers.index import ABSENT, Rows
from iofast.kernel import Payloads
from iofast.record import IMAGE_FIELDS, RAW_FIELDS


class Located(NamedTuple):
    """Where the payloads of one field lie, and what the index knows about their records: columns of N rows each.

    `crc` is None where the index has no checksums (a plain folder), and int64 with -1 for rows without one (containers
    joined with folders). `width` and `height` are upright, 0 = unknown. `kind` marks raw pixels: 1 + the field's place
    in `record.RAW_FIELDS`, 0 = any other payload.
    """

    indices: NDArray[np.int64]  # dense indices of the records
    position: NDArray[np.uint64]  # position in the packing order, the number in the key
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

    def rows(self, rows: NDArray[np.int64] | slice) -> Located:
        """The same columns of some of the rows."""
        return Located._make(None if column is None else column[rows] for column in self)

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
        kind, certain = self.kind[rows], self.certain[rows]
        indexed = None
        if kind.any() or not certain.all():
            indexed = np.stack((kind, self.width[rows], self.height[rows]), 1, dtype=np.int32)
            indexed[certain & (kind == 0), 1:] = 0
        crcs = None if self.crc is None else self.crc[rows]
        return Payloads(fds, offsets, lengths, crcs, self.orientation[rows], indexed)

    def nowhere(self) -> Located:
        """The same records without a payload: `file` is `ABSENT`, offset, length, kind and checksum are 0."""
        nothing = np.zeros(len(self.indices), np.uint64)
        file, kind = np.full(len(nothing), ABSENT, np.uint32), np.zeros(len(nothing), np.uint8)
        crc = None if self.crc is None else np.zeros(len(nothing), np.uint32)  # of no bytes
        return self._replace(file=file, offset=nothing, length=nothing, kind=kind, crc=crc)


def dense(indices: NDArray[np.int64], count: int, where: str, what: str = "records") -> NDArray[np.int64]:
    """Return indices as one contiguous row. Raises `IndexError` for an index outside 0 … `count` - 1."""
    indices = np.ascontiguousarray(indices, np.int64).reshape(-1)
    if indices.size and not 0 <= indices.min() <= indices.max() < count:
        raise IndexError(f"{where}: indices {indices.min()} to {indices.max()} of {count} {what}")
    return indices


def field_numbers(fields: tuple[str, ...], field: str | None, rows: Rows, path: str) -> NDArray[np.intp]:
    """For each row the number of `field`, or of the record's own image. Raises `KeyError`."""
    if field is not None:
        if field not in fields:
            raise KeyError(f"{path} has no field {field!r}, only {', '.join(fields)}")
        return np.full(len(rows), fields.index(field), np.intp)
    images = [fields.index(name) for name in (*IMAGE_FIELDS, *RAW_FIELDS) if name in fields]
    if not images:
        raise KeyError(f"{path} has no image field, only {', '.join(fields)}")
    number = np.full(len(rows), images[0], np.intp)
    if len(images) > 1:
        for own in reversed(images):
            number[rows["place"][:, own]["file"] != ABSENT] = own
    return number


def columns(indices: NDArray[np.int64], fields: tuple[str, ...], rows: Rows, number: NDArray[np.intp]) -> Located:
    """The columns of these rows of the index, for the field `number` of each; places are not checked yet."""
    place = rows["place"][np.arange(len(rows)), number]
    kinds = np.array([1 + RAW_FIELDS.index(name) if name in RAW_FIELDS else 0 for name in fields], np.uint8)
    return Located(
        indices=indices,
        position=rows["position"].astype(np.uint64),
        label=rows["label"].astype(np.int32),
        width=rows["width"].astype(np.int32),
        height=rows["height"].astype(np.int32),
        orientation=rows["orientation"].copy(),
        file=place["file"].astype(np.uint32),
        offset=place["offset"].astype(np.uint64),
        length=place["length"].astype(np.uint64),
        crc=place["crc"].astype(np.uint32),
        kind=kinds[number],
    )


def misplaced(located: Located, sizes: NDArray[np.uint64]) -> tuple[int, str] | None:
    """Position and place of the first payload outside its file, or None; `sizes` in bytes are uint64, (N,).

    An absent field must have offset and length 0.
    """
    absent = located.file == ABSENT
    file = np.where(absent, 0, located.file)
    wrong = file >= len(sizes)
    size = sizes[np.where(wrong, 0, file)]
    wrong |= (located.offset > size) | (located.length > size - np.minimum(located.offset, size))
    wrong |= absent & ((located.offset != 0) | (located.length != 0))
    if not wrong.any():
        return None
    i = int(np.argmax(wrong))
    place = f"file {located.file[i]}, offset {located.offset[i]}, {located.length[i]} bytes"
    return int(located.position[i]), place
