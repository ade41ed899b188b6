"""A decoder of JPEGs with restart markers on the device, by the kernel's own source (kernel/src/device.h).

    read(...)      JPEGs become records, in host memory that is copied to the device, or stays there
    place(...)     what is made of them, and how much working memory that needs
    stages.py      the work itself

Pixels equal `kernel.decode_batch`'s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.gpu.stages import Sizes
from iofast.gpu.structs import FILE
from iofast.kernel import _native
from iofast.kernel.contract import ALL_FILTERS, DecodeOptions, Payloads
from iofast.kernel.native_batch import Context


def room(lengths: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Places of records, and their end: a record replaces a header by places of segments."""
    sizes = lengths.astype(np.int64) + lengths.astype(np.int64) // 8 + 1024
    return np.concatenate([[0], np.cumsum((sizes + 15) // 16 * 16)])


class Crops(NamedTuple):
    """What is wanted of each image, as in `kernel.decode_batch`."""

    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    orientations: NDArray[np.uint8]


class Records(NamedTuple):
    """Where records go: row i to arena[places[i] : places[i + 1]]. Rows with a status are `decode_batch`'s."""

    arena: NDArray[np.uint8]
    places: NDArray[np.int64]
    tables: NDArray[np.uint8]
    files: NDArray[np.void]
    status: NDArray[np.int32]

    @classmethod
    def of(cls, arena: NDArray[np.uint8], places: NDArray[np.int64], tables: NDArray[np.uint8]) -> Records:
        """None of them is made yet."""
        return cls(arena, places, tables, np.zeros(len(places) - 1, FILE), np.zeros(len(places) - 1, np.int32))


def raw_files(places: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.void]:
    """Records of raw RGB pixels at `places`, whose heights and widths are `sizes` (N, 2)."""
    files = np.zeros(len(places), FILE)
    files["place"], files["height"], files["width"] = places, sizes[:, 0], sizes[:, 1]
    return files


def read(context: Context, source: Payloads, to: Records) -> None:
    """Make the records of all rows."""
    _native.device_read(context.handle, *source, *to, 0, len(to.status))


def place(
    files: NDArray[np.void], crops: Crops, images: NDArray[np.void], options: DecodeOptions, size: tuple[int, int]
) -> Sizes:
    """Fill `images`, of which those that are left to `kernel.decode_batch` become `refused` = 1."""
    chosen = ALL_FILTERS.index(options.filter)
    return _native.device_place(files, *crops, images, chosen, options.clip, size[1], size[0])
