"""Rows of images to ordinary tensors, by threads where there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.batch_memory import BatchMemory
from iofast.kernel import native_batch
from iofast.run import pointwise
from iofast.run.plan import Plan
from iofast.run.source import Pixels, Source, decode

_TOGETHER = 4  # images in a call of the kernel: their bytes stay in the cache until they are floats
_SPARE = 4  # blocks of memory that are kept for later batches

Erased = tuple[tuple[slice, slice], NDArray[Any] | float]  # what is written where


class Row(NamedTuple):
    """One image: its file, what is done to it, and the rectangles that are overwritten in the end."""

    source: Source
    plan: Plan
    erased: tuple[Erased, ...]


class Threads:
    """What decodes the batches of one loader: its threads, and memory that is used again."""

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, "iofast-run")
        self._memory = {pinned: BatchMemory(pinned=pinned, spare=_SPARE) for pinned in (False, True)}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
        """Return an uninitialised tensor."""
        return self._memory[pinned].take(shape, dtype)


def tensor(
    rows: Sequence[Row], levels: torch.Tensor, *, batched: bool, pinned: bool = False, threads: Threads | None = None
) -> torch.Tensor:
    """Decode rows of one size: (N, 3, height, width), or without N. Raises Pillow's errors, with the file's name."""
    width, height = rows[0].plan.size
    shape = (len(rows), 3, height, width)
    plain = levels is pointwise.unchanged()
    if plain and not batched:  # in memory as `pil_to_tensor` gives it
        out = torch.empty((1, height, width, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    elif threads is None:
        out = torch.empty(shape, dtype=levels.dtype)
    else:
        out = threads.take(shape, levels.dtype, pinned=pinned)
    _each(lambda part: _decode(rows, part, levels, out, plain=plain), len(rows), threads)
    for image, row in zip(out, rows, strict=True):
        for place, value in row.erased:
            image[(slice(None), *place)] = torch.as_tensor(value)
    return out if batched else out[0]


def _each(call: Callable[[list[int]], None], count: int, threads: Threads | None) -> None:
    parts: Iterable[list[int]] = [list(range(count)[at : at + _TOGETHER]) for at in range(0, count, _TOGETHER)]
    for _ in map(call, parts) if threads is None else threads.pool.map(call, parts):
        pass


def _decode(rows: Sequence[Row], part: list[int], levels: torch.Tensor, out: torch.Tensor, *, plain: bool) -> None:
    own = out[part[0] : part[-1] + 1]
    count, _, height, width = own.shape
    pixels: Pixels = own.permute(0, 2, 3, 1).numpy() if plain else np.empty((count, height, width, 3), np.uint8)
    sources, plans = [rows[row].source for row in part], [rows[row].plan for row in part]
    for source, plan in zip(sources, plans, strict=True):
        source.keep(plan)
    for row in decode(sources, plans, pixels):
        pixels[row] = _by_pillow(sources[row], plans[row])
    if plain:
        return
    for image, result in zip(pixels, own, strict=True):
        _through_levels(image, levels, result)


def _through_levels(image: Pixels, levels: torch.Tensor, out: torch.Tensor) -> None:
    table = levels.reshape(3, 256)
    if out.dtype == torch.float32:
        native_batch.levels(image, table.numpy(), out.numpy())
        return
    for channel in range(3):
        out[channel] = table[channel][torch.from_numpy(image[:, :, channel].astype(np.int64))]


def _by_pillow(source: Source, plan: Plan) -> Any:
    try:
        return np.asarray(source.by_pillow(plan, "RGB"))
    except Exception as error:
        error.add_note(f"the image: {source.name}")
        raise
