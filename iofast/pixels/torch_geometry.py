"""Crop, resample and flip images of different sizes in torch, from uint8 to uint8.

The arithmetic is in integers: weights are multiples of 2^-14 and add up to one exactly; values between the two passes
have 6 fractional bits. So every device, and the Triton pass, gives identical pixels, within one level of Pillow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.pixels.upload import upload
from iofast.work import window_pixels, within

PRECISION = 14  # fractional bits of a weight
FRACTION = 6  # fractional bits of a value between the passes: 8 + 14 + 6 bits fit an int32


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBatch:
    """N uint8 RGB images of any sizes in one block of memory, on one device. Raises `OptionError` if they do not fit.

    data     uint8 (bytes,)
    offsets  int64 (N,): the first byte of each
    sizes    int64 (N, 2): height and width
    """

    data: torch.Tensor
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.data.dtype != torch.uint8 or self.data.ndim != 1 or not self.data.is_contiguous():
            raise OptionError(f"data must be uint8 bytes, found {self.data.dtype} {tuple(self.data.shape)}")
        if self.offsets.ndim != 1 or self.sizes.shape != (len(self.offsets), 2):
            raise OptionError(f"offsets must be (N,) and sizes (N, 2), found {self.offsets.shape}, {self.sizes.shape}")
        ends = self.offsets + self.lengths
        if len(ends) and (self.sizes.min() < 1 or self.offsets.min() < 0 or ends.max() > len(self.data)):
            raise OptionError(f"images must have pixels and lie within the {len(self.data)} bytes of data")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each image."""
        return np.asarray(3 * self.sizes.prod(axis=1))

    @classmethod
    def of(cls, images: Sequence[torch.Tensor]) -> Self:
        """Copy uint8 images (H, W, 3) into one block. Raises `OptionError`."""
        if not images or any(each.dtype != torch.uint8 or each.ndim != 3 or each.shape[2] != 3 for each in images):
            raise OptionError("images must be one or more, each uint8 of shape (H, W, 3)")
        sizes = np.array([tuple(image.shape[:2]) for image in images], np.int64)
        lengths = 3 * sizes.prod(axis=1)
        return cls(torch.cat([image.reshape(-1) for image in images]), np.cumsum(lengths) - lengths, sizes)

    def image(self, row: int) -> torch.Tensor:
        """Return one image as RGB, uint8 (H, W, 3)."""
        height, width = self.sizes[row].tolist()
        samples = self.data[int(self.offsets[row]) :][: int(self.lengths[row])]
        return samples.view(height, width, 3)


class Axis(NamedTuple):
    """The first source pixel of each output, int64 (N, outputs), and the weights of the pixels from there on, int32
    (N, outputs, taps), padded with 0."""

    start: torch.Tensor
    weights: torch.Tensor


def resample(
    batch: RaggedBatch,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    size: tuple[int, int],
) -> torch.Tensor:
    """Resample the region of each image bilinearly and flip it: uint8 (N, 3, height, width), channels-last.

    `boxes` (N, 8) and `flips` (N,) are those of `Pipeline.plan`; `size` is the (height, width) of all outputs. An image
    may be a part of a larger one: its region may reach beyond it where the window does not depend on those pixels.
    If the resampled image is smaller than the window, its last row and column are repeated. Raises `OptionError` with
    the row whose window needs missing pixels.
    """
    check_boxes(batch, boxes, flips, size)
    device = batch.data.device
    columns = upload(boxes.astype(np.int64), device)
    y, x = axis(columns, 1, size[0]), axis(columns, 0, size[1])
    out = torch.empty((len(batch), *size, 3), dtype=torch.uint8, device=device)
    for row in range(len(batch)):
        top, bottom = max(int(boxes[row, 1]), 0), boxes[row, 3]
        region = batch.image(row)[top:bottom].to(torch.int32)
        wide = _weighted(region, 1, x.start[row], x.weights[row]) + (1 << PRECISION - FRACTION - 1)
        sums = _weighted(wide >> PRECISION - FRACTION, 0, y.start[row] - top, y.weights[row])
        pixels = (sums + (1 << PRECISION + FRACTION - 1) >> PRECISION + FRACTION).to(torch.uint8)
        out[row] = pixels.flip(1) if flips[row] else pixels
    return out.permute(0, 3, 1, 2)


def check_boxes(batch: RaggedBatch, boxes: NDArray[np.int32], flips: NDArray[np.uint8], size: tuple[int, int]) -> None:
    """Raise `OptionError` unless each image has a box, a flip, and all pixels that its window depends on."""
    if boxes.shape != (len(batch), 8) or flips.shape != (len(batch),) or min(size) < 1:
        raise OptionError(f"{len(batch)} images need boxes (N, 8) and flips (N,), found {boxes.shape}, {flips.shape}")
    x0, y0, x1, y1, width, height = boxes[:, :6].T
    good = (x0 < x1) & (y0 < y1) & (width > 0) & (height > 0)
    good &= (within(boxes, size)[:, 6:] == boxes[:, 6:]).all(axis=1)
    for at in (0, 1):
        first, end = window_pixels(boxes, at, size[1 - at])
        good &= (first >= 0) & (end <= batch.sizes[:, 1 - at])
    if not good.all():
        row = int(np.argmin(good))
        found = f"{batch.sizes[row, 1]} x {batch.sizes[row, 0]}"
        raise OptionError(f"box {boxes[row].tolist()} of row {row} is not within its image of {found} pixels")


def taps(boxes: NDArray[np.int32], at: int) -> NDArray[np.int64]:
    """Return the largest number of pixels that an output depends on, on axis `at` (0: x, 1: y): int64 (N,)."""
    length, virtual = boxes[:, 2 + at].astype(np.int64) - boxes[:, at], boxes[:, 4 + at].astype(np.int64)
    return np.asarray(-(-2 * np.maximum(length, virtual) // virtual))


def axis(boxes: torch.Tensor, at: int, outputs: int) -> Axis:
    """Return windows and weights on axis `at` (0: x, 1: y) of `boxes`, int64 (N, 8).

    The unit is half an output's step, so pixel centres, windows and the height of the triangle are integers.
    """
    low, high, virtual, window = (boxes[:, column + at, None] for column in (0, 2, 4, 6))
    length = high - low
    reach = 2 * torch.maximum(length, virtual)
    places = torch.minimum(window + torch.arange(outputs, device=boxes.device), virtual - 1)
    centre = (2 * places + 1) * length
    first = (torch.div(centre - reach - virtual, 2 * virtual, rounding_mode="floor") + 1).clamp(min=0)
    most = int(torch.div(reach - 1, virtual, rounding_mode="floor").max()) + 1 if len(boxes) else 1
    x = first[..., None] + torch.arange(most, device=boxes.device)
    triangle = (reach[..., None] - ((2 * x + 1) * virtual[..., None] - centre[..., None]).abs()).clamp(min=0)
    sums = (triangle * (x < length[..., None])).cumsum(-1)
    total = sums[..., -1:]
    rounded = torch.div((sums << PRECISION) + torch.div(total, 2, rounding_mode="floor"), total, rounding_mode="floor")
    return Axis(low + first, rounded.diff(dim=-1, prepend=torch.zeros_like(total)).to(torch.int32))


def _weighted(values: torch.Tensor, dim: int, start: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return weighted sums of `values` (int32, (H, W, 3)) along `dim`, int32."""
    shape = (-1, 1, 1) if dim == 0 else (1, -1, 1)
    last = values.shape[dim] - 1
    sums = values.index_select(dim, start) * weights[:, 0].view(shape)
    for tap in range(1, weights.shape[1]):
        sums += values.index_select(dim, (start + tap).clamp(max=last)) * weights[:, tap].view(shape)
    return sums
