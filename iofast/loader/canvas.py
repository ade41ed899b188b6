"""Where the pixels of some samples go: one block of memory, or images of different sizes each in its own."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.errors import OptionError
from iofast.gpu.batch_memory import BatchMemory, empty, rounded_up
from iofast.kernel import Payloads

Images = torch.Tensor | list[torch.Tensor] | dict[str, Any]  # a dictionary of several views


class Canvas(Protocol):
    """The pixels of N samples in the making; several threads may decode rows at the same time."""

    def decode(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: NDArray[np.intp],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        """Decode `rows`, which the other columns have too, and return their status.

        `finish` is done to them then; without it they stay uint8. Rows may be decoded again, also with other boxes.
        """

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
        self._out = pixels.rows_of(self._images)

    def decode(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: NDArray[np.intp],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        """See `Canvas`."""
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
    """Every image in a size of its own, which its box says (columns 5 and 4), all in one block of memory.

    The images are views of one tensor, so that the allocator of page-locked memory knows of a copy of any of them.
    """

    def __init__(self, boxes: NDArray[np.int32], stored: CanvasStorage) -> None:
        self._stored = stored
        self._images = self._room(boxes)

    def decode(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: NDArray[np.intp],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        """See `Canvas`. A row whose box says another size than before gets new memory."""
        sizes = output_sizes(boxes).tolist()
        other = [place for place, row in enumerate(rows) if [*self._images[row].shape[1:]] != sizes[place]]
        for place, image in zip(other, self._room(boxes[other]) if other else (), strict=True):
            self._images[rows[place]] = image
        status = np.zeros(len(rows), np.int32)
        outs = [pixels.rows_of(self._images[row].unsqueeze(0))[0] for row in rows]
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

    def _room(self, boxes: NDArray[np.int32]) -> list[torch.Tensor]:
        """An image for each box, in one block."""
        sizes = output_sizes(boxes)
        counts = 3 * sizes.prod(axis=1)
        memory, memory_format, dtype = self._stored
        block = memory.take((rounded_up(int(counts.sum())),), dtype)
        parts = zip(np.cumsum(counts).tolist(), counts.tolist(), sizes.tolist(), strict=True)
        return [_image(block[end - count : end], height, width, memory_format) for end, count, (height, width) in parts]


def _image(memory: torch.Tensor, height: int, width: int, memory_format: torch.memory_format) -> torch.Tensor:
    """(3, height, width) over all of `memory`, stored as `memory_format` says."""
    if memory_format == torch.contiguous_format:
        return memory.view(3, height, width)
    return memory.view(height, width, 3).permute(2, 0, 1)


def output_sizes(boxes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Height and width of what each row of `boxes` makes, int64 (N, 2), where the pipeline has no fixed size.

    At least 1: an image of unknown size has a box of zeros, and the kernel says of it what is wrong.
    """
    return np.maximum(boxes[:, 5:3:-1], 1).astype(np.int64)


def size_of(boxes: NDArray[np.int32]) -> tuple[int, int]:
    """(height, width) of images that must all have one size, or `OptionError`."""
    known = boxes[:, 4] > 0  # the others' headers could not be read: the kernel will say what is wrong
    sizes = np.unique(boxes[known, 5:3:-1], axis=0)
    if len(sizes) > 1:
        (h0, w0), (h1, w1) = sizes[0], sizes[-1]
        raise OptionError(
            f"the images of a batch differ in size ({w0}x{h0} and {w1}x{h1}): give the loader a transform with a fixed "
            "size, such as T.RandomResizedCrop(224), or ragged='list' or 'pad'"
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


def padded(images: list[torch.Tensor], memory_format: torch.memory_format) -> torch.Tensor:
    """(N, C, H, W) of the largest height and width, images at the upper left, zeros elsewhere."""
    height, width = max(image.shape[1] for image in images), max(image.shape[2] for image in images)
    batch = (
        images[0].new_zeros((len(images), images[0].shape[0], height, width)).contiguous(memory_format=memory_format)
    )
    for row, image in enumerate(images):
        batch[row, :, : image.shape[1], : image.shape[2]] = image
    return batch
