"""`cache="device"`: a whole dataset in device memory.

JPEGs with restart markers are kept as they are, and the device decodes what each crop needs. Of small images, and of
other formats, the pixels are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.containers.base import Located
from iofast.kernel.contract import Kind, Payloads
from iofast.loader.decoding import Tables


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Every image of a dataset of n samples in one block of memory on a device.

    data     uint8 (bytes,): upright pixels RGB, or records of JPEGs
    offsets  int64 (n,): where each image begins; `sizes` int64 (n, 2): height and width
    located  the index's rows of all samples
    failed   sample -> why it could not be decoded
    files    FILE (n,): what a GPU has of each sample, zeros where the CPU decodes; None if `data` is in host memory
    tables   the JPEGs' Huffman tables; None if pixels are kept
    """

    data: torch.Tensor
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    located: Located
    failed: Mapping[int, str]
    files: NDArray[np.void] | None
    tables: Tables | None

    def payloads(self, indices: NDArray[np.int64]) -> Payloads:
        """The pixels of some samples in host memory."""
        sizes = self.sizes[indices]
        addresses, lengths = self.data.data_ptr() + self.offsets[indices], 3 * sizes.prod(axis=1)
        indexed = np.column_stack([np.full(len(indices), Kind.RGB), sizes[:, ::-1]])
        return Payloads.in_memory(addresses, lengths, np.ones(len(indices)), indexed)

    def reasons(self, indices: NDArray[np.int64]) -> dict[int, str]:
        """Row of `indices` -> why its sample could not be decoded."""
        numbers = (indices % len(self.sizes)).tolist() if self.failed else []
        return {row: self.failed[number] for row, number in enumerate(numbers) if number in self.failed}
