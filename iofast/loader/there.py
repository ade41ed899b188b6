"""Batches whose images the device makes: of JPEGs' records, or of a dataset in its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.batch_memory import BatchMemory, rounded_up
from iofast.loader.canvas import Canvas, RowsToDecode
from iofast.loader.decoding import Tables
from iofast.loader.finishing import made_there
from iofast.loader.plan import SamplePlan
from iofast.loader.resident import Resident
from iofast.loader.spec import BatchSpec
from iofast.work import Work

if TYPE_CHECKING:
    from iofast.gpu import Bus
    from iofast.gpu.stages import Sizes


class There(Canvas):
    """Images of one size that the device makes. Rows that it cannot make have pixels, decoded by the CPU.

    here    host memory that it needs for that, to be copied; `kept`: memory that it has already
    files   FILE (N,): what of it belongs to each row, zeros for those with pixels; `given`: row -> its pixels
    tables  the JPEGs' Huffman tables; None if the device has pixels
    """

    here: tuple[torch.Tensor, ...] = ()
    kept: tuple[torch.Tensor, ...] = ()

    def __init__(self, plan: SamplePlan, size: tuple[int, int], files: NDArray[np.void], tables: Tables | None) -> None:
        super().__init__(plan)
        self.size, self.files, self.tables = size, files, tables
        self.given: dict[int, NDArray[np.uint8]] = {}

    def placed(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.void], Sizes]:
        """What the device is to make of `rows`, IMAGE (N,): those that it cannot make are `refused`."""
        from iofast.gpu import jpegs
        from iofast.gpu.structs import IMAGE

        plan, table = self.plan, np.zeros(len(rows), IMAGE)
        turns = np.ones(len(rows), np.uint8) if self.tables is None else plan.located.orientation[rows]
        crops = jpegs.Crops(plan.boxes[rows], plan.flips[rows], turns)
        return table, jpegs.place(self.files.take(rows), crops, table, plan.parts.spec.decode, self.size)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`: by the CPU."""
        context, source, rows, _ = wanted
        outs = [self.given.setdefault(row, np.zeros((*self.size, 3), np.uint8)) for row in rows.tolist()]
        self.files[rows] = np.zeros(1, self.files.dtype)
        status = np.zeros(len(rows), np.int32)
        kernel.decode_each(context, source, self.plan.boxes[rows], self.plan.flips[rows], outs, status)
        return status

    def images(self) -> Unmade:
        return Unmade(self, np.arange(len(self.files)))


class SentJpegs(There):
    """Images that the device decodes from records of their JPEGs, which are sent to it with the batch."""

    def __init__(self, plan: SamplePlan, size: tuple[int, int], memory: BatchMemory, tables: Tables) -> None:
        from iofast.gpu.jpegs import room
        from iofast.gpu.structs import FILE, OVERREAD

        super().__init__(plan, size, np.zeros(len(plan), FILE), tables)
        self._array = tables.array
        self._places = room(plan.located.length)
        self.here = (memory.take((rounded_up(int(self._places[-1]) + OVERREAD),)),)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`: make the records of consecutive rows, and decode by the CPU those that are left to it."""
        from iofast.gpu import jpegs

        context, source, rows, _ = wanted
        some, unread = slice(int(rows[0]), int(rows[-1]) + 1), np.zeros(len(rows), np.int32)
        places, arena = self._places[some.start : some.stop + 1], self.here[0].numpy()
        jpegs.read(context, source, jpegs.Records(arena, places, self._array, self.files[some], unread))
        status, left = np.zeros(len(rows), np.int32), np.flatnonzero(self.placed(rows)[0]["refused"])
        if len(left):
            status[left] = self.decode_again(wanted._replace(source=source.rows(left), rows=rows[left]))
        return status

    def decode_again(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        return super().decode(wanted)


class KeptImages(There):
    """Images that are cut out of a dataset in the device's memory."""

    def __init__(self, plan: SamplePlan, size: tuple[int, int], resident: Resident) -> None:
        assert resident.files is not None
        super().__init__(plan, size, resident.files.take(plan.indices), resident.tables)
        self.kept, self._resident_files = (resident.data,), resident.files

    def to_read(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """See `Canvas`: those that the device cannot make."""
        refused = rows[self.placed(rows)[0]["refused"] != 0].tolist()
        return np.array([row for row in refused if row not in self.plan.reasons], np.intp)

    def renew(self, rows: NDArray[np.intp]) -> None:
        self.files[rows] = self._resident_files.take(self.plan.indices[rows])
        for row in rows.tolist():
            self.given.pop(row, None)


class Unmade:
    """Rows of a `There`, which the device makes when their batch is complete."""

    copies: tuple[torch.Tensor, ...] = ()  # of `tensors`, on the device
    damaged: Callable[[], list[int]] | None = None  # rows that turned out to be damaged, once they are made

    def __init__(self, canvas: There, chosen: NDArray[np.intp]) -> None:
        self._canvas, self._chosen, self.size = canvas, chosen, canvas.size

    def __len__(self) -> int:
        return len(self._chosen)

    def rows(self, rows: NDArray[np.intp]) -> Unmade:
        """Some of them."""
        return Unmade(self._canvas, self._chosen[rows])

    def tensors(self) -> list[torch.Tensor]:
        """What the device needs for them: records, and pixels of the rows without."""
        given = [self._canvas.given[row] for row in self._left()]
        return [*self._canvas.here, *([torch.from_numpy(np.stack(given))] if given else [])]

    def with_copies(self, copies: Sequence[torch.Tensor]) -> Unmade:
        """The same with copies of `tensors` on the device."""
        self.copies = tuple(copies)
        return self

    def made(self, spec: BatchSpec, work: Work | None, bus: Bus) -> torch.Tensor:
        """Make and finish them, (N, 3, height, width), on the current stream of the device."""
        from iofast.gpu.images import DeviceImages
        from iofast.gpu.structs import DAMAGED

        canvas, rows = self._canvas, self._chosen
        table, sizes = canvas.placed(rows)
        left = np.isin(rows, self._left())
        table["refused"] = np.where(left, np.cumsum(left), 0)
        data, *given = *canvas.kept, *self.copies
        pixels = given[0].permute(0, 3, 1, 2) if given else None
        codes = None if canvas.tables is None else canvas.tables.codes(bus)
        images = DeviceImages(table, sizes, canvas.size, data, codes, pixels)
        made = made_there(bus, images, spec.pipeline.ops, work, spec.storage)
        if canvas.here:  # kept JPEGs were decoded once before, to find damage
            status = bus.fetch(made.status)
            self.damaged = lambda: rows[status().numpy() & DAMAGED != 0].tolist()
        return made.images

    def _left(self) -> list[int]:
        return [row for row in self._chosen.tolist() if row in self._canvas.given] if self._canvas.given else []
