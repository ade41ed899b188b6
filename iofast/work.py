"""The pixel work of one batch: the steps, erasings and mixing of each image, as plain columns.

A batch's finished pixels are a pure function of its uint8 images, the operations and this table. The kernel executes
it, and so does its source compiled for a GPU; they depend on the codes of `Step`, not on how the numbers were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError


class Step(IntEnum):
    """An operation on the bytes of an image. Its parameters are f, g, ... (`NUMBERS` of them, unused ones 0).

    A new step has the next free number of `Step` and `PillowStep`. One that looks at single levels needs a row in
    kernel/src/level_steps.h besides. Any other needs a code in kernel/src/iofast.h, its arithmetic in
    kernel/src/levels.h, and a branch in kernel/src/steps.c (with a loop of kernel/src/tile_loops.h) and in
    kernel/src/device_steps.h.
    """

    NOTHING = 0
    BRIGHTNESS = 1  # v * f
    CONTRAST = 2  # v * f + (1 - f) * the mean gray value of the image after the steps before this one
    SATURATION = 3  # v * f + (1 - f) * the gray value of the pixel
    HUE = 4  # the hue in HSV, rotated by f of the circle
    SOLARIZE = 5  # 255 - v where v >= f
    POSTERIZE = 6  # the upper f bits of v
    ADD_BELOW = 7  # v + g where v < f
    AUTOCONTRAST = 8  # each channel stretched to 0 to 255
    EQUALIZE = 9  # each channel's histogram flattened
    SHARPNESS = 10  # v * f + (1 - f) * the mean of 3 x 3 pixels, in which v counts five times
    BLUR = 11  # a Gaussian of sigma f and reach g (pixels) across, sigma h and reach i down
    WARP_NEAREST = 12  # the pixel at ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / ...); i, j, k = outside
    WARP_BILINEAR = 13  # the same, interpolated between four pixels
    FLIP = 14  # left to right where f is not 0, top to bottom where g is not 0
    PAD = 15  # the pixel at (x + f, y + g) of the upper left h x i; beyond them `Edge` j; k, l, m = colour of CONSTANT
    PERMUTE = 16  # the channels in the order `CHANNELS[f]`
    LUMA = 17  # 0.299 R + 0.587 G + 0.114 B in all channels, rounded as in Pillow; equal channels stay the same


class PillowStep(IntEnum):
    """Pillow's operations, bit for bit, by the native kernel alone; codes of `Work.steps` beside those of `Step`.

    Some steps of `Step` are Pillow's already: SOLARIZE (`ImageOps.solarize`; f = 0 is `invert`), POSTERIZE, EQUALIZE,
    ADD_BELOW (timm's SolarizeAdd), LUMA (`convert("L")` and back), FLIP.
    """

    BRIGHTNESS = 18  # ImageEnhance.Brightness, f = factor
    CONTRAST = 19  # ImageEnhance.Contrast
    COLOR = 20  # ImageEnhance.Color
    SHARPNESS = 21  # ImageEnhance.Sharpness
    AUTOCONTRAST = 22  # ImageOps.autocontrast with its defaults
    HUE = 23  # f, a whole number, added to the hue of convert("HSV") modulo 256: torchvision's int(hue_factor * 255)
    BLUR = 24  # ImageFilter.GaussianBlur((f, g)), up to 10,000
    # image.transform(image.size, AFFINE, ...): f to q are the bits of the six doubles, r = (red << 16) + (green << 8) +
    # blue of the outside. Coordinates of NEAREST stay below 2^14, so that Pillow uses its fixed point.
    AFFINE_NEAREST = 25
    AFFINE_BILINEAR = 26
    AFFINE_BICUBIC = 27


NUMBERS = 13  # parameters of each step
MOST_STEPS = 255  # per image, and as many erasings

CHANNELS = tuple(permutations(range(3)))  # the orders of `Step.PERMUTE`


class Edge(IntEnum):
    """Pixels beyond the edges of an image: torchvision's padding modes."""

    CONSTANT = 0
    EDGE = 1  # the outermost pixel, repeated
    REFLECT = 2  # mirrored about the outermost pixel
    SYMMETRIC = 3  # mirrored about the edge: the outermost pixel appears twice


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Row i belongs to image i of N; S steps, E erasings. Raises `OptionError` for wrong dtypes, shapes or partners.

    steps    int8 (N, S): `Step` codes in the order of execution
    numbers  float32 (N, S, NUMBERS): their parameters
    erased   int32 (N, E, 4): y0, x0, y1, x1 of the rectangle that is erased after normalisation; empty = none
    fills    float32 (N, E, 3): its colour, per channel, in units of the finished image
    noise    int32 (N, E): the number of the noise added to it; 0 = none
    partner  int64 (N,): the row that the image is mixed with, a neighbouring row; itself = none. Partners are mutual
    share    float32 (N,): the weight of the image's own pixels
    patch    int32 (N, 4): y0, x0, y1, x1 of the rectangle that is taken from the partner
    own      float32 (N,): the weight of the image's own label
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
        rows = np.arange(n)
        if n and (np.abs(self.partner - rows).max() > 1 or (self.partner[self.partner] != rows).any()):
            raise OptionError("partner must pair neighbouring rows, each with the other or with itself")

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def mixes(self) -> bool:
        """Whether any image is mixed with another."""
        return bool((self.partner != np.arange(len(self))).any())

    def paired(self, partner: NDArray[np.int64]) -> Work:
        """Return a copy with these partners, int64 (N,); a row that is its own partner is not mixed."""
        alone = partner == np.arange(len(self))
        return replace(
            self,
            partner=partner.astype(np.int64),
            share=np.where(alone, np.float32(1), self.share),
            patch=np.where(alone[:, None], np.int32(0), self.patch),
            own=np.where(alone, np.float32(1), self.own),
        )

    def rows(self, rows: slice) -> Work:
        """Return a slice of the rows, not mixed."""
        columns = {name: getattr(self, name)[rows] for name in ("steps", "numbers", "erased", "fills", "noise")}
        return replace(no_work(len(columns["steps"])), **columns)


def no_work(n: int) -> Work:
    """Return the work that leaves `n` images unchanged."""
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


def beyond(places: NDArray[np.int64], size: int, edge: Edge) -> NDArray[np.int64]:
    """Return the pixel of an axis of `size` pixels that appears at each of `places`, or -1 for `Edge.CONSTANT`."""
    inside = (places >= 0) & (places < size)
    if edge == Edge.CONSTANT:
        return np.where(inside, places, -1)
    if edge == Edge.EDGE:
        return np.clip(places, 0, size - 1)
    period = max(2 * (size - 1), 1) if edge == Edge.REFLECT else 2 * size
    around = places % period
    mirrored = period - around if edge == Edge.REFLECT else period - 1 - around
    return np.where(around < size, around, mirrored)
