"""The pixel work of one batch: what is done to each of its images, as plain columns.

A batch's finished pixels are a pure function of its uint8 images, the operations and this table. Whoever carries it
out, in torch, in Triton or in something to come, needs to know the few codes of `Step` and nothing of how they were
drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError

# Noise of erased pixels: sums of NOISE_TERMS pairs of 16 bits, which are whole numbers and so the same everywhere.
NOISE_TERMS = 4
NOISE_MIDDLE = NOISE_TERMS * 65_535
NOISE_STEP = float(np.float32((2 * NOISE_TERMS * (2.0**32 - 1) / 12) ** -0.5))  # of 16 bits each has 2^32 - 1 twelfths
NOISE_HASH = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35)  # the golden ratio; MurmurHash3's finalizer


class Step(IntEnum):
    """What is done to the bytes of an image, with numbers f, g, ... (`NUMBERS` of them, unused ones 0).

    A new step is a code here, a function in kernel/steps.py, its loop in kernel/src, and a function in pixels/.
    """

    NOTHING = 0
    BRIGHTNESS = 1  # v * f
    CONTRAST = 2  # v * f + (1 - f) * the mean of the gray values of the whole image, as it is by then
    SATURATION = 3  # v * f + (1 - f) * the gray value of the pixel
    HUE = 4  # turned by f of the circle, in HSV
    SOLARIZE = 5  # 255 - v where v >= f
    POSTERIZE = 6  # the upper f bits of v
    ADD_BELOW = 7  # v + g where v < f
    AUTOCONTRAST = 8  # each channel stretched to 0 to 255
    EQUALIZE = 9  # each channel's histogram flattened
    SHARPNESS = 10  # v * f + (1 - f) * the mean of its 3 x 3 neighbours, v itself counted five times
    BLUR = 11  # by a Gaussian of sigma f that reaches g pixels across, h down, and i pixels down
    WARP_NEAREST = 12  # the pixel at ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / ...); i, j, k = outside
    WARP_BILINEAR = 13  # the same between four pixels
    FLIP = 14  # left and right where f is not 0, up and down where g is not
    PAD = 15  # the pixel at (x + f, y + g) of the upper left h x i; beyond them as `Edge` j says; k, l, m = CONSTANT
    PERMUTE = 16  # the channels in the f-th of the six orders of `CHANNELS`
    LUMA = 17  # 0.299 R + 0.587 G + 0.114 B in all channels, rounded as Pillow does it: equal channels stay as they are
    KEEP = 18  # the image is kept, and f of it is the sum
    ADD = 19  # f of the image is added to the sum, and the image is again the one that was kept
    SUM = 20  # the image is the sum


NUMBERS = 12  # of each step
MOST_STEPS = 255  # of an image, and as many erasings; the kernel adds up 256 images

CHANNELS = tuple(permutations(range(3)))  # orders, as PERMUTE counts them


class Edge(IntEnum):
    """How an image goes on beyond its edges: torchvision's padding modes."""

    CONSTANT = 0
    EDGE = 1  # the outermost pixel again and again
    REFLECT = 2  # mirrored in the outermost pixel
    SYMMETRIC = 3  # mirrored in the edge, so that the outermost pixel comes twice


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Row i belongs to image i of N; S steps, E erasings.

    steps    int8 (N, S), numbers float32 (N, S, NUMBERS): `Step` codes in the order in which they are done, and their
             numbers
    erased   int32 (N, E, 4): y0, x0, y1, x1 of the rectangle that is erased after normalisation; empty = none
    fills    float32 (N, E, 3): what it is filled with, each channel, in the finished image
    noise    int32 (N, E): which noise is added to that; 0 = none
    partner  int64 (N,): the row that the image is mixed with; itself = none. Rows are partners of each other, and
             neighbours
    share    float32 (N,): how much of each pixel is the image's own
    patch    int32 (N, 4): y0, x0, y1, x1 of what is the partner's alone
    own      float32 (N,): how much of the label is the image's own
    """

    steps: NDArray[np.int8]
    numbers: NDArray[np.float32]
    erased: NDArray[np.int32]
    fills: NDArray[np.float32]
    noise: NDArray[np.int32]
    partner: NDArray[np.int64]
    share: NDArray[np.float32]
    patch: NDArray[np.int32]
    own: NDArray[np.float32]

    def __post_init__(self) -> None:
        n, steps = self.steps.shape
        erasings = self.erased.shape[1]
        expected: dict[str, tuple[type, tuple[int, ...]]] = {
            "steps": (np.int8, (n, steps)),
            "numbers": (np.float32, (n, steps, NUMBERS)),
            "erased": (np.int32, (n, erasings, 4)),
            "fills": (np.float32, (n, erasings, 3)),
            "noise": (np.int32, (n, erasings)),
            "partner": (np.int64, (n,)),
            "share": (np.float32, (n,)),
            "patch": (np.int32, (n, 4)),
            "own": (np.float32, (n,)),
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

    def rows(self, rows: slice) -> Work:
        """Some neighbouring rows by themselves, not mixed."""
        steps, numbers = self.steps[rows], self.numbers[rows]
        return replace(
            no_work(len(steps)),
            steps=steps,
            numbers=numbers,
            erased=self.erased[rows],
            fills=self.fills[rows],
            noise=self.noise[rows],
        )


def no_work(n: int) -> Work:
    """The work that changes nothing of `n` images."""
    ones, none = np.ones(n, np.float32), np.zeros((n, 0), np.int32)
    return Work(
        steps=none.astype(np.int8),
        numbers=np.zeros((n, 0, NUMBERS), np.float32),
        erased=np.zeros((n, 0, 4), np.int32),
        fills=np.zeros((n, 0, 3), np.float32),
        noise=none,
        partner=np.arange(n),
        share=ones,
        patch=np.zeros((n, 4), np.int32),
        own=ones,
    )


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


def beyond(places: NDArray[np.int64], size: int, edge: Edge) -> NDArray[np.int64]:
    """Which of an axis' `size` pixels stand at `places`, also beyond its ends; -1 = none."""
    inside = (places >= 0) & (places < size)
    if edge == Edge.CONSTANT:
        return np.where(inside, places, -1)
    if edge == Edge.EDGE:
        return np.clip(places, 0, size - 1)
    if edge == Edge.REFLECT:
        around = places % max(2 * (size - 1), 1)
        return np.where(around < size, around, 2 * (size - 1) - around)
    around = places % (2 * size)
    return np.where(around < size, around, 2 * size - 1 - around)


def fits(boxes: NDArray[np.int32], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Which windows of `size` (height, width) lie within the resampled images of `boxes` (…, 8): bool (…)."""
    inside = (boxes[..., 6:] >= 0) & (boxes[..., 6:] <= boxes[..., 4:6] - np.array(size[::-1]))
    return np.asarray(inside.all(axis=-1))


def within(boxes: NDArray[np.int32], size: tuple[int, int]) -> NDArray[np.int32]:
    """`boxes` (…, 8) with windows of `size` (height, width) moved into the resampled images, as far as they fit."""
    moved = boxes.copy()
    moved[..., 6:] = np.clip(boxes[..., 6:], 0, np.maximum(boxes[..., 4:6] - np.array(size[::-1]), 0))
    return moved
