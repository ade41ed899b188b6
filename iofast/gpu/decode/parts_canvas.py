"""A canvas for batches that a device decodes: parts of JPEGs, and pixels of rows that the device cannot take.

Decoding threads fill it (`decode`). The device's thread then decodes and crops the parts (`decode_there`) and joins all
rows in one tensor (`gather`). In between, the CPU decodes rows that the device could not (`decode` again), and
replacements of broken samples are copied in (`take`).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.gpu.batch_memory import BatchMemory, rounded_up
from iofast.gpu.decode.backend import Jpeg
from iofast.gpu.decode.decoder import DeviceDecoder
from iofast.gpu.decode.rows import RowsToDecode
from iofast.gpu.transfer import Bus
from iofast.kernel import Parts, Payloads, Status
from iofast.kernel.contract import PART_ROOM
from iofast.pixels.upload import upload
from iofast.work import within

MOST = 1 << 30  # bytes of pixels decoded in one call: 256 photographs of a telephone would take 9 GiB

Pixels = NDArray[np.uint8]


class PartsCanvas:
    """N images of one size; `lengths` are the payloads' lengths in bytes, (N,).

    `cut` holds boxes, flips and orientations of all rows; their values may change until the rows are decoded.
    """

    def __init__(
        self,
        size: tuple[int, int],
        lengths: NDArray[np.uint64],
        cut: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]],
        memory: BatchMemory,
    ) -> None:
        self.size = size
        self._boxes, self._flips, self._turns = cut
        self._extra: dict[int, Pixels] = {}  # rows that the CPU decodes
        room = lengths.astype(np.int64) + PART_ROOM
        places = np.concatenate((np.zeros(1, np.int64), np.cumsum(room)))
        self._bytes = memory.take((rounded_up(int(places[-1])),))
        self._parts = Parts(self._bytes.numpy(), places, np.zeros((len(lengths), len(kernel.PART_COLUMNS)), np.int32))
        self._there_rows: NDArray[np.intp] = np.zeros(0, np.intp)
        self._there: torch.Tensor | None = None  # uint8 (rows there, 3, H, W), on the device
        self._whole: torch.Tensor | None = None

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`. Rows whose JPEGs the device cannot take are decoded on the CPU; the device finishes all."""
        context, source, boxes, flips, rows, _ = wanted
        status = np.zeros(len(rows), np.int32)
        scattered = len(rows) > 0 and rows[-1] - rows[0] >= len(rows)  # parts have room only between neighbours
        is_extra = np.isin(rows, list(self._extra)) | scattered
        there = np.flatnonzero(~is_extra)
        if len(there):
            status[there] = self._take_parts(context, source.rows(there), boxes[there], rows[there])
            # MEMORY: the file has grown since it was indexed
            is_extra |= (status == Status.UNSUPPORTED) | (status == Status.MEMORY)
        extra = np.flatnonzero(is_extra)
        if len(extra):
            extra_status = np.zeros(len(extra), np.int32)
            outs = [self._extra_place(row) for row in rows[extra].tolist()]
            kernel.decode_each(context, source.rows(extra), boxes[extra], flips[extra], outs, extra_status)
            status[extra] = extra_status
        return status

    def decode_there(self, decoder: DeviceDecoder) -> list[int]:
        """Decode and crop on the device, for the current stream. Return the rows that failed, for `decode`."""
        rows = np.flatnonzero(self._parts.table[:, 0])
        nbytes = 3 * self._parts.table[rows, 1].astype(np.int64) * self._parts.table[rows, 2]
        groups = np.split(rows, np.flatnonzero(np.diff(np.cumsum(nbytes) // MOST)) + 1)
        decoded = [self._decoded(decoder, group) for group in groups]
        self._there_rows = np.concatenate([good for good, _ in decoded])
        images = [each for _, each in decoded if each is not None]
        self._there = torch.cat(images) if len(images) > 1 else images[0] if images else None
        failed = [int(row) for row in np.setdiff1d(rows, self._there_rows)]
        for row in failed:
            self._extra_place(row)
        return failed

    def _decoded(self, decoder: DeviceDecoder, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], torch.Tensor | None]:
        """Return the rows that the device could decode, and their images, cropped and resampled."""
        starts, columns = self._parts.places[rows].tolist(), self._parts.table[rows].tolist()
        jpegs = [
            Jpeg(self._bytes[start : start + length], *region)
            for start, (length, *region, _, _) in zip(starts, columns, strict=True)
        ]
        images = decoder.decode(jpegs, self._turns[rows].tolist())
        good = rows[np.array([image is not None for image in images], np.bool_)]
        if not len(good):
            return good, None
        batch = pixels.RaggedBatch.of([image for image in images if image is not None])
        boxes = within(self._boxes[good], self.size)  # as in kernel.part_batch
        boxes[:, :4] -= np.tile(self._parts.table[good, 7:9], 2)
        return good, pixels.augment(batch, boxes, self._flips[good], self.size, dtype=torch.uint8)

    def take(self, rows: NDArray[np.intp], other: Any, of: NDArray[np.intp]) -> None:
        """See `Canvas`. `other` is a `Uniform`."""
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self._extra_place(row)[...] = other.row(source)

    def gather(self, bus: Bus) -> None:
        """Join all rows on the device. Rows that failed hold anything."""
        extra = sorted(self._extra)
        blocks = [torch.from_numpy(self._extra[row][None]).permute(0, 3, 1, 2) for row in extra]
        copied = bus.copy(blocks) if blocks else []
        if self._there is not None and not extra and len(self._there) == len(self._turns):
            self._whole = self._there
            return
        shape = (len(self._turns), 3, *self.size)
        whole = torch.empty(shape, dtype=torch.uint8, device=bus.device, memory_format=torch.channels_last)
        if self._there is not None:
            whole[upload(self._there_rows, bus.device)] = self._there
        if copied:
            whole[upload(np.array(extra, np.intp), bus.device)] = torch.cat(copied)
        self._whole = whole

    def images(self) -> torch.Tensor:
        """Return uint8 (N, 3, H, W) on the device, after `gather`."""
        return cast(torch.Tensor, self._whole)

    @property
    def there(self) -> int:
        """Number of images that the device has decoded."""
        return len(self._there_rows)

    def _take_parts(
        self, context: kernel.Context, source: Payloads, boxes: NDArray[np.int32], rows: NDArray[np.intp]
    ) -> NDArray[np.int32]:
        status = np.zeros(len(rows), np.int32)
        out, places, table = self._parts
        ends = np.append(places[rows], places[rows[-1] + 1])
        parts = Parts(out, ends, np.zeros((len(rows), table.shape[1]), np.int32))
        kernel.part_batch(context, source, boxes, self.size, parts, status, 0, len(rows))
        table[rows] = parts.table
        return status

    def _extra_place(self, row: int) -> Pixels:
        """Return the pixels of a row in host memory, (height, width, 3); from now on the CPU decodes it."""
        return self._extra.setdefault(row, np.zeros((*self.size, 3), np.uint8))
