"""Where the pixels of some samples go: one block of memory, or images of different sizes each in its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.batch_memory import BatchMemory, empty, rounded_up
from iofast.boxes import HEIGHT, WIDTH, output_sizes
from iofast.errors import OptionError
from iofast.kernel import Payloads
from iofast.loader.finishing import Storage, rows_of
from iofast.loader.plan import SamplePlan

Images = Any  # a tensor, a list of tensors, a dictionary of several views, or images that the device makes


class RowsToDecode(NamedTuple):
    """Rows of a plan, intp (N,), and where their payloads lie.

    `finish` has pixel operations for the same call; without it rows stay uint8.
    """

    context: kernel.Context
    source: Payloads
    rows: NDArray[np.intp]
    finish: kernel.Finish | None = None


class Canvas(ABC):
    """The pixels of the samples of `plan`, decoded by its boxes and flips. Several threads may decode rows at once."""

    def __init__(self, plan: SamplePlan) -> None:
        self.plan = plan

    def to_read(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of `rows` whose payloads must be read."""
        return rows

    @abstractmethod
    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """Decode rows and return their status, int32."""

    def decode_again(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """Decode rows that were decoded before, perhaps other samples or by other boxes."""
        return self.decode(wanted)

    def renew(self, rows: NDArray[np.intp]) -> None:  # noqa: B027  images of one size need nothing
        """Prepare `rows`, whose samples or boxes have changed, for `decode_again`."""

    @abstractmethod
    def images(self) -> Images:
        """(N, 3, H, W), or one (3, H, W) for each."""


class Uniform(Canvas):
    """All images of one size, (N, 3, H, W)."""

    def __init__(self, plan: SamplePlan, size: tuple[int, int], memory: BatchMemory, storage: Storage) -> None:
        super().__init__(plan)
        self._images = empty(memory, (len(plan), 3, *size), *storage)
        self._out = rows_of(self._images)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        context, source, rows, finish = wanted
        boxes, flips = self.plan.boxes[rows], self.plan.flips[rows]
        return kernel.decode_into(context, source, boxes, flips, self._out, rows, finish)

    def images(self) -> torch.Tensor:
        return self._images


class Ragged(Canvas):
    """Images of different sizes, which are those of their boxes, in one block of memory.

    The images are views of one tensor, so that the allocator of page-locked memory sees a copy of any of them.
    """

    def __init__(self, plan: SamplePlan, memory: BatchMemory, storage: Storage) -> None:
        super().__init__(plan)
        self._memory, self._storage = memory, storage
        self._images = self._allocated(plan.boxes)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        context, source, rows, finish = wanted
        boxes, status = self.plan.boxes[rows], np.zeros(len(rows), np.int32)
        outs = [rows_of(self._images[row].unsqueeze(0))[0] for row in rows]
        kernel.decode_each(context, source, boxes, self.plan.flips[rows], outs, status, finish)
        return status

    def renew(self, rows: NDArray[np.intp]) -> None:
        """See `Canvas`: they get memory of their sizes."""
        for row, image in zip(rows.tolist(), self._allocated(self.plan.boxes[rows]), strict=True):
            self._images[row] = image

    def images(self) -> list[torch.Tensor]:
        return list(self._images)

    def _allocated(self, boxes: NDArray[np.int32]) -> list[torch.Tensor]:
        """An image (3, H, W) for each box, in one block."""
        sizes = output_sizes(boxes)
        counts = 3 * sizes.prod(axis=1)
        dtype, memory_format = self._storage
        block = self._memory.take((rounded_up(int(counts.sum())),), dtype)[: counts.sum()]
        parts = zip(torch.split(block, counts.tolist()), sizes.tolist(), strict=True)
        return [laid_out(part, size, memory_format) for part, size in parts]


def laid_out(memory: torch.Tensor, sizes: Sequence[int], memory_format: torch.memory_format) -> torch.Tensor:
    """`memory` as images (..., 3, height, width) in `memory_format`; `sizes` are all dimensions but the channels'."""
    *outer, height, width = sizes
    if memory_format == torch.contiguous_format:
        return memory.view(*outer, 3, height, width)
    return memory.view(*outer, height, width, 3).movedim(-1, -3)


def size_of(boxes: NDArray[np.int32]) -> tuple[int, int]:
    """(height, width) of images that must all have one size, or `OptionError`."""
    known = boxes[:, WIDTH] > 0  # the kernel reports images whose header could not be read
    sizes = np.unique(boxes[known][:, [HEIGHT, WIDTH]], axis=0)
    if len(sizes) > 1:
        (h0, w0), (h1, w1) = sizes[0], sizes[-1]
        raise OptionError(
            f"images of a batch must have one size, found {w0}x{h0} and {w1}x{h1}: give the loader a transform with a "
            "fixed size, such as T.RandomResizedCrop(224), or ragged='list' or 'pad'"
        )
    height, width = sizes[0].tolist() if len(sizes) else (1, 1)
    return height, width


def each_tensor(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `function(tensor)` in place of each tensor, also in its lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: each_tensor(own, function) for name, own in value.items()}
    if isinstance(value, list):
        return [each_tensor(each, function) for each in value]
    return tuple(each_tensor(each, function) for each in value) if type(value) is tuple else value


def padded(
    tensors: list[torch.Tensor],
    *,
    fill: int = 0,
    axis: int = 1,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """A batch of tensors that differ in height (dimension `axis`) and width (the next one).

    It has the largest height and width; the tensors are at the upper left, `fill` is elsewhere.
    """
    shape = list(tensors[0].shape)
    shape[axis : axis + 2] = np.max([each.shape[axis : axis + 2] for each in tensors], axis=0).tolist()
    batch = tensors[0].new_full((len(tensors), *shape), fill).contiguous(memory_format=memory_format)
    for row, each in zip(batch, tensors, strict=True):
        row.narrow(axis, 0, each.shape[axis]).narrow(axis + 1, 0, each.shape[axis + 1]).copy_(each)
    return batch
