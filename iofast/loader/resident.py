"""`cache="device"`: a whole dataset in device memory, and the batches that are cut from it.

JPEGs with restart markers are kept as they are, and the device decodes what each crop needs. Of small images, and of
other formats, the pixels are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.boxes import REGION, fits, within
from iofast.containers.base import Located
from iofast.containers.changed import Rows, decode_again
from iofast.errors import DecodeError
from iofast.kernel.contract import MESSAGES, Kind, Payloads, Status
from iofast.loader.finishing import finished, made_there, rows_of
from iofast.loader.spec import BatchSpec
from iofast.loader.unmade import Unmade
from iofast.work import Work

if TYPE_CHECKING:
    from iofast.gpu import Bus


class KeptJpegs(NamedTuple):
    """What device memory has of each of n samples: FILE (n,), zeros where the CPU decodes; and Huffman tables there."""

    files: NDArray[np.void]
    codes: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Every image of a dataset of n samples in one block of memory on a device.

    data     uint8 (bytes,): upright pixels RGB, or records of JPEGs
    offsets  int64 (n,): where each image begins; `sizes` int64 (n, 2): height and width
    located  the index's rows of all samples
    jpegs    None if pixels are kept
    failed   sample -> why it could not be decoded; `broken` bool (n,): whether a sample is in `failed`
    """

    data: torch.Tensor
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    located: Located
    jpegs: KeptJpegs | None
    failed: Mapping[int, str]
    broken: NDArray[np.bool_]

    def images(self, spec: BatchSpec, draft: PlannedImages, work: Work | None, bus: Bus | None) -> torch.Tensor:
        """Cut out and finish images, (N, 3, height, width), on the current stream of the device, or in host memory."""
        storage, ops = spec.storage, spec.pipeline.ops
        if bus is None:
            cut = torch.empty((len(draft), 3, *draft.size), dtype=torch.uint8, memory_format=storage.memory_format)
            self._cut_on_host(draft, rows_of(cut))
            plain = spec.dtype == torch.uint8 and not spec.pipeline.finishes
            return cut if plain else finished(cut, ops, work, torch.empty_like(cut, dtype=spec.dtype))
        from iofast.gpu import jpegs
        from iofast.gpu.images import DeviceImages
        from iofast.gpu.structs import IMAGE

        table, rows = np.zeros(len(draft), IMAGE), draft.indices
        turns = np.ones(len(draft), np.uint8) if self.jpegs is None else self.located.orientation[rows]
        files = jpegs.raw_files(self.offsets[rows], self.sizes[rows]) if self.jpegs is None else self.jpegs.files[rows]
        options = kernel.DecodeOptions(filter=spec.decode.filter, clip=True)
        sizes = jpegs.place(files, jpegs.Crops(draft.boxes, draft.flips, turns), table, options, draft.size)
        left, given = np.flatnonzero(table["refused"]), None
        if len(left):
            table["refused"][left] = 1 + np.arange(len(left))
            given = bus.send(torch.from_numpy(self._decoded(spec, draft.rows(left)))).permute(0, 3, 1, 2)
        codes = None if self.jpegs is None else self.jpegs.codes
        images = DeviceImages(table, sizes, draft.size, self.data, codes, given)
        return made_there(bus, images, ops, work, storage).images

    def _decoded(self, spec: BatchSpec, draft: PlannedImages) -> NDArray[np.uint8]:
        """Images that the device leaves to the CPU, (N, height, width, 3); broken ones are zeros.

        Raises `DecodeError` if an image has been damaged since it was put into device memory.
        """
        out, all_rows = np.zeros((len(draft), *draft.size, 3), np.uint8), np.arange(len(draft))
        context, boxes = kernel.Context(spec.decode), within(draft.boxes, draft.size)
        reader, located = spec.dataset.reader, self.located.rows(draft.indices)

        def decode(source: Payloads, rows: NDArray[np.intp]) -> NDArray[np.int32]:
            return kernel.decode_into(context, source, boxes[rows], draft.flips[rows], out, rows)

        with reader.payloads(located, 0, len(draft)) as source:
            status = decode(source, all_rows)
            if status.any():
                decode_again(Rows(reader, located, all_rows, source), status, decode, lambda rows: rows < 0)
            context.close()
            for row in np.flatnonzero((status != 0) & ~self.broken[draft.indices]).tolist():
                name = reader.name(int(located.indices[row]))
                raise DecodeError(f"{name}: {kernel.failure(int(status[row]), source, row)}")
        return out

    def _cut_on_host(self, draft: PlannedImages, out: NDArray[np.uint8]) -> None:
        """The same by the CPU; rows that failed hold anything."""
        count, sizes = len(draft), self.sizes[draft.indices]
        addresses, lengths = self.data.data_ptr() + self.offsets[draft.indices], 3 * sizes.prod(axis=1)
        indexed = np.column_stack([np.full(count, Kind.RGB), sizes[:, ::-1]])
        source = Payloads.in_memory(addresses, lengths, np.ones(count), indexed)
        context = kernel.Context(kernel.DecodeOptions())
        kernel.decode_into(context, source, within(draft.boxes, draft.size), draft.flips, out, np.arange(count))
        context.close()


@dataclass(eq=False)
class PlannedImages(Unmade):
    """The images of a batch before they are cut out of a `Resident`.

    indices  int64 (N,): samples of the dataset
    boxes    int32 (N, 8), flips uint8 (N,): from `Pipeline.plan`
    size     (height, width) of all
    """

    resident: Resident
    indices: NDArray[np.int64]
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self, rows: NDArray[np.intp]) -> PlannedImages:
        return PlannedImages(self.resident, self.indices[rows], self.boxes[rows], self.flips[rows], self.size)

    def reasons(self, located: Located, *, clip: bool) -> dict[int, str]:
        """Row -> why it cannot be made; `located` are the samples. With `clip` a box's window may leave its image."""
        x0, y0, x1, y1 = self.boxes[:, REGION].T
        inside = (x0 >= 0) & (x0 < x1) & (x1 <= located.width) & (y0 >= 0) & (y0 < y1) & (y1 <= located.height)
        inside = inside if clip else inside & fits(self.boxes, self.size)
        failed, count = self.resident.failed, len(self.resident.sizes)
        bad = np.flatnonzero(self.resident.broken[self.indices] | ~inside).tolist()
        box = MESSAGES[Status.BOX]
        return {row: failed.get(int(self.indices[row]) % count, box) for row in bad}

    def made(self, spec: BatchSpec, work: Work | None, bus: Bus | None) -> torch.Tensor:
        return self.resident.images(spec, self, work, bus)
