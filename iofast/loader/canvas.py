"""Where the pixels of some samples go: one block of memory, or images of different sizes each in its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.errors import OptionError
from iofast.gpu.batch_memory import BatchMemory, empty, rounded_up
from iofast.kernel import Payloads
from iofast.loader.finishing import rows_of

Images = Any  # a tensor, a list of tensors, a dictionary of several views, or `JpegRows`


class RowsToDecode(NamedTuple):
    """N rows of a canvas, and what to decode into them.

    source  where the N payloads lie
    boxes   int32 (N, 8), flips uint8 (N,): what `Pipeline.plan` made for them
    rows    intp (N,): their numbers in the canvas
    finish  pixel operations for the same call; without it rows stay uint8
    """

    context: kernel.Context
    source: Payloads
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    rows: NDArray[np.intp]
    finish: kernel.Finish | None = None

    def some(self, places: NDArray[np.intp]) -> RowsToDecode:
        """The rows at `places`."""
        return self._replace(
            source=self.source.rows(places), boxes=self.boxes[places], flips=self.flips[places], rows=self.rows[places]
        )

    def row(self, place: int) -> RowsToDecode:
        """The row at `place` alone."""
        return self.some(np.array([place]))


class Canvas(Protocol):
    """The pixels of N samples. Several threads may decode rows at the same time."""

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """Decode rows and return their status, int32. Rows may be decoded again, also with other boxes."""

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """Replace `rows` by the rows `of` another canvas, which was made for that."""

    def images(self) -> Images:
        """(N, 3, H, W), or one (3, H, W) for each."""


class CanvasStorage(NamedTuple):
    """How the images of a canvas are stored."""

    memory: BatchMemory
    memory_format: torch.memory_format
    dtype: torch.dtype = torch.uint8


class Uniform:
    """All images of one size, (N, 3, H, W)."""

    def __init__(self, rows: int, size: tuple[int, int], stored: CanvasStorage) -> None:
        self.size = size
        self._images = empty(stored.memory, (rows, 3, *size), stored.dtype, stored.memory_format)
        self._out = rows_of(self._images)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`."""
        context, source, boxes, flips, rows, finish = wanted
        return kernel.decode_into(context, source, boxes, flips, self._out, rows, finish)

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        self._out[rows] = cast(Uniform, other)._out[of]

    def images(self) -> torch.Tensor:
        """See `Canvas`."""
        return self._images

    def row(self, row: int) -> NDArray[np.uint8]:
        """(height, width, 3), a view."""
        return cast(NDArray[np.uint8], self._out[row])


class Ragged:
    """Images of different sizes, whose height and width are columns 5 and 4 of their boxes, in one block of memory.

    The images are views of one tensor, so that the allocator of page-locked memory sees a copy of any of them.
    """

    def __init__(self, boxes: NDArray[np.int32], stored: CanvasStorage) -> None:
        self._stored = stored
        self._images = self._allocated(boxes)

    def decode(self, wanted: RowsToDecode) -> NDArray[np.int32]:
        """See `Canvas`. A row whose size has changed gets new memory."""
        context, source, boxes, flips, rows, finish = wanted
        sizes = output_sizes(boxes).tolist()
        resized = [place for place, row in enumerate(rows) if [*self._images[row].shape[1:]] != sizes[place]]
        for place, image in zip(resized, self._allocated(boxes[resized]) if resized else (), strict=True):
            self._images[rows[place]] = image
        status = np.zeros(len(rows), np.int32)
        outs = [rows_of(self._images[row].unsqueeze(0))[0] for row in rows]
        kernel.decode_each(context, source, boxes, flips, outs, status, finish)
        return status

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        images = other.images()
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self._images[row] = images[source]

    def images(self) -> list[torch.Tensor]:
        """See `Canvas`."""
        return list(self._images)

    def _allocated(self, boxes: NDArray[np.int32]) -> list[torch.Tensor]:
        """An image (3, H, W) for each box, in one block."""
        sizes = output_sizes(boxes)
        counts = 3 * sizes.prod(axis=1)
        memory, memory_format, dtype = self._stored
        block = memory.take((rounded_up(int(counts.sum())),), dtype)[: counts.sum()]
        parts = zip(torch.split(block, counts.tolist()), sizes.tolist(), strict=True)
        return [laid_out(part, size, memory_format) for part, size in parts]


def laid_out(memory: torch.Tensor, sizes: Sequence[int], memory_format: torch.memory_format) -> torch.Tensor:
    """`memory` as images (..., 3, height, width) in `memory_format`; `sizes` are all dimensions but the channels'."""
    *outer, height, width = sizes
    if memory_format == torch.contiguous_format:
        return memory.view(*outer, 3, height, width)
    return memory.view(*outer, height, width, 3).movedim(-1, -3)


def output_sizes(boxes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Height and width of what each row of `boxes` makes, int64 (N, 2), for a pipeline without a fixed size.

    At least 1: an image of unknown size has a box of zeros, and the kernel then reports what is wrong with it.
    """
    return np.maximum(boxes[:, 5:3:-1], 1).astype(np.int64)


def size_of(boxes: NDArray[np.int32]) -> tuple[int, int]:
    """(height, width) of images that must all have one size, or `OptionError`."""
    known = boxes[:, 4] > 0  # the kernel reports images whose header could not be read
    sizes = np.unique(boxes[known, 5:3:-1], axis=0)
    if len(sizes) > 1:
        (h0, w0), (h1, w1) = sizes[0], sizes[-1]
        raise OptionError(
            f"images of a batch must have one size, found {w0}x{h0} and {w1}x{h1}: give the loader a transform with a "
            "fixed size, such as T.RandomResizedCrop(224), or ragged='list' or 'pad'"
        )
    height, width = sizes[0].tolist() if len(sizes) else (1, 1)
    return height, width


def one_channel(images: Any) -> Any:
    """The first of three equal channels, in memory of its own."""
    if isinstance(images, torch.Tensor):
        return images[..., :1, :, :].contiguous()
    if isinstance(images, dict):
        return {name: one_channel(own) for name, own in images.items()}
    return [one_channel(each) for each in images]


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
