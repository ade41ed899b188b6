"""`cache="device"`: a whole dataset in device memory.

JPEGs with restart markers are kept as they are, and the device decodes what each crop needs. Of small images, and of
other formats, the pixels are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.containers.base import Located
from iofast.kernel.contract import Kind, Payloads
from iofast.loader.decoding import Tables


@dataclass(slots=True, eq=False)
class Resident:
    """Every image of a dataset of n samples in one block of memory on a device, which `filling` fills.

    located  the index's rows of all samples
    sizes    int64 (n, 2): height and width
    offsets  int64 (n + 1,): where each image begins, and the end
    files    FILE (n,): what a GPU has of each sample, zeros where the CPU decodes; None if `data` is in host memory
    tables   the JPEGs' Huffman tables; None if pixels are kept
    failed   sample -> why it could not be decoded
    data     uint8 (bytes,): upright pixels RGB, or records of JPEGs
    """

    located: Located
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    files: NDArray[np.void] | None = None
    tables: Tables | None = None
    failed: dict[int, str] = field(default_factory=dict)
    data: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @classmethod
    def of(cls, located: Located, *, on_gpu: bool, jpegs: bool) -> Resident:
        """Where these samples will be; `data` is empty."""
        # at least one pixel: an image of unknown size fails, and the kernel reports why
        sizes = np.maximum(np.stack((located.height, located.width), axis=1), 1).astype(np.int64)
        offsets = np.append(0, np.cumsum(3 * sizes.prod(axis=1)))
        if not on_gpu:
            return cls(located, sizes, offsets)
        from iofast.gpu.jpegs import raw_files, room
        from iofast.gpu.structs import FILE

        if not jpegs:
            return cls(located, sizes, offsets, raw_files(offsets[:-1], sizes))
        return cls(located, sizes, room(located.length), np.zeros(len(sizes), FILE), Tables())

    def payloads(self, indices: NDArray[np.int64]) -> Payloads:
        """The pixels of some samples in host memory."""
        sizes = self.sizes[indices]
        addresses, lengths = self.data.data_ptr() + self.offsets[:-1][indices], 3 * sizes.prod(axis=1)
        indexed = np.column_stack([np.full(len(indices), Kind.RGB), sizes[:, ::-1]])
        return Payloads.in_memory(addresses, lengths, np.ones(len(indices)), indexed)

    def reasons(self, indices: NDArray[np.int64]) -> dict[int, str]:
        """Row of `indices` -> why its sample could not be decoded."""
        numbers = (indices % len(self.sizes)).tolist() if self.failed else []
        return {row: self.failed[number] for row, number in enumerate(numbers) if number in self.failed}
