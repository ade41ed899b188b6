"""Batches whose JPEGs the device decodes: where that is done, and the canvas that holds their records until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.errors import OptionError
from iofast.gpu import Bus
from iofast.gpu.batch_memory import BatchMemory, rounded_up
from iofast.loader.canvas import Canvas, RowsToDecode, Uniform
from iofast.loader.finishing import Store, made_there
from iofast.ops import Op
from iofast.work import Work, within

Pixels = NDArray[np.uint8]


def lacking(device: torch.device) -> str | None:
    """Why nothing can be decoded or finished on `device`; None if it can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"it needs an NVIDIA GPU, found device={str(device)!r}"
    if kernel.backend != "native":
        return "it needs iofast's native kernel"
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        extra = "cuda12" if str(torch.version.cuda).startswith("12") else "cuda13"
        return f"it needs cuda-bindings: pip install 'iofast[{extra}]'"
    return None


class Decoding:
    """Where a loader decodes its JPEGs. `description` says it in one line. `obstacles` are reasons for the CPU."""

    def __init__(self, wanted: str, device: torch.device, obstacles: Iterator[str]) -> None:
        self.on_device, self.description = False, "on the CPU"
        self.tables: Tables | None = None
        if wanted == "cpu" or (wanted == "auto" and device.type == "cpu"):
            return
        obstacle = lacking(device) or next(obstacles, None)
        if obstacle is not None:
            if wanted != "auto":
                raise OptionError(f"decode={wanted!r} is not available: {obstacle}")
            self.description = f"on the CPU: {obstacle}"
            return
        self.on_device, self.description, self.tables = True, "on the device", Tables()


class Tables:
    """The Huffman tables of all JPEGs so far, and their copy on the device."""

    def __init__(self) -> None:
        from iofast.gpu.stages import new_tables

        self.array = new_tables()
        self._known, self._codes = 0, torch.empty(0)

    def codes(self, bus: Bus) -> torch.Tensor:
        """Their copy, with at least those that are known by now. One thread calls it."""
        from iofast.gpu.structs import CODES

        count = int(self.array[:4].view(np.int32)[0])
        if count != self._known or not len(self._codes):
            self._codes, self._known = bus.send(torch.from_numpy(self.array)), count
        return self._codes[CODES:]


class There:
    """N images of one size, as records of JPEGs. `lengths` are the payloads' lengths in bytes, (N,).

    `cut` holds boxes, flips and orientations of all rows; their values may change until the batch is complete. Rows
    that the device cannot make have pixels, decoded by the CPU.
    """

    def __init__(
        self,
        size: tuple[int, int],
        lengths: NDArray[np.uint64],
        cut: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]],
        memory: BatchMemory,
        tables: Tables,
    ) -> None:
        from iofast.gpu.jpegs import room
        from iofast.gpu.structs import FILE, OVERREAD

        self.size, self.cut, self.tables = size, cut, tables
        self.places = room(lengths)
        self.bytes = memory.take((rounded_up(int(self.places[-1]) + OVERREAD),))
        self.files = np.zeros(len(lengths), FILE)
        self.given: dict[int, Pixels] = {}
        self.options = kernel.DecodeOptions()

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`. Rows that are decoded again are the CPU's."""
        rows, status = wanted.rows, np.zeros(len(wanted.rows), np.int32)
        left = np.arange(len(rows))
        first = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and not self.files[rows]["width"].any()
        if first and not any(row in self.given for row in rows.tolist()):
            left = self._read(wanted)
        if len(left):
            again, own = wanted.some(left), rows[left]
            outs = [self.given.setdefault(row, np.zeros((*self.size, 3), np.uint8)) for row in own.tolist()]
            self.files[own] = np.zeros(1, self.files.dtype)
            found = np.zeros(len(left), np.int32)
            kernel.decode_each(again.context, again.source, again.boxes, again.flips, outs, found)
            status[left] = found
        return status

    def _read(self, wanted: RowsToDecode) -> NDArray[np.intp]:
        """Make the records of consecutive rows. Return those that are left to the CPU."""
        from iofast.gpu import jpegs
        from iofast.gpu.structs import IMAGE

        rows, count = slice(int(wanted.rows[0]), int(wanted.rows[-1]) + 1), len(wanted.rows)
        self.options = wanted.context.options
        places, files = self.places[rows.start : rows.stop + 1], self.files[rows]
        status, table = np.zeros(count, np.int32), np.zeros(count, IMAGE)
        records = jpegs.Records(self.bytes.numpy(), places, self.tables.array, files, status)
        jpegs.read(wanted.context, wanted.source, records, 0, count)
        crops = jpegs.Crops(wanted.boxes, wanted.flips, wanted.source.orientations)
        jpegs.place(files, crops, table, self.options, self.size)
        return np.flatnonzero(table["refused"])

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self.given[row] = cast(Uniform, other).row(source).copy()
            self.files[row] = np.zeros(1, self.files.dtype)

    def images(self) -> JpegRows:
        """See `Canvas`."""
        return JpegRows(self, np.arange(len(self.files)))


@dataclass(slots=True, eq=False)
class JpegRows:
    """Rows of a `There`, until the device makes images of them.

    `damaged` returns the rows whose JPEGs turned out to be damaged, when the device has decoded them.
    """

    canvas: There
    chosen: NDArray[np.intp]
    damaged: Callable[[], list[int]] | None = None
    _there: tuple[torch.Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def size(self) -> tuple[int, int]:
        return self.canvas.size

    def rows(self, rows: NDArray[np.intp]) -> JpegRows:
        """Some of them."""
        return JpegRows(self.canvas, self.chosen[rows])

    def tensors(self) -> list[torch.Tensor]:
        """What the device needs: records, and pixels of the rows without."""
        given = [self.canvas.given[row] for row in self._left()]
        return [self.canvas.bytes, *([torch.from_numpy(np.stack(given))] if given else [])]

    def with_copies(self, copies: Sequence[torch.Tensor]) -> JpegRows:
        """The same with copies of `tensors` on the device."""
        self._there = tuple(copies)
        return self

    def made(self, ops: Sequence[Op], work: Work | None, store: Store, bus: Bus) -> torch.Tensor:
        """Decode, cut out and finish the images, (N, 3, height, width), for the current stream."""
        from iofast.gpu import jpegs
        from iofast.gpu.images import DeviceImages
        from iofast.gpu.structs import DAMAGED, IMAGE

        canvas, rows, table = self.canvas, self.chosen, np.zeros(len(self.chosen), IMAGE)
        boxes, flips, turns = canvas.cut[0][rows], canvas.cut[1][rows], canvas.cut[2][rows]
        crops = jpegs.Crops(within(boxes, canvas.size) if canvas.options.clip else boxes, flips, turns)
        sizes = jpegs.place(canvas.files[rows], crops, table, canvas.options, canvas.size)
        numbers = {row: 1 + number for number, row in enumerate(self._left())}
        table["refused"] = [numbers.get(row, 0) for row in rows.tolist()]
        data, *given = self._there
        pixels = given[0].permute(0, 3, 1, 2) if given else None
        images = DeviceImages(table, sizes, canvas.size, data, canvas.tables.codes(bus), pixels)
        made = made_there(bus, images, ops, work, store)
        status = bus.fetch(made.status)
        self.damaged = lambda: rows[status().numpy() & DAMAGED != 0].tolist()
        return made.images

    def _left(self) -> list[int]:
        return [row for row in self.chosen.tolist() if row in self.canvas.given]
