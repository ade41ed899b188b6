"""Gray images of 16 bits, by Pillow: the one way there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel import depth, pillow, resampling, twin
from iofast.kernel.contract import ALL_FILTERS, DecodeOptions, Kind, Payloads, Status


def decode_wide(
    given: DecodeOptions,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[np.uint16],
    status: NDArray[np.int32],
) -> None:
    """`decode_batch` of all rows, into `out` (N, height, width) of levels from 0 to 65,535.

    Images with fewer bits, or in colour, become gray of 16 bits: white is 65,535.
    """
    for row in range(len(status)):
        box = tuple(boxes[row].tolist())
        filter = int(flips[row]) >> 1
        options = replace(given, filter=ALL_FILTERS[filter - 1]) if filter else given
        try:
            levels = _window(source, row, box, (out.shape[2], out.shape[1]), options)
            out[row] = levels[:, ::-1] if flips[row] & 1 else levels
            status[row] = Status.OK
        except Exception as error:  # a damaged image raises whatever it likes; one row must never end a batch
            out[row] = 0
            status[row] = pillow.failure(error).status


def _window(
    source: Payloads, row: int, box: tuple[int, ...], size: tuple[int, int], options: DecodeOptions
) -> NDArray[np.uint16]:
    what = None if source.indexed is None else source.indexed[row].tolist()
    if what is None or what[0] == Kind.ENCODED:
        stored: Image.Image = twin.open_row(source, row, box, size, options).image
        stored.load()
    else:
        stored = twin.raw_row(source, row, what, box, size, options)
    turned = pillow.turn(Image.fromarray(depth.to_wide(stored).astype(np.float32)), int(source.orientations[row]))
    made: NDArray[np.float32] = np.asarray(resampling.resample(turned, box, size, options.filter))
    return np.asarray(np.rint(made).clip(0, 65535), np.uint16)  # negative lobes overshoot
