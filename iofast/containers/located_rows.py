"""From rows of the binary index to the columns of `Located`: the same for every container that has such an index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from iofast.containers.base import Located
from iofast.containers.index import ABSENT, Rows
from iofast.record import IMAGE_FIELDS, RAW_FIELDS


def field_numbers(fields: tuple[str, ...], field: str | None, rows: Rows, path: str) -> NDArray[np.intp]:
    """Which place of each row is meant: that of `field`, or that of each record's own image. Raises `KeyError`."""
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
    """The columns of the places `number` of the rows of `indices`; places are not checked yet."""
    place = rows["place"][np.arange(len(rows)), number]
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
        kind=_kinds(fields)[number],
    )


def misplaced(located: Located, sizes: NDArray[np.uint64]) -> tuple[int, str] | None:
    """Position and place of a payload outside of files of these sizes in bytes (uint64, (N,)); None where none is.

    Absent fields count as zero bytes at the start of the first file.
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


def _kinds(fields: tuple[str, ...]) -> NDArray[np.uint8]:
    """The `Located.kind` of each field."""
    return np.array([1 + RAW_FIELDS.index(name) if name in RAW_FIELDS else 0 for name in fields], np.uint8)
