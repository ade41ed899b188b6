"""Images on a device, finished there by the kernel's own source, in a few launches for all of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.batch_memory import BatchMemory, rounded_up
from iofast.gpu.stages import NOTHING, Output, Sizes, prepare
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
    """Memory of the current stream: a block to work with, and one with copies."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._places: dict[str, slice] = {}
        self._block = self._copies = torch.empty(0)

    def reserve(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """See `Memory`."""
        self._places, end = _places(sizes)
        self._block = torch.empty(rounded_up(end), dtype=torch.uint8, device=self._bus.device)
        return _addresses(self._block, self._places)

    def zero(self, names: Sequence[str]) -> None:
        """See `Memory`."""
        self._block[self._places[names[0]].start : self._places[names[-1]].stop].zero_()

    def put(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """See `Memory`. One copy of all."""
        places, end = _places({name: column.nbytes for name, column in columns.items()})
        joined = BatchMemory(pinned=self._bus.device.type == "cuda", spare=0).take((end,))
        there = joined.numpy()
        for name, column in columns.items():
            there[places[name]] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        self._copies = self._bus.send(joined)
        return _addresses(self._copies, places)

    def reserved(self, name: str) -> torch.Tensor:
        """uint8 (bytes,)."""
        return self._block[self._places[name]]


def _places(sizes: Mapping[str, int]) -> tuple[dict[str, slice], int]:
    """Where so many bytes each go in one block, and its size."""
    places, end = {}, 0
    for name, size in sizes.items():
        places[name], end = slice(end, end + size), end + -(-size // _ALIGNED) * _ALIGNED
    return places, end


def _addresses(block: torch.Tensor, places: Mapping[str, slice]) -> dict[str, int]:
    first = block.data_ptr()
    return {name: first + place.start for name, place in places.items()}


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
    given = NOTHING if images.given is None else (images.given.data_ptr(), _strides(images.given))
    prepared = prepare(memory, Output(images.size, _strides(out), finish), images.table, images.sizes, given)
    batch = prepared.batch
    for name, tensor in (("jpegs", images.data), ("codes", images.codes), ("out", out)):
        batch[name] = 0 if tensor is None else tensor.data_ptr()
    bus.run(prepared)
    status = memory.reserved("taps").view(torch.int32)[2 * count : 3 * count]
    return Made(out, status)


def _strides(images: torch.Tensor) -> tuple[int, int, int, int]:
    """Of images (N, 3, H, W), in bytes: image, row, column, channel."""
    row, channel, y, x = (stride * images.itemsize for stride in images.stride())
    return row, y, x, channel
