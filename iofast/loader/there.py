"""Batches whose JPEGs the device decodes: the canvas that holds their records until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.batch_memory import BatchMemory, rounded_up
from iofast.loader.canvas import Canvas, RowsToDecode, Uniform
from iofast.loader.decoding import Tables
from iofast.loader.finishing import made_there
from iofast.loader.plan import SamplePlan
from iofast.loader.spec import BatchSpec
from iofast.loader.unmade import Unmade
from iofast.work import Work

if TYPE_CHECKING:
    from iofast.gpu import Bus

Pixels = NDArray[np.uint8]


class There(Canvas):
    """Images of one size, as records of JPEGs. Rows that the device cannot make have pixels, decoded by the CPU."""

    def __init__(self, plan: SamplePlan, size: tuple[int, int], memory: BatchMemory, tables: Tables) -> None:
        from iofast.gpu.jpegs import room
        from iofast.gpu.structs import FILE, OVERREAD

        super().__init__(plan)
        self.size, self.tables = size, tables
        self.places = room(plan.located.length)
        self.bytes = memory.take((rounded_up(int(self.places[-1]) + OVERREAD),))
        self.files = np.zeros(len(plan), FILE)
        self.given: dict[int, Pixels] = {}
        self.options = kernel.DecodeOptions()

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        status, left = np.zeros(len(wanted.rows), np.int32), self._read(wanted)
        if len(left):
            rest = wanted._replace(source=wanted.source.rows(left), rows=wanted.rows[left])
            status[left] = self.decode_again(rest)
        return status

    def decode_again(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`: by the CPU."""
        context, source, rows, _ = wanted
        outs = [self.given.setdefault(row, np.zeros((*self.size, 3), np.uint8)) for row in rows.tolist()]
        self.files[rows] = np.zeros(1, self.files.dtype)
        status = np.zeros(len(rows), np.int32)
        kernel.decode_each(context, source, self.plan.boxes[rows], self.plan.flips[rows], outs, status)
        return status

    def _read(self, wanted: RowsToDecode) -> NDArray[np.intp]:
        """Make the records of consecutive rows. Return those that are left to the CPU."""
        from iofast.gpu import jpegs
        from iofast.gpu.structs import IMAGE

        context, source, rows, _ = wanted
        count, some = len(rows), slice(int(rows[0]), int(rows[-1]) + 1)
        self.options = context.options
        places, files = self.places[some.start : some.stop + 1], self.files[some]
        status, table = np.zeros(count, np.int32), np.zeros(count, IMAGE)
        jpegs.read(context, source, jpegs.Records(self.bytes.numpy(), places, self.tables.array, files, status))
        crops = jpegs.Crops(self.plan.boxes[some], self.plan.flips[some], source.orientations)
        jpegs.place(files, crops, table, self.options, self.size)
        return np.flatnonzero(table["refused"])

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`: from a `Uniform`."""
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self.given[row] = cast(Uniform, other).row(source).copy()
            self.files[row] = np.zeros(1, self.files.dtype)

    def images(self) -> JpegRows:
        return JpegRows(self, np.arange(len(self.files)))


class JpegRows(Unmade):
    """Rows of a `There`, whose JPEGs the device decodes."""

    def __init__(self, canvas: There, chosen: NDArray[np.intp]) -> None:
        self.canvas, self.chosen, self.size = canvas, chosen, canvas.size

    def __len__(self) -> int:
        return len(self.chosen)

    def rows(self, rows: NDArray[np.intp]) -> JpegRows:
        return JpegRows(self.canvas, self.chosen[rows])

    def tensors(self) -> list[torch.Tensor]:
        """See `Unmade`: records, and pixels of the rows without."""
        given = [self.canvas.given[row] for row in self._left()]
        return [self.canvas.bytes, *([torch.from_numpy(np.stack(given))] if given else [])]

    def made(self, spec: BatchSpec, work: Work | None, bus: Bus | None) -> torch.Tensor:
        from iofast.gpu import jpegs
        from iofast.gpu.images import DeviceImages
        from iofast.gpu.structs import DAMAGED, IMAGE

        assert bus is not None  # only a device decodes these JPEGs
        canvas, rows, table = self.canvas, self.chosen, np.zeros(len(self.chosen), IMAGE)
        plan = canvas.plan
        crops = jpegs.Crops(plan.boxes[rows], plan.flips[rows], plan.located.orientation[rows])
        sizes = jpegs.place(canvas.files[rows], crops, table, canvas.options, canvas.size)
        left = np.isin(rows, self._left()) if canvas.given else np.zeros(len(rows), np.bool_)
        table["refused"] = np.where(left, np.cumsum(left), 0)
        data, *given = self.copies
        pixels = given[0].permute(0, 3, 1, 2) if given else None
        images = DeviceImages(table, sizes, canvas.size, data, canvas.tables.codes(bus), pixels)
        made = made_there(bus, images, spec.pipeline.ops, work, spec.storage)
        status = bus.fetch(made.status)
        self.damaged = lambda: rows[status().numpy() & DAMAGED != 0].tolist()
        return made.images

    def _left(self) -> list[int]:
        return [row for row in self.chosen.tolist() if row in self.canvas.given] if self.canvas.given else []
