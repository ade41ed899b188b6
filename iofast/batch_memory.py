"""Memory for the pixels of batches, used again when the last tensor over it is gone.

Page-locked memory comes from torch's caching host allocator, which knows when a copy has ended. Fresh pageable memory
costs a page fault per 4 KiB (0.25 us each, a quarter of the decoding time of a batch), so blocks are kept here.

When a tensor dies, only built-in functions run: a Ctrl-C within a Python callback is reported and lost, and with small
batches that hit one Ctrl-C in forty.
"""

import ctypes
import itertools
import math
import threading
import weakref
from collections import deque
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.errors import BatchSizeError

Block = NDArray[np.uint8]

_LINE = 64  # bytes of a cache line
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_thread = threading.local()


class _Loan(weakref.ref[Block]):
    """A weak reference to a view that was handed out; `block` is the memory behind it, free once the view is dead."""

    __slots__ = ("block",)
    block: Block


class BatchMemory:
    """A source of tensors. Keeps up to `spare` unused blocks of pageable memory."""

    def __init__(self, *, pinned: bool, spare: int) -> None:
        self._pinned = pinned
        self._free: deque[_Loan] = deque(maxlen=spare)  # a full deque drops its oldest entry
        self._out: dict[int, tuple[_Loan, weakref.ref[Block]]] = {}  # a weakref must live for its callback to fire
        self._numbers = itertools.count()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Return a contiguous, uninitialised tensor of `shape` and `dtype`."""
        if self._pinned:
            aside()
            return torch.empty(shape, dtype=dtype, pin_memory=True, device="cpu")
        size = math.prod(shape) * dtype.itemsize
        block = self._find(size)
        # Every view and alias of the tensor keeps `view` alive. The death of `view` frees the block.
        view = block[:size]
        loan = _Loan(view, self._free.append)
        loan.block = block
        number = next(self._numbers)
        self._out[number] = loan, weakref.ref(view, partial(self._out.pop, number))
        return torch.from_numpy(view).view(dtype).view(shape)

    def _find(self, size: int) -> Block:
        """Return a block of at least `size` bytes. Smaller spare blocks are dropped."""
        try:
            while (block := self._free.pop().block).size < size:
                pass
        except IndexError:
            try:
                block = np.empty(size + _LINE, np.uint8)
            except MemoryError:
                what = f"a batch needs {size / 1e6:,.0f} MB by the sizes of its images, more memory than there is"
                raise BatchSizeError(f"{what}: give a smaller batch_size, or a transform with one size") from None
            start = -block.ctypes.data % _LINE  # aligned to cache lines, for the kernel's non-temporal stores
            return block[start : start + size]
        return block


def aside() -> None:
    """Let the calling thread use CUDA without ending a graph capture in another thread.

    By default a capture fails as soon as any thread of the process allocates memory or makes an event.
    """
    if getattr(_thread, "aside", False):
        return
    try:
        mode = ctypes.c_int(_RELAXED)
        status = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError):  # no driver, or one without graphs
        status = 0
    _thread.aside = status == 0  # the call fails until the driver is initialised; then try again


def empty(
    memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
) -> torch.Tensor:
    """Return an uninitialised tensor of `shape` (N, C, H, W), contiguous or channels_last."""
    if memory_format == torch.contiguous_format:
        return memory.take(shape, dtype)
    rows, channels, height, width = shape
    return memory.take((rows, height, width, channels), dtype).permute(0, 3, 1, 2)


def rounded_up(count: int) -> int:
    """Round up to a multiple of an eighth of the power of two below, so that blocks of similar sizes serve again."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
