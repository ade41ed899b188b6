"""Operations on the levels of an image: colours, histograms, filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from iofast.errors import OptionError
from iofast.ops.arguments import (
    MOST_FACTOR,
    MOST_REACH,
    Check,
    Span,
    between,
    operation,
    positive_span,
    probability,
    whole,
)


def _range(neutral: float, least: float, most: float) -> Check:
    """(low, high) from `least` to `most`; one number d stands for `neutral` - d to `neutral` + d."""

    def check(name: str, value: float | Sequence[float]) -> Span:
        try:
            if isinstance(value, Sequence):
                low, high = (float(each) for each in value)
            else:
                width = float(value)
                low, high = max(neutral - width, 0.0) if neutral else -width, neutral + width
        except (TypeError, ValueError):
            raise OptionError(f"{name} must be a number or (low, high), found {value!r}") from None
        if not least <= low <= high <= most:
            raise OptionError(f"{name} must be within {least:g} and {most:g}, found {value!r}")
        return low, high

    return check


_FACTOR = _range(1.0, 0.0, MOST_FACTOR)
_JITTER = {"brightness": _FACTOR, "contrast": _FACTOR, "saturation": _FACTOR, "hue": _range(0.0, -0.5, 0.5)}


@operation(**_JITTER)
class ColorJitter:
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    A number b stands for factors in [max(0, 1 - b), 1 + b], a pair for itself, at most 63. For `hue` it stands for
    shifts in [-h, h] of the whole circle, at most 0.5. 0 changes nothing.
    """

    brightness: float | Sequence[float] = 0.0
    contrast: float | Sequence[float] = 0.0
    saturation: float | Sequence[float] = 0.0
    hue: float | Sequence[float] = 0.0


@dataclass(frozen=True, slots=True)
class RandomChannelPermutation:
    """Put red, green and blue in a random order, each of the six equally likely."""


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Three equal channels of 0.2989 R + 0.587 G + 0.114 B. (Torchvision's default is one channel.)"""

    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            found = f"found {self.num_output_channels!r}; for one channel use the loader's image_mode='L'"
            raise OptionError(f"Grayscale: num_output_channels must be 3, {found}")


@dataclass(frozen=True, slots=True)
class Luma:
    """Three equal channels as Pillow's `convert("L")`: the last operation on images of `image_mode="L"`."""


@operation(p=probability)
class RandomGrayscale:
    """`Grayscale` with probability `p`."""

    p: float = 0.1


def _threshold(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise OptionError(f"{name} must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), found {value!r}")
    return float(value)


@operation(threshold=_threshold)
class Solarize:
    """Invert values at and above `threshold` (0 to 1; 128 of 8 bits is 128 / 255), each channel by itself."""

    threshold: float


@operation(threshold=_threshold, p=probability)
class RandomSolarize:
    """`Solarize(threshold)` with probability `p`."""

    threshold: float
    p: float = 0.5


@operation(p=probability)
class RandomInvert:
    """255 - level, with probability `p`."""

    p: float = 0.5


@operation(bits=whole(0, 8), p=probability)
class RandomPosterize:
    """Keep the upper `bits` (0 to 8) of each level, with probability `p`."""

    bits: int
    p: float = 0.5


@operation(p=probability)
class RandomAutocontrast:
    """With probability `p`, stretch each channel so that its least level is 0 and its greatest 255."""

    p: float = 0.5


@operation(p=probability)
class RandomEqualize:
    """With probability `p`, equalise each channel's histogram, as Pillow does."""

    p: float = 0.5


@operation(sharpness_factor=between(0, MOST_FACTOR), p=probability)
class RandomAdjustSharpness:
    """With probability `p`, blend with the smoothed image: factor 0 is that alone, 1 changes nothing, 2 sharpens."""

    sharpness_factor: float
    p: float = 0.5


def _kernel_size(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    try:
        across, down = (index(size) for size in (value if isinstance(value, Sequence) else (value, value)))
    except (TypeError, ValueError):
        raise OptionError(f"{name} must be a number or (across, down), found {value!r}") from None
    most = 2 * MOST_REACH + 1
    if not all(1 <= size <= most and size % 2 for size in (across, down)):
        raise OptionError(f"{name} must be odd, 1 to {most}, found {value!r}")
    return across, down


def _sigma(name: str, value: float | Sequence[float]) -> Span:
    return positive_span(name, (value, value) if isinstance(value, int | float) else value)


@operation(kernel_size=_kernel_size, sigma=_sigma)
class GaussianBlur:
    """Blur by a Gaussian whose standard deviation is drawn evenly from `sigma` (one number: always that).

    `kernel_size` in pixels is odd: one number, or (across, down). The image is mirrored beyond its edges.
    """

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)


Colour = (
    ColorJitter
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
