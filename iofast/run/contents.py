"""What lazy tensors hold, and how it becomes an ordinary tensor: by threads where there are many images.

Beside the images there are `levels`, (3, 1, 256): the value that each level of each channel has become.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.batch_memory import BatchMemory
from iofast.kernel import native_batch
from iofast.run import notes, shadow
from iofast.run.parts import Part, Pixels, decode

_TOGETHER = 4  # images in a call of the kernel: their bytes stay in the cache until they are floats
_SPARE = 4  # blocks of memory that are kept for later batches
# Levels of pixels as they are decoded, in memory like a tensor that `pil_to_tensor` makes.
BYTES = torch.arange(256, dtype=torch.uint8, device="cpu").repeat_interleave(3).view(1, 256, 3).permute(2, 0, 1)


Job = Callable[[], int]  # decodes some rows, or waits until they are decoded, and returns the nanoseconds of that


class Threads:
    """What decodes the batches of one loop: threads, and memory that is used again, page-locked if it `pins`."""

    def __init__(self, count: int, facts: dict[str, Any], *, pins: bool = False) -> None:
        self.facts, self.pins = facts, pins
        self.memory = BatchMemory(pinned=pins, spare=_SPARE)
        self.under_way: list[Job] = []  # for the batch that arrives
        self._size, self._of = count, 0

    def begin(self, job: Job) -> Job:
        """Let a thread call `job`, and return what waits for it."""
        if self._of != os.getpid():  # a forked process has none of its parent's threads
            self._of, self._pool = os.getpid(), ThreadPoolExecutor(self._size, "iofast-run")
        try:
            return self._pool.submit(job).result
        except RuntimeError:  # at exit Python ends all pools before the threads of a script that it waits for
            return job


def wait_for(jobs: Sequence[Job]) -> None:
    """Wait for jobs. Raises their errors."""
    notes.notes().nanoseconds["decoding for the loop"] += sum(wait() for wait in jobs)


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
    stacked  whether it was copied into a batch. The second time it is made: the script keeps its tensors.
    """

    rows: tuple[Part, ...]
    levels: torch.Tensor
    batched: bool = False
    twin: torch.Tensor | None = None
    made: torch.Tensor | None = None
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, 3, height, width), or without N."""
        width, height = self.rows[0].size
        return (len(self.rows), 3, height, width) if self.batched else (3, height, width)

    def make(self) -> torch.Tensor:
        """Return the ordinary tensor; it is made once. Raises Pillow's errors, with the file's name."""
        self.check()
        if self.made is None:
            self.made = self._decoded()[0]
            for row in self.rows:
                row.note()
        return self.made

    def check(self) -> None:
        """Compare the tensor with its twin, if it has one. Where they differ, the twin is right."""
        twin, self.twin = self.twin, None
        if twin is not None and not shadow.agree(self._decoded()[0].numpy(), twin.numpy(), self.rows[0].source.name):
            self.made = twin

    def begin(self, threads: Threads) -> tuple[torch.Tensor, list[Job]]:
        """Return the ordinary tensor, and what its values have to wait for."""
        threads.facts["decoded"] += len(self.rows)
        notes.count("decoded for the loop", len(self.rows))
        return self._decoded(threads)

    def _decoded(self, threads: Threads | None = None) -> tuple[torch.Tensor, list[Job]]:
        empty: Any = partial(torch.empty, device="cpu") if threads is None else threads.memory.take
        plain = same(self.levels, BYTES)
        *_, height, width = self.shape
        if plain and not self.batched and not self.levels.is_contiguous():  # in memory as `pil_to_tensor` gives it
            tensor = empty((height, width, 3), dtype=torch.uint8).permute(2, 0, 1)
        else:
            tensor = empty(self.shape, dtype=self.levels.dtype)
        # By NumPy: torch does not let threads write what inference_mode() has made.
        out = (tensor if self.batched else tensor[None]).numpy()
        table = self.levels.reshape(3, 256).contiguous().numpy()

        def decode_from(at: int) -> int:
            begun = time.thread_time_ns()
            rows, values = self.rows[at : at + _TOGETHER], out[at : at + _TOGETHER]
            if plain:
                decode(rows, values.transpose(0, 2, 3, 1))
            else:
                pixels: Pixels = np.empty((len(rows), height, width, 3), np.uint8)
                decode(rows, pixels)
                for image, result in zip(pixels, values, strict=True):
                    _look_up(table, image, result)
            for row, result in zip(rows, values, strict=True):
                for place, value in row.erased:
                    result[(slice(None), *place)] = value
            return time.thread_time_ns() - begun

        jobs = [partial(decode_from, at) for at in range(0, len(self.rows), _TOGETHER)]
        if threads is not None:
            return tensor, [threads.begin(job) for job in jobs]
        for job in jobs:
            job()
        return tensor, []


def _look_up(table: NDArray[Any], image: Pixels, out: NDArray[Any]) -> None:
    if out.dtype == np.float32:
        native_batch.levels(image, table, out)
    else:
        for channel in range(3):
            out[channel] = table[channel][image[:, :, channel]]
