"""Rows of images to ordinary tensors, by threads where there are many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from iofast.batch_memory import BatchMemory
from iofast.kernel import native_batch
from iofast.run import pointwise
from iofast.run.source import Part, Pixels, decode

_TOGETHER = 4  # images in a call of the kernel: their bytes stay in the cache until they are floats
_SPARE = 4  # blocks of memory that are kept for later batches


class Threads:
    """What decodes the batches of one loader: its threads, and memory that is used again."""

    def __init__(self, count: int) -> None:
        self._count, self._of = count, 0
        self._memory = {pinned: BatchMemory(pinned=pinned, spare=_SPARE) for pinned in (False, True)}

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The threads of this process: a forked one has none of its parent's."""
        if self._of != os.getpid():
            self._of, self._pool = os.getpid(), ThreadPoolExecutor(self._count, "iofast-run")
        return self._pool

    def each(self, function: Callable[[int], None], numbers: Iterable[int]) -> None:
        """Call a function with each number."""
        try:
            calls = self.pool.map(function, numbers)
        except RuntimeError:  # at exit Python ends all pools before the threads of a script that it waits for
            calls = map(function, numbers)
        for _ in calls:
            pass

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
        """Return an uninitialised tensor."""
        return self._memory[pinned].take(shape, dtype)


def tensor(
    rows: Sequence[Part], levels: torch.Tensor, *, batched: bool, pinned: bool = False, threads: Threads | None = None
) -> torch.Tensor:
    """Decode rows of one size: (N, 3, height, width), or without N. Raises Pillow's errors, with the file's name."""
    width, height = rows[0].plan.size
    shape = (len(rows), 3, height, width)
    plain = levels is pointwise.unchanged()
    if plain and not batched:  # in memory as `pil_to_tensor` gives it
        out = torch.empty((1, height, width, 3), dtype=torch.uint8, device="cpu").permute(0, 3, 1, 2)
    elif threads is None:
        out = torch.empty(shape, dtype=levels.dtype, device="cpu")
    else:
        out = threads.take(shape, levels.dtype, pinned=pinned)
    starts = range(0, len(rows), _TOGETHER)

    def decode_from(at: int) -> None:
        _decode(rows[at : at + _TOGETHER], levels, out[at : at + _TOGETHER], plain=plain)

    if threads is not None:
        threads.each(decode_from, starts)
    else:
        for at in starts:
            decode_from(at)
    for image, row in zip(out, rows, strict=True):
        for place, value in row.erased:
            image[(slice(None), *place)] = torch.as_tensor(value)
    return out if batched else out[0]


def _decode(rows: Sequence[Part], levels: torch.Tensor, out: torch.Tensor, *, plain: bool) -> None:
    count, _, height, width = out.shape
    pixels: Pixels = out.permute(0, 2, 3, 1).numpy() if plain else np.empty((count, height, width, 3), np.uint8)
    for row in rows:
        row.source.keep(row.plan)
    for number in decode(rows, pixels):
        pixels[number] = np.asarray(rows[number].by_pillow("RGB"))
    if plain:
        return
    for image, result in zip(pixels, out, strict=True):
        _through_levels(image, levels, result)


def _through_levels(image: Pixels, levels: torch.Tensor, out: torch.Tensor) -> None:
    table = levels.reshape(3, 256)
    if out.dtype == torch.float32:
        native_batch.levels(image, table.numpy(), out.numpy())
        return
    for channel in range(3):  # by NumPy: torch does not let threads write what inference_mode() has made
        out[channel].numpy()[:] = table[channel].numpy()[image[:, :, channel]]
