"""Images on a device, finished there by the kernel's own source, in a few launches for all of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.gpu.stages import NOTHING, Output, Sizes, clear, prepare
from iofast.gpu.structs import IMAGE
from iofast.gpu.transfer import Bus
from iofast.kernel.contract import Finish

_ALIGNED = 256  # bytes, as the device's own allocator has it


class DeviceImages(NamedTuple):
    """Images that are to be made, each from a JPEG's record, from raw pixels, or from a finished size.

    table    IMAGE (N,), from `jpegs.place`; `sizes` is its result
    size     (height, width) of all
    data     uint8 (bytes,): records, or raw pixels, and `OVERREAD` bytes more; None if there are none
    codes    uint8 (bytes,): Huffman tables; None without JPEGs
    given    uint8 (M, 3, height, width): number n is the image of a row with `refused` = n + 1
    """

    table: NDArray[np.void]
    sizes: Sizes
    size: tuple[int, int]
    data: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    given: torch.Tensor | None = None

    @classmethod
    def of(cls, images: torch.Tensor) -> DeviceImages:
        """Decoded images, uint8 (N, 3, height, width), on the device."""
        table = np.zeros(len(images), IMAGE)
        table["refused"] = 1 + np.arange(len(images))
        return cls(table, (0, 0, 0, 0, 0), (images.shape[2], images.shape[3]), given=images)


class _DeviceMemory:
    """Memory of the current stream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.blocks: dict[str, torch.Tensor] = {}

    def reserve(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """See `Memory`."""
        for name, size in sizes.items():
            self.blocks[name] = torch.empty(max(size, 1), dtype=torch.uint8, device=self._bus.device)
        return {name: self.blocks[name].data_ptr() for name in sizes}

    def zero(self, name: str) -> None:
        """See `Memory`."""
        self.blocks[name].zero_()

    def put(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """See `Memory`. One copy of all."""
        starts, end = {}, 0
        for name, column in columns.items():
            starts[name], end = end, end + -(-column.nbytes // _ALIGNED) * _ALIGNED
        joined = np.empty(max(end, 1), np.uint8)
        for name, column in columns.items():
            joined[starts[name] : starts[name] + column.nbytes] = (
                np.ascontiguousarray(column).reshape(-1).view(np.uint8)
            )
        block = self._bus.send(torch.from_numpy(joined))
        self.blocks[next(iter(columns))] = block
        return {name: block.data_ptr() + start for name, start in starts.items()}


class Made(NamedTuple):
    """Finished images (N, 3, height, width); `status` int32 (N,) on the device, to be tested for `DAMAGED`."""

    images: torch.Tensor
    status: torch.Tensor


def make(
    bus: Bus, images: DeviceImages, finish: Finish, dtype: torch.dtype, memory_format: torch.memory_format
) -> Made:
    """Make and finish images on the current stream. The values are those of the CPU kernel, bit for bit."""
    count, (height, width) = len(images.table), images.size
    shape = (count, 3, height, width)
    out = torch.empty(shape, dtype=dtype, device=bus.device, memory_format=memory_format)
    memory = _DeviceMemory(bus)
    prepared = prepare(memory, Output(images.size, _strides(out), finish), images.table, images.sizes, _given(images))
    clear(memory)
    batch = prepared.batch
    batch["images"] = memory.put({"images": images.table})["images"]
    for name, tensor in (("jpegs", images.data), ("codes", images.codes), ("out", out)):
        batch[name] = 0 if tensor is None else tensor.data_ptr()
    bus.run(prepared)
    status = memory.blocks["taps"].view(torch.int32)[2 * count : 3 * count]
    return Made(out, status)


def _given(images: DeviceImages) -> tuple[int, tuple[int, int, int, int]]:
    return NOTHING if images.given is None else (images.given.data_ptr(), _strides(images.given))


def _strides(images: torch.Tensor) -> tuple[int, int, int, int]:
    """Of images (N, 3, H, W), in bytes: image, row, column, channel."""
    row, channel, y, x = (stride * images.itemsize for stride in images.stride())
    return row, y, x, channel
