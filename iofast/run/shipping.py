"""Lazy tensors on their way to another process: the bytes of the files and a few numbers for each image."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.run import notes, pointwise
from iofast.run.decoding import Erased, Row
from iofast.run.deferred import Contents, Deferred
from iofast.run.plan import Plan, Size
from iofast.run.source import Source


class Shipment(NamedTuple):
    """A pickled lazy tensor. `files` has name, place in `data`, length and size of each; a row names its file."""

    data: torch.Tensor
    files: list[tuple[str, int, int, Size]]
    rows: list[tuple[int, Plan, tuple[Erased, ...]]]
    levels: NDArray[Any]
    batched: bool
    pinned: bool


# Threads in which arriving tensors stay lazy, because the next thread decodes them: those of `loaders`.
waiting: WeakKeyDictionary[threading.Thread, deque[Contents]] = WeakKeyDictionary()


def worthwhile(own: Contents) -> bool:
    """Whether a lazy tensor should travel as files: it is not decoded yet, and they are the smaller part."""
    own.check()
    if own.made is not None or any(row.source.pixels is not None for row in own.rows):
        return False
    width, height = own.rows[0].plan.size
    room = 3 * width * height * own.levels.element_size() * len(own.rows)
    return sum(len(row.source.data) for row in own.rows) < room


def pack(own: Contents) -> Shipment:
    """Return what travels. Raises nothing of its own."""
    numbers: dict[int, int] = {}
    sources: list[Source] = []
    for row in own.rows:
        if numbers.setdefault(id(row.source), len(sources)) == len(sources):
            sources.append(row.source)
    storage = cast(Any, torch.UntypedStorage)._new_shared(sum(len(source.data) for source in sources), device="cpu")
    data = torch.empty(0, dtype=torch.uint8).set_(storage)
    bytes_of, at, files = data.numpy(), 0, []
    for source in sources:
        length = len(source.data)
        bytes_of[at : at + length] = np.frombuffer(source.data, np.uint8)
        files.append((source.name, at, length, source.size))
        at += length
    rows = [(numbers[id(row.source)], row.plan, row.erased) for row in own.rows]
    notes.count("deferred", len(rows))
    notes.write_sometimes()
    return Shipment(data, files, rows, own.levels.numpy(), own.batched, own.pinned)


def arrive(shipment: Shipment) -> Any:
    """Return the tensor: lazy in a thread of `waiting`, ordinary everywhere else."""
    view = memoryview(shipment.data.numpy())  # type: ignore[arg-type]
    sources = [Source(view[at : at + length], size, name) for name, at, length, size in shipment.files]
    rows = tuple(Row(sources[number], Plan._make(plan), erased) for number, plan, erased in shipment.rows)
    own = Contents(
        rows, pointwise.interned(torch.from_numpy(shipment.levels)), shipment.batched, pinned=shipment.pinned
    )
    arrived = waiting.get(threading.current_thread())
    if arrived is None:
        return own.make()
    arrived.append(own)
    return Deferred(own)
