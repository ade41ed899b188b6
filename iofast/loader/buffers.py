"""Where a batch's pixels live: memory that comes back by itself when the last tensor over it is gone.

Page-locked memory comes from torch's caching host allocator, which alone knows when a copy in flight has ended.
Pageable memory of this size would come fresh from the kernel for each batch, at one page fault per 4 KiB (0.25 us each:
a quarter of the time of decoding the images that go there), so it is kept and used again.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from numpy.typing import NDArray


class BatchMemory:
    """Hands out tensors; holds up to `spare` blocks that nobody uses at the moment."""

    def __init__(self, *, pinned: bool, spare: int) -> None:
        self._pinned, self._spare = pinned, spare
        self._free: list[NDArray[np.uint8]] = []  # append and pop are atomic, and nothing else is
        self._out: dict[int, weakref.ref[NDArray[np.uint8]]] = {}  # by id: arrays, and references to them, have no hash

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A contiguous tensor of `shape` and `dtype`, its contents whatever was there."""
        if self._pinned:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        size = math.prod(shape) * dtype.itemsize
        block = self._find(size)
        # The tensor keeps this view alive, views and copies of its storage keep the tensor's: when the view dies, no
        # tensor is left over the block. Reference counts are never looked at.
        view = block[:size]
        free, out, spare = self._free, self._out, self._spare

        def give_back(dead: weakref.ref[NDArray[np.uint8]]) -> None:
            out.pop(id(dead), None)
            if len(free) < spare:
                free.append(block)

        reference = weakref.ref(view, give_back)
        out[id(reference)] = reference
        return torch.from_numpy(view).view(dtype).view(shape)

    def _find(self, size: int) -> NDArray[np.uint8]:
        try:
            while (block := self._free.pop()).size < size:
                pass
        except IndexError:
            return np.empty(size, np.uint8)
        return block
