"""A whole dataset as pixels in the device's memory, and how a batch is made of it there: `cache="device"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.containers.base import Located
from iofast.loader.options import LoaderOptions
from iofast.transforms import Pipeline
from iofast.work import Work, fits, within


@dataclass(frozen=True, slots=True, eq=False)
class PlannedImages:
    """The images of a batch before they are made: which ones, and what is cut out of them.

    indices  int64 (N,): samples of the dataset
    boxes    int32 (N, 8), flips uint8 (N,): what `Pipeline.plan` made for them
    size     (height, width) of all
    """

    indices: NDArray[np.int64]
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self, rows: NDArray[np.intp]) -> PlannedImages:
        """Some of them."""
        return PlannedImages(self.indices[rows], self.boxes[rows], self.flips[rows], self.size)

    def outside(self, widths: NDArray[np.int32], heights: NDArray[np.int32], *, clip: bool) -> NDArray[np.bool_]:
        """Which boxes do not lie within images of `widths` x `heights`, bool (N,); windows need not with `clip`."""
        x0, y0, x1, y1 = self.boxes[:, :4].T
        inside = (x0 >= 0) & (x0 < x1) & (x1 <= widths) & (y0 >= 0) & (y0 < y1) & (y1 <= heights)
        return np.asarray(~(inside if clip else inside & fits(self.boxes, self.size)))


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Every image of a dataset of n samples, decoded, upright, uint8 RGB, in one block of memory on a device.

    data     uint8 (bytes,)
    offsets  int64 (n,): where each image begins
    sizes    int64 (n, 2): height and width
    located  what the index says of all samples
    failed   sample -> why it could not be decoded; it has zeros for pixels
    broken   bool (n,): whether it is one of these
    """

    data: torch.Tensor
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    located: Located
    failed: Mapping[int, str]
    broken: NDArray[np.bool_]

    def reasons(self, draft: PlannedImages, located: Located, *, clip: bool) -> dict[int, str]:
        """Rows of `draft` that cannot be made, and why; `located` are its samples."""
        outside = draft.outside(located.width, located.height, clip=clip)
        bad = np.flatnonzero(self.broken[draft.indices] | outside).tolist()
        box = kernel.status_message(kernel.Status.BOX)
        return {row: self.failed.get(int(draft.indices[row]) % len(self.sizes), box) for row in bad}

    def images(
        self, pipeline: Pipeline, options: LoaderOptions, draft: PlannedImages, work: Work | None
    ) -> torch.Tensor:
        """The finished images, (N, 3, height, width), made on the current stream."""
        batch = pixels.RaggedBatch(self.data, self.offsets[draft.indices], self.sizes[draft.indices])
        return pixels.augment(
            batch,
            within(draft.boxes, draft.size),
            draft.flips,
            draft.size,
            pipeline.ops,
            work=work,
            dtype=options.dtype,
            memory_format=options.memory_format,
        )
