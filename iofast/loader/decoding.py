"""Where a loader decodes its JPEGs: on the CPU or the device."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import Located, Reader
from iofast.errors import IofastError, OptionError

if TYPE_CHECKING:
    from iofast.gpu import Bus


def lacking(device: torch.device) -> str | None:
    """Why nothing can be decoded or finished on `device`; None if it can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return f"it needs an NVIDIA GPU, found device={str(device)!r}"
    if kernel.backend != "native":
        return "it needs iofast's native kernel"
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        extra = "cuda12" if str(torch.version.cuda).startswith("12") else "cuda13"
        return f"it needs cuda-bindings: pip install 'iofast[{extra}]'"
    return None


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Up to `most` numbers below `count`, as far apart as possible."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def decodes_most(reader: Reader, located: Located) -> bool:
    """Whether a device can decode most of these images: JPEGs with restart markers. True if they cannot be read."""
    from iofast.gpu import jpegs
    from iofast.gpu.stages import new_tables

    count, places, context = len(located.length), jpegs.room(located.length), kernel.Context(kernel.DecodeOptions())
    records = jpegs.Records.of(np.zeros(int(places[-1]), np.uint8), places, new_tables())
    try:
        with reader.payloads(located, 0, count) as source:
            jpegs.read(context, source.checked(False), records)
    except (IofastError, OSError):  # the batch that it belongs to has the error, or a store was late
        return True
    finally:
        context.close()
    return bool((records.status == 0).mean() > 0.5)


class Decoding:
    """Where a loader decodes its JPEGs. `description` says it in one line. `obstacles` are reasons for the CPU."""

    def __init__(self, wanted: str, device: torch.device, obstacles: Iterator[str]) -> None:
        self.description = "on the CPU"
        self.tables: Tables | None = None  # of JPEGs that the device decodes
        if wanted == "cpu" or (wanted == "auto" and device.type == "cpu"):
            return
        obstacle = lacking(device) or next(obstacles, None)
        if obstacle is not None:
            if wanted != "auto":
                raise OptionError(f"decode={wanted!r} is not available: {obstacle}")
            self.description = f"on the CPU: {obstacle}"
            return
        self.description, self.tables = "on the device", Tables()


class Tables:
    """The Huffman tables of all JPEGs so far, and their copy on the device."""

    def __init__(self) -> None:
        from iofast.gpu.stages import new_tables

        self.array = new_tables()
        self._known, self._codes = 0, torch.empty(0)

    def codes(self, bus: Bus) -> torch.Tensor:
        """Their copy, with at least those that are known by now. One thread calls it."""
        from iofast.gpu.structs import CODES

        count = int(self.array[:4].view(np.int32)[0])
        if count != self._known or not len(self._codes):
            self._codes, self._known = bus.send(torch.from_numpy(self.array)), count
        return self._codes[CODES:]
