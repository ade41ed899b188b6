"""Where the pixels of some samples go: one block of memory, or images of different sizes each in its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.containers.base import Payloads
from iofast.errors import OptionError
from iofast.loader.buffers import BatchMemory

Images = torch.Tensor | list[torch.Tensor] | dict[str, Any]  # a dictionary of several views


class Canvas(Protocol):
    """The pixels of N samples in the making; slices of rows may be decoded by several threads."""

    def decode(
        self, context: kernel.Context, source: Payloads, boxes: NDArray[np.int32], flips: NDArray[np.uint8], rows: Rows
    ) -> NDArray[np.int32]:
        """Make `rows`, as many as `source` has; the status of each."""

    def decode_here(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: list[int],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        """Make single rows, on the CPU, whatever their boxes were at first; the status of each."""

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """Replace `rows` by the rows `of` another canvas of the same kind."""

    def images(self) -> Images:
        """(N, 3, H, W), or one (3, H, W) for each."""


class Singly(ABC):
    """A canvas whose images are made one by one."""

    def decode(
        self, context: kernel.Context, source: Payloads, boxes: NDArray[np.int32], flips: NDArray[np.uint8], rows: Rows
    ) -> NDArray[np.int32]:
        """See `Canvas`."""
        return self.decode_here(context, source, boxes, flips, list(range(rows.start, rows.start + len(boxes))))

    def decode_here(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: list[int],
        finish: kernel.Finish | None = None,  # noqa: ARG002  such a canvas finishes in a way of its own
    ) -> NDArray[np.int32]:
        """See `Canvas`."""
        status = np.zeros(len(rows), np.int32)
        for place, row in enumerate(rows):
            one = slice(place, place + 1)
            status[place] = self.make(context, source.rows(one), boxes[one], flips[one], row)
        return status

    @abstractmethod
    def make(
        self, context: kernel.Context, source: Payloads, box: NDArray[np.int32], flip: NDArray[np.uint8], row: int
    ) -> int:
        """One row; its status. The columns have one row as well."""


class Rows(NamedTuple):
    """Rows of a canvas from `start` on, and what is done to them once they are decoded; None = they stay uint8."""

    start: int
    finish: kernel.Finish | None = None


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
        self, context: kernel.Context, source: Payloads, boxes: NDArray[np.int32], flips: NDArray[np.uint8], rows: Rows
    ) -> NDArray[np.int32]:
        status = np.zeros(len(boxes), np.int32)
        out = self._out[rows.start : rows.start + len(boxes)]
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, len(boxes), **_finishing(rows.finish))
        return status

    def decode_here(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: list[int],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        status = np.zeros(len(rows), np.int32)
        outs = [self._out[row] for row in rows]
        kernel.decode_each(context, source, boxes, flips, outs, status, **_finishing(finish))
        return status

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        self._out[rows] = cast(Uniform, other)._out[of]

    def images(self) -> torch.Tensor:
        return self._images

    def row(self, row: int) -> NDArray[np.uint8]:
        """(height, width, 3), a view."""
        return cast(NDArray[np.uint8], self._out[row])


class Ragged:
    """Every image in a size of its own, which its box says (columns 5 and 4), all in one block of memory.

    The images are views of one tensor: so the allocator of page-locked memory knows of a copy of any of them.
    """

    def __init__(self, boxes: NDArray[np.int32], stored: CanvasStorage) -> None:
        self._stored = stored
        self._images = self._room(boxes)

    def decode(
        self, context: kernel.Context, source: Payloads, boxes: NDArray[np.int32], flips: NDArray[np.uint8], rows: Rows
    ) -> NDArray[np.int32]:
        status = np.zeros(len(boxes), np.int32)
        outs = self._outs(range(rows.start, rows.start + len(boxes)))
        kernel.decode_each(context, source, boxes, flips, outs, status, **_finishing(rows.finish))
        return status

    def decode_here(
        self,
        context: kernel.Context,
        source: Payloads,
        boxes: NDArray[np.int32],
        flips: NDArray[np.uint8],
        rows: list[int],
        finish: kernel.Finish | None = None,
    ) -> NDArray[np.int32]:
        for row, image in zip(rows, self._room(boxes), strict=True):
            self._images[row] = image
        status = np.zeros(len(rows), np.int32)
        kernel.decode_each(context, source, boxes, flips, self._outs(rows), status, **_finishing(finish))
        return status

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        images = other.images()
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self._images[row] = images[source]

    def images(self) -> list[torch.Tensor]:
        return list(self._images)

    def _outs(self, rows: Iterable[int]) -> list[NDArray[Any]]:
        return [pixels.rows_of(self._images[row].unsqueeze(0))[0] for row in rows]

    def _room(self, boxes: NDArray[np.int32]) -> list[torch.Tensor]:
        """An image for each box, in one block."""
        sizes = output_sizes(boxes)
        counts = 3 * sizes.prod(axis=1)
        memory, memory_format, dtype = self._stored
        block = memory.take((rounded_up(int(counts.sum())),), dtype)
        parts = zip(np.cumsum(counts).tolist(), counts.tolist(), sizes.tolist(), strict=True)
        return [_image(block[end - count : end], height, width, memory_format) for end, count, (height, width) in parts]


def _finishing(finish: kernel.Finish | None) -> dict[str, Any]:
    """The argument that only the native kernel has."""
    return {} if finish is None else {"finish": finish}


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


def rounded_up(count: int) -> int:
    """To a multiple of an eighth of the power of two below: blocks of nearly the same size can be used again."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


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


def empty(
    memory: BatchMemory, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
) -> torch.Tensor:
    """Of shape (N, 3, H, W), stored as `memory_format` says."""
    if memory_format == torch.contiguous_format:
        return memory.take(shape, dtype)
    rows, channels, height, width = shape
    return memory.take((rows, height, width, channels), dtype).permute(0, 3, 1, 2)


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
