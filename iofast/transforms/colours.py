"""Operations on the levels of an image: colours, histograms, filters."""

from collections.abc import Sequence
from operator import index

import numpy as np

from iofast.arguments import Check, checked, integer
from iofast.errors import OptionError
from iofast.transforms.arguments import MOST_FACTOR, Span, between, positive_span, probability
from iofast.transforms.transform import DrawnImages, ImageOp, Program, SingleStep, numbers
from iofast.work import CHANNELS, Step

MOST_REACH = 63  # pixels that a blur reaches on each side
_SLACK = 2.0**-10  # subtracted from a threshold: 128 / 255 * 255 may come out as 128.00000000000003


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
_STEPS = (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.HUE)
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
_JITTER = {"brightness": _FACTOR, "contrast": _FACTOR, "saturation": _FACTOR, "hue": _range(0.0, -0.5, 0.5)}


@checked(**_JITTER)
class ColorJitter(ImageOp):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    A number b stands for factors in [max(0, 1 - b), 1 + b], a pair for itself, at most 63. For `hue` it stands for
    shifts in [-h, h] of the whole circle, at most 0.5. 0 changes nothing.
    """

    drawn_as = "jitter"
    brightness: float | Sequence[float] = 0.0
    contrast: float | Sequence[float] = 0.0
    saturation: float | Sequence[float] = 0.0
    hue: float | Sequence[float] = 0.0

    def draw(self, images: DrawnImages, name: str) -> Program:
        """Lanes 0 to 3 are the factors, 4 to 7 the order: the smallest number comes first."""
        u = images.draw.uniform(name, 8)
        ranges = self.brightness, self.contrast, self.saturation, self.hue
        used = [number for number, neutral in enumerate(_NEUTRAL) if ranges[number] != neutral]
        order = np.argsort(u[:, [4 + number for number in used]], axis=1, kind="stable")
        codes = np.array([_STEPS[number] for number in used], np.int8)[order]
        low, high = np.array(ranges, np.float64).T
        factors = low + (high - low) * u[:, :4]
        return codes, numbers(np.take_along_axis(factors[:, used], order, axis=1))


@checked()
class RandomChannelPermutation(ImageOp):
    """Put red, green and blue in a random order, each of the six equally likely."""

    drawn_as = "channels"

    def draw(self, images: DrawnImages, name: str) -> Program:
        which = np.floor(len(CHANNELS) * images.draw.uniform(name))
        return np.full(which.shape, Step.PERMUTE, np.int8), numbers(which)


@checked()
class Grayscale(SingleStep):
    """Three equal channels of 0.2989 R + 0.587 G + 0.114 B. (Torchvision's default is one channel.)"""

    drawn_as, step = "grayscale", Step.SATURATION
    num_output_channels: int = 3

    def __post_init__(self) -> None:
        if self.num_output_channels != 3:
            found = f"found {self.num_output_channels!r}; for one channel use the loader's image_mode='L'"
            raise OptionError(f"Grayscale: num_output_channels must be 3, {found}")


@checked()
class Luma(SingleStep):
    """Three equal channels as Pillow's `convert("L")`: the last operation on images of `image_mode="L"`."""

    drawn_as, step = "luma", Step.LUMA


@checked(p=probability)
class RandomGrayscale(SingleStep):
    """`Grayscale` with probability `p`."""

    drawn_as, step = "grayscale", Step.SATURATION
    p: float = 0.1


def _threshold(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise OptionError(f"{name} must be 0 to 1, as pixels are (128 of 8 bits is 128 / 255), found {value!r}")
    return float(value)


@checked(threshold=_threshold)
class Solarize(SingleStep):
    """Invert values at and above `threshold` (0 to 1; 128 of 8 bits is 128 / 255), each channel by itself."""

    drawn_as, step = "solarize", Step.SOLARIZE
    threshold: float

    @property
    def number(self) -> float:
        return self.threshold * 255 - _SLACK


@checked(p=probability)
class RandomSolarize(Solarize):
    """`Solarize(threshold)` with probability `p`."""

    p: float = 0.5


@checked(p=probability)
class RandomInvert(SingleStep):
    """255 - level, with probability `p`: `Solarize` from 0 on."""

    drawn_as, step = "invert", Step.SOLARIZE
    p: float = 0.5


@checked(bits=integer(0, 8), p=probability)
class RandomPosterize(SingleStep):
    """Keep the upper `bits` (0 to 8) of each level, with probability `p`."""

    drawn_as, step = "posterize", Step.POSTERIZE
    bits: int
    p: float = 0.5

    @property
    def number(self) -> float:
        return self.bits


@checked(p=probability)
class RandomAutocontrast(SingleStep):
    """With probability `p`, stretch each channel so that its least level is 0 and its greatest 255."""

    drawn_as, step = "autocontrast", Step.AUTOCONTRAST
    p: float = 0.5


@checked(p=probability)
class RandomEqualize(SingleStep):
    """With probability `p`, equalise each channel's histogram, as Pillow does."""

    drawn_as, step = "equalize", Step.EQUALIZE
    p: float = 0.5


@checked(sharpness_factor=between(0, MOST_FACTOR), p=probability)
class RandomAdjustSharpness(SingleStep):
    """With probability `p`, blend with the smoothed image: factor 0 is that alone, 1 changes nothing, 2 sharpens."""

    drawn_as, step = "sharpness", Step.SHARPNESS
    sharpness_factor: float
    p: float = 0.5

    @property
    def number(self) -> float:
        return self.sharpness_factor


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


@checked(kernel_size=_kernel_size, sigma=_sigma)
class GaussianBlur(ImageOp):
    """Blur by a Gaussian whose standard deviation is drawn evenly from `sigma` (one number: always that).

    `kernel_size` in pixels is odd: one number, or (across, down). The image is mirrored beyond its edges.
    """

    drawn_as = "blur"
    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def draw(self, images: DrawnImages, name: str) -> Program:
        across, down = (size // 2 for size in self.kernel_size)  # type: ignore[union-attr]
        low, high = self.sigma  # type: ignore[misc]
        sigma = low + (high - low) * images.draw.uniform(name)
        each = numbers(sigma, np.full_like(sigma, across), sigma, np.full_like(sigma, down))
        return np.full(sigma.shape, Step.BLUR, np.int8), each
