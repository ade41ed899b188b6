"""RandomErasing: rectangles that are filled with a value, a colour or noise."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from iofast.arguments import check_integer, checked
from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.transforms.arguments import channels, positive_span, probability, span
from iofast.transforms.normalize import scale_and_bias
from iofast.transforms.resized_crops import TRIALS, drawn_sides
from iofast.transforms.transform import DrawnImages, Floats, Op, Stage

MOST_RECTANGLES = 64  # of one RandomErasing
_NOISES = (1 << 31) - 2  # numbers of noise in an int32; 0 is none

Erased = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]  # boxes, fills and noises, (N, count, …)


def _value(name: str, value: float | Sequence[float] | str) -> str | tuple[float, float, float]:
    if isinstance(value, str) and value in ("random", "color"):
        return value
    try:
        return channels(name, [value] if isinstance(value, int | float) else value)  # type: ignore[arg-type]
    except OptionError:
        expected = 'must be 1 or 3 finite numbers, "random" or "color"'
        raise OptionError(f"{name} {expected}, found {value!r}") from None


def _counts(name: str, count: int | Sequence[int]) -> tuple[int, int]:
    try:
        counts = (count, count) if isinstance(count, int) else count
        low, high = (check_integer(name, each, 1, MOST_RECTANGLES) for each in counts)
    except (TypeError, ValueError):  # an `OptionError` is a ValueError
        low, high = 1, 0
    if low > high:
        raise OptionError(f"{name} must be 1 to {MOST_RECTANGLES}, or (low, high) within that, found {count!r}")
    return low, high


@checked(p=probability, scale=span, ratio=positive_span, value=_value, count=_counts)
class RandomErasing(Op):
    """With probability `p`, fill a rectangle with `value`.

    `value` is one number, or one per channel; "random": a normal number for each pixel and channel (a sum of eight
    uniform ones, at most 4.9); "color": one colour of such numbers per rectangle. (timm's modes const, pixel and rand.)

    The rectangle has `scale` (low, high) of the image's area, evenly, and an aspect ratio (height / width) of `ratio`,
    evenly in its logarithm. After 10 rectangles that do not fit, nothing is erased. `count` rectangles, or a number of
    them drawn from (low, high), share the area.
    """

    stage = Stage.VALUE
    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | Literal["random", "color"] = 0.0
    count: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        if self.scale[1] > 1:
            raise OptionError(f"RandomErasing: scale must be 0 to 1, found {self.scale}")

    @property
    def noisy(self) -> bool:
        """Whether each pixel is filled with another number."""
        return isinstance(self.value, str) and self.value == "random"

    @property
    def most(self) -> int:
        """The greatest number of rectangles."""
        return self.count[1]  # type: ignore[index]

    def draw(self, images: DrawnImages, name: str, after: Sequence[Op]) -> Erased:
        """The rectangles and their fill: a value that the operations `after` normalise, a colour, noise."""
        rows, draw = len(images), images.draw
        low, most = self.count  # type: ignore[misc]
        count = np.full(rows, low) if low == most else low + draw.integers(f"{name} count", most - low + 1)
        names = [name, *(f"{name} box {number}" for number in range(2, most + 1))]
        boxes = np.stack([self._boxes(images, each, count) for each in names], axis=1)
        boxes[np.arange(most) >= count[:, None]] = 0
        if most > 1:  # the first draw decides for all
            boxes[draw.uniform(name)[:, 0] >= self.p] = 0
        scale, bias = scale_and_bias(after)
        value = np.zeros(3) if isinstance(self.value, str) else np.asarray(self.value, np.float64)
        fills = np.broadcast_to(value * 255 * scale + bias, (rows, most, 3))
        if self.value == "color":
            fills = fills + _normal(draw, f"{name} color", 3 * most).reshape(rows, most, 3) * (255 * scale)
        noise = np.zeros((rows, most), np.int32)
        for number, each in enumerate(names if self.noisy else []):
            noise[:, number] = 1 + draw.integers(f"{each} noise", _NOISES)
        return boxes, fills.astype(np.float32), noise

    def _boxes(self, images: DrawnImages, name: str, count: NDArray[np.int64]) -> NDArray[np.int32]:
        """Lane 0: whether; 1 and 2: the place (top, left); 3 + 2i and 4 + 2i: area and ratio of trial i."""
        u = images.draw.uniform(name, 3 + 2 * TRIALS)
        widths, heights = images.widths, images.heights
        area = (widths * heights / count)[:, None]
        h, w = drawn_sides(area, u[:, 3::2], u[:, 4::2], self.scale, self.ratio)
        fits = (h < heights[:, None]) & (w < widths[:, None])
        first = np.arange(len(u)), np.argmax(fits, axis=1)
        done = ((u[:, 0] < self.p) | (count > 1)) & fits[first]
        h, w = h[first] * done, w[first] * done
        y, x = np.floor(u[:, 1] * (heights - h + 1)), np.floor(u[:, 2] * (widths - w + 1))
        return np.stack((y, x, y + h, x + w), axis=1).astype(np.int32)


def noise_amounts(ops: Sequence[Op]) -> NDArray[np.float64]:
    """The amount of noise in the fill of each rectangle of each `RandomErasing` of `ops`: float64 (erasings, 3).

    It is the size of a standard normal number in the finished image, or 0.
    """
    erasings = [(op, ops[number + 1 :]) for number, op in enumerate(ops) if isinstance(op, RandomErasing)]
    amounts = [255 * scale_and_bias(after)[0] * op.noisy for op, after in erasings for _ in range(op.most)]
    return np.array(amounts, np.float64).reshape(-1, 3)


def _normal(draw: Draw, name: str, count: int) -> Floats:
    """Standard normal numbers (N, count), by Box and Muller."""
    u = draw.uniform(name, 2 * count)
    return np.asarray(np.sqrt(-2 * np.log(1 - u[:, ::2])) * np.cos(2 * np.pi * u[:, 1::2]))
