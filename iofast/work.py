"""The pixel work of one batch: what is done to each of its images, as plain columns.

A batch's finished pixels are a pure function of its uint8 images, the operations and this table. Whoever carries it
out, in torch, in Triton or in something to come, needs to know the few codes of `Step` and nothing of how they were
drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError

# Gray as torchvision and Pillow have it. These sum to 0.9999.
GRAY = (0.2989, 0.587, 0.114)

# A mean of gray values is that of whole numbers of 2^-20: their sum does not depend on the order of adding, so neither
# on threads nor on the device.
GRAY_UNITS = 1 << 20


# Noise of erased pixels: sums of NOISE_TERMS pairs of 16 bits, which are whole numbers and so the same everywhere.
NOISE_TERMS = 4
NOISE_MIDDLE = NOISE_TERMS * 65_535
NOISE_STEP = float(np.float32((2 * NOISE_TERMS * (2.0**32 - 1) / 12) ** -0.5))  # of 16 bits each has 2^32 - 1 twelfths
NOISE_HASH = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35)  # the golden ratio; MurmurHash3's finalizer


class Step(IntEnum):
    """What is done to the colours of an image, with one number f; v is a value in [0, 1], and stays there.

    Gray is saturation 0. A new operation on colours is a code here, a function in pixels/colour.py, and one in
    pixels/triton_colour.py.
    """

    NOTHING = 0
    BRIGHTNESS = 1  # v * f
    CONTRAST = 2  # v * f + (1 - f) * the mean of the gray values of the whole image, as it is by then
    SATURATION = 3  # v * f + (1 - f) * the gray value of the pixel
    HUE = 4  # turned by f of the circle, in HSV
    SOLARIZE = 5  # 1 - v where v >= f


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Row i belongs to image i of N; S steps, E erasings.

    steps    int8 (N, S), factors float32 (N, S): `Step` codes in the order in which they are done, and their numbers
    erased   int32 (N, E, 4): y0, x0, y1, x1 of the rectangle that is erased after normalisation; empty = none
    partner  int64 (N,): the row that the image is mixed with; itself = none. Rows are partners of each other, and
             neighbours
    share    float32 (N,): how much of each pixel is the image's own
    patch    int32 (N, 4): y0, x0, y1, x1 of what is the partner's alone
    own      float32 (N,): how much of the label is the image's own
    noise    int32 (N, E): which noise an erased rectangle is filled with; 0 = none, a value
    """

    steps: NDArray[np.int8]
    factors: NDArray[np.float32]
    erased: NDArray[np.int32]
    partner: NDArray[np.int64]
    share: NDArray[np.float32]
    patch: NDArray[np.int32]
    own: NDArray[np.float32]
    noise: NDArray[np.int32]

    def __post_init__(self) -> None:
        n, steps = self.steps.shape
        expected: dict[str, tuple[type, tuple[int, ...]]] = {
            "steps": (np.int8, (n, steps)),
            "factors": (np.float32, (n, steps)),
            "erased": (np.int32, (n, self.erased.shape[1], 4)),
            "partner": (np.int64, (n,)),
            "share": (np.float32, (n,)),
            "patch": (np.int32, (n, 4)),
            "own": (np.float32, (n,)),
            "noise": (np.int32, (n, self.erased.shape[1])),
        }
        for name, (dtype, shape) in expected.items():
            column: NDArray[Any] = getattr(self, name)
            if column.dtype != dtype or column.shape != shape:
                raise OptionError(f"{name} must be {dtype.__name__} {shape}, found {column.dtype} {column.shape}")
        between = self.partner - np.arange(n)
        if n and (np.abs(between).max() > 1 or (self.partner[self.partner] != np.arange(n)).any()):
            raise OptionError("partner must pair neighbouring rows, each with the other or with itself")

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def mixes(self) -> bool:
        """Whether some image is mixed with another."""
        return bool((self.partner != np.arange(len(self))).any())

    def paired(self, partner: NDArray[np.int64]) -> Work:
        """With these partners; a row that is its own is not mixed."""
        alone = partner == np.arange(len(self))
        return replace(
            self,
            partner=partner.astype(np.int64),
            share=np.where(alone, np.float32(1), self.share),
            patch=np.where(alone[:, None], np.int32(0), self.patch),
            own=np.where(alone, np.float32(1), self.own),
        )

    def alone(self, row: int) -> Work:
        """One row by itself, not mixed."""
        one = slice(row, row + 1)
        columns = (self.steps[one], self.factors[one], self.erased[one])
        whole = np.ones(1, np.float32)
        return Work(*columns, np.zeros(1, np.int64), whole, self.patch[one] * 0, whole, self.noise[one])


def still(n: int) -> Work:
    """The work that changes nothing of `n` images."""
    ones = np.ones(n, np.float32)
    columns = np.zeros((n, 0), np.int8), np.zeros((n, 0), np.float32), np.zeros((n, 0, 4), np.int32)
    return Work(*columns, np.arange(n), ones, np.zeros((n, 4), np.int32), ones, np.zeros((n, 0), np.int32))


def noise_of(number: int, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Noise `number` at these places of an image (row * width + column): float32 of shape (3, *places.shape)."""
    golden, *mixes = (np.uint32(each) for each in NOISE_HASH)
    terms = (3 * places[None] + np.arange(3).reshape(3, *[1] * places.ndim))[None] * NOISE_TERMS
    bits = (terms + np.arange(NOISE_TERMS).reshape(-1, *[1] * (places.ndim + 1))).astype(np.uint32)
    bits = bits * golden + np.uint32(number)
    for mix, shift in zip(mixes, (16, 13), strict=True):
        bits = (bits ^ (bits >> np.uint32(shift))) * mix
    bits ^= bits >> np.uint32(16)
    sums = ((bits & np.uint32(0xFFFF)) + (bits >> np.uint32(16))).sum(axis=0, dtype=np.int64)
    made: NDArray[np.float32] = (sums - NOISE_MIDDLE).astype(np.float32) * np.float32(NOISE_STEP)
    return made
