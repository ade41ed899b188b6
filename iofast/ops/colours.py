"""Operations on the levels of an image: colours, histograms, filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from iofast.errors import OptionError
from iofast.ops.arguments import MOST_FACTOR, MOST_REACH, Span, probability, span


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed by random factors, in random order.

    A number b stands for factors in [max(0, 1 - b), 1 + b], a pair for itself, at most 63; of `hue` for shifts in
    [-h, h] of the whole circle, at most 0.5. 0 leaves it alone.
    """

    brightness: float | Sequence[float] = 0.0
    contrast: float | Sequence[float] = 0.0
    saturation: float | Sequence[float] = 0.0
    hue: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _jitter(name, getattr(self, name), 1.0, (0.0, MOST_FACTOR)))
        object.__setattr__(self, "hue", _jitter("hue", self.hue, 0.0, (-0.5, 0.5)))


@dataclass(frozen=True, slots=True)
class RandomPhotometricDistort:
    """SSD's: brightness, contrast, saturation and hue changed by random factors, and channels in another order, each of
    these five with probability `p`. Contrast comes second or fifth. Ranges are (low, high), as `ColorJitter`'s."""

    brightness: Sequence[float] = (0.875, 1.125)
    contrast: Sequence[float] = (0.5, 1.5)
    saturation: Sequence[float] = (0.5, 1.5)
    hue: Sequence[float] = (-0.05, 0.05)
    p: float = 0.5

    def __post_init__(self) -> None:
        jitter = ColorJitter(self.brightness, self.contrast, self.saturation, self.hue)
        for name in ("brightness", "contrast", "saturation", "hue"):
            object.__setattr__(self, name, getattr(jitter, name))
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomChannelPermutation:
    """Red, green and blue in an order that is drawn for each image; each of the six is as likely as the others."""


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Three equal channels of 0.2989 R + 0.587 G + 0.114 B. (Torchvision's default is one channel.)"""

    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            found = f"found {self.num_output_channels!r}; one channel is the loader's image_mode='L'"
            raise OptionError(f"Grayscale: num_output_channels must be 3, {found}")


@dataclass(frozen=True, slots=True)
class Luma:
    """Three equal channels as Pillow's `convert("L")` has them: what a loader of one channel does last."""


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """`Grayscale` with probability `p`."""

    p: float = 0.1

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class Solarize:
    """Values at and above `threshold` (0 to 1; 128 of 8 bits is 128 / 255) are inverted, each channel by itself."""

    threshold: float

    def __post_init__(self) -> None:
        _threshold(self)


@dataclass(frozen=True, slots=True)
class RandomSolarize:
    """`Solarize(threshold)` with probability `p`."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        _threshold(self)
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomInvert:
    """255 - level, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomPosterize:
    """The upper `bits` (0 to 8) of each level, with probability `p`."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            raise OptionError(f"RandomPosterize: bits must be 0 to 8, found {self.bits!r}")
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomAutocontrast:
    """With probability `p` each channel is stretched, so that its least level is 0 and its largest 255."""

    p: float = 0.5

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomEqualize:
    """With probability `p` each channel's histogram is made even, as Pillow does it."""

    p: float = 0.5

    def __post_init__(self) -> None:
        probability(self)


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness:
    """With probability `p` a blend with the smoothed image: 0 is that alone, 1 changes nothing, 2 sharpens."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        factor = self.sharpness_factor
        if not isinstance(factor, int | float) or not 0 <= factor <= MOST_FACTOR:
            raise OptionError(f"RandomAdjustSharpness: sharpness_factor must be 0 to {MOST_FACTOR:g}, found {factor!r}")
        probability(self)


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """A blur by a Gaussian whose deviation is drawn evenly from `sigma` (one number = always that).

    `kernel_size` is odd, of pixels: one number, or (across, down). What lies outside the image mirrors it.
    """

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        given = self.kernel_size
        sizes = given if isinstance(given, Sequence) else (given, given)
        most = 2 * MOST_REACH + 1
        try:
            across, down = (index(size) for size in sizes)
        except (TypeError, ValueError):
            found = f"found {given!r}"
            raise OptionError(f"GaussianBlur: kernel_size must be a number or (across, down), {found}") from None
        if not all(1 <= size <= most and size % 2 for size in (across, down)):
            raise OptionError(f"GaussianBlur: kernel_size must be odd, 1 to {most}, found {given!r}")
        object.__setattr__(self, "kernel_size", (across, down))
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma
        object.__setattr__(self, "sigma", span("GaussianBlur: sigma", sigma))
        if self.sigma[0] == 0:  # type: ignore[index]
            raise OptionError(f"GaussianBlur: sigma must be above 0, found {sigma!r}")


Colour = (
    ColorJitter
    | RandomPhotometricDistort
    | RandomChannelPermutation
    | Grayscale
    | Luma
    | RandomGrayscale
    | Solarize
    | RandomSolarize
    | RandomInvert
    | RandomPosterize
    | RandomAutocontrast
    | RandomEqualize
    | RandomAdjustSharpness
    | GaussianBlur
)


def _jitter(name: str, value: float | Sequence[float], centre: float, limits: Span) -> Span:
    try:
        if isinstance(value, Sequence):
            low, high = (float(each) for each in value)
        else:
            width = float(value)
            low, high = max(centre - width, 0.0) if centre else -width, centre + width
    except (TypeError, ValueError):
        raise OptionError(f"ColorJitter: {name} must be a number or (low, high), found {value!r}") from None
    if not limits[0] <= low <= high <= limits[1] or high == math.inf:
        raise OptionError(f"ColorJitter: {name} must be within {limits[0]:g} and {limits[1]:g}, found {value!r}")
    return low, high


def _threshold(op: Solarize | RandomSolarize) -> None:
    if not isinstance(op.threshold, int | float) or not 0 <= op.threshold <= 1:
        raise OptionError(
            f"{type(op).__name__}: threshold must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), "
            f"found {op.threshold!r}"
        )
