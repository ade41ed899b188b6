"""What lazy tensors hold, and how it becomes an ordinary tensor: by threads where there are many images.

Beside the images there are `levels`, (3, 1, 256): the value that each level of each channel has become.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from iofast.batch_memory import BatchMemory
from iofast.kernel import native_batch
from iofast.run import notes, shadow
from iofast.run.parts import Part
from iofast.run.source import Pixels, decode

_TOGETHER = 4  # images in a call of the kernel: their bytes stay in the cache until they are floats
_SPARE = 4  # blocks of memory that are kept for later batches
# Levels of pixels as they are decoded, in memory like a tensor that `pil_to_tensor` makes.
BYTES = torch.arange(256, dtype=torch.uint8, device="cpu").repeat_interleave(3).view(1, 256, 3).permute(2, 0, 1)


class Threads:
    """What decodes the batches of one loop: threads, and memory that is used again."""

    def __init__(self, count: int) -> None:
        self._count, self._of = count, 0
        self.memory = {pinned: BatchMemory(pinned=pinned, spare=_SPARE) for pinned in (False, True)}
        self.under_way: list[Callable[[], int]] = []  # what returns the time of a job, as soon as it is done

    def begin(self, job: Callable[[int], int], number: int) -> None:
        """Let a thread call `job` with a number."""
        if self._of != os.getpid():  # a forked process has none of its parent's threads
            self._of, self._pool = os.getpid(), ThreadPoolExecutor(self._count, "iofast-run")
        try:
            self.under_way.append(self._pool.submit(job, number).result)
        except RuntimeError:  # at exit Python ends all pools before the threads of a script that it waits for
            self.under_way.append(partial(job, number))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether levels are the same."""
    return one is other or (one.dtype == other.dtype and torch.equal(one, other))


@dataclass(slots=True)
class Contents:
    """What a lazy tensor and its aliases share.

    rows     images of one size
    levels   their arithmetic so far
    batched  whether there is a dimension for the rows
    twin     the same tensor by the script's libraries, while an image is checked
    made     the ordinary tensor, as soon as it was needed
    pinned   whether it will be in page-locked memory
    stacked  whether it was copied into a batch. The second time it is made: the script keeps its tensors.
    """

    rows: tuple[Part, ...]
    levels: torch.Tensor
    batched: bool = False
    twin: torch.Tensor | None = None
    made: torch.Tensor | None = None
    pinned: bool = False
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, 3, height, width), or without N."""
        width, height = self.rows[0].size
        return (len(self.rows), 3, height, width) if self.batched else (3, height, width)

    def make(self, threads: Threads | None = None) -> torch.Tensor:
        """Return the ordinary tensor; it is made once, by `threads` a while after. Raises Pillow's errors."""
        self.check()
        if self.made is None:
            self.made = self._decoded(threads)
            for row in () if threads else self.rows:
                row.note()
        return self.made

    def check(self) -> None:
        """Compare the tensor with its twin, if it has one. Where they differ, the twin is right."""
        twin, self.twin = self.twin, None
        if twin is not None and not shadow.agree(self._decoded().numpy(), twin.numpy(), self.rows[0].source.name):
            self.made = twin

    def _decoded(self, threads: Threads | None = None) -> torch.Tensor:
        plain = same(self.levels, BYTES)
        *_, height, width = self.shape
        if plain and not self.batched:  # in memory as `pil_to_tensor` gives it
            tensor = torch.empty((height, width, 3), dtype=torch.uint8, device="cpu").permute(2, 0, 1)
        elif threads is None:
            tensor = torch.empty(self.shape, dtype=self.levels.dtype, device="cpu")
        else:
            tensor = threads.memory[self.pinned].take(self.shape, self.levels.dtype)
        out = tensor if self.batched else tensor[None]

        def decode_from(at: int) -> int:
            begun = time.thread_time_ns()
            self._decode(self.rows[at : at + _TOGETHER], out[at : at + _TOGETHER], plain=plain)
            return time.thread_time_ns() - begun

        for at in range(0, len(self.rows), _TOGETHER):
            if threads is None:
                decode_from(at)
            else:
                threads.begin(decode_from, at)
        if threads:
            notes.count("decoded for the loop", len(self.rows))
        return tensor

    def _decode(self, rows: Sequence[Part], out: torch.Tensor, *, plain: bool) -> None:
        """Decode some rows into NumPy's view of memory: torch does not let threads write what inference_mode() made."""
        result = out.numpy()
        count, _, height, width = result.shape
        pixels: Pixels = result.transpose(0, 2, 3, 1) if plain else np.empty((count, height, width, 3), np.uint8)
        decode(rows, pixels)
        table = self.levels.reshape(3, 256).contiguous().numpy()
        for row, image, values in zip(rows, pixels, result, strict=True):
            if not plain and values.dtype == np.float32:
                native_batch.levels(image, table, values)
            elif not plain:
                for channel in range(3):
                    values[channel] = table[channel][image[:, :, channel]]
            for place, value in row.erased:
                values[(slice(None), *place)] = value
