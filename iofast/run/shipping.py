"""Lazy tensors on their way to another process: the bytes of the files and a few numbers for each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.run import pointwise
from iofast.run.plan import Plan, Size
from iofast.run.source import Erased, Part, Source


class Shipment(NamedTuple):
    """A pickled lazy tensor. `files` has name, place in `data`, length and size of each; a row names its file."""

    data: torch.Tensor
    files: list[tuple[str, int, int, Size]]
    rows: list[tuple[int, Plan, tuple[Erased, ...]]]
    levels: NDArray[Any]
    batched: bool
    pinned: bool


def smaller(rows: Sequence[Part], levels: torch.Tensor) -> bool:
    """Whether the files of some rows are smaller than the tensor that is made of them."""
    width, height = rows[0].plan.size
    return sum(len(row.source.data) for row in rows) < 3 * width * height * levels.element_size() * len(rows)


def pack(rows: Sequence[Part], levels: torch.Tensor, *, batched: bool, pinned: bool) -> Shipment:
    """Return what travels. The files are in shared memory, once each."""
    numbers: dict[int, int] = {}
    sources: list[Source] = []
    for row in rows:
        if numbers.setdefault(id(row.source), len(sources)) == len(sources):
            sources.append(row.source)
    storage = cast(Any, torch.UntypedStorage)._new_shared(sum(len(source.data) for source in sources), device="cpu")
    data = torch.empty(0, dtype=torch.uint8).set_(storage)
    room, at, files = data.numpy(), 0, []
    for source in sources:
        length = len(source.data)
        room[at : at + length] = np.frombuffer(source.data, np.uint8)
        files.append((source.name, at, length, source.size))
        at += length
    packed = [(numbers[id(row.source)], row.plan, row.erased) for row in rows]
    return Shipment(data, files, packed, levels.numpy(), batched, pinned)


def unpack(shipment: Shipment) -> tuple[tuple[Part, ...], torch.Tensor]:
    """Return rows and levels."""
    view = memoryview(shipment.data.numpy())  # type: ignore[arg-type]
    sources = [Source(view[at : at + length], size, name) for name, at, length, size in shipment.files]
    rows = tuple(Part(sources[number], plan, erased) for number, plan, erased in shipment.rows)
    return rows, pointwise.interned(torch.from_numpy(shipment.levels))
