"""Where a batch's pixels live: memory that comes back by itself when the last tensor over it is gone.

Page-locked memory comes from torch's caching host allocator, which alone knows when a copy in flight has ended.
Pageable memory of this size would come fresh from the kernel for each batch, at one page fault per 4 KiB (0.25 us each:
a quarter of the time of decoding the images that go there), so it is kept and used again.

What happens when a tensor dies is done by built-in functions alone. A Ctrl-C that finds the main thread in a callback
written in Python is reported and forgotten there; with small batches that was one Ctrl-C in forty.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.gpu.streams import aside

Block = NDArray[np.uint8]

_LINE = 64  # bytes of a cache line


class _Loan(weakref.ref[Block]):
    """Dies with the view of a block that was handed out, and then stands for the block."""

    __slots__ = ("block",)
    block: Block


class BatchMemory:
    """Hands out tensors; holds up to `spare` blocks that nobody uses at the moment."""

    def __init__(self, *, pinned: bool, spare: int) -> None:
        self._pinned = pinned
        self._free: deque[_Loan] = deque(maxlen=spare)  # a full one drops its oldest
        self._out: dict[int, tuple[_Loan, weakref.ref[Block]]] = {}  # a reference that nobody holds calls nobody back
        self._numbers = itertools.count()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A contiguous tensor of `shape` and `dtype`, its contents whatever was there."""
        if self._pinned:
            aside()
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        size = math.prod(shape) * dtype.itemsize
        block = self._find(size)
        # The tensor keeps this view alive, views and copies of its storage keep the tensor's: when the view dies, no
        # tensor is left over the block. Reference counts are never looked at.
        view = block[:size]
        loan = _Loan(view, self._free.append)
        loan.block = block
        number = next(self._numbers)
        self._out[number] = loan, weakref.ref(view, partial(self._out.pop, number))
        return torch.from_numpy(view).view(dtype).view(shape)

    def _find(self, size: int) -> Block:
        try:
            while (block := self._free.pop().block).size < size:
                pass
        except IndexError:
            block = np.empty(size + _LINE, np.uint8)
            start = -block.ctypes.data % _LINE  # whole lines of the cache, for the kernel stores past it
            return block[start : start + size]
        return block


def empty(
    memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
) -> torch.Tensor:
    """Of shape (N, 3, H, W), stored as `memory_format` says."""
    if memory_format == torch.contiguous_format:
        return memory.take(shape, dtype)
    rows, channels, height, width = shape
    return memory.take((rows, height, width, channels), dtype).permute(0, 3, 1, 2)


def rounded_up(count: int) -> int:
    """Round up to a multiple of an eighth of the power of two below: blocks of nearly one size can be used again."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
