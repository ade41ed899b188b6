"""The steps of `Work` in Triton: what colour.py does, for the pixels of one block of one image."""

from __future__ import annotations

import triton
import triton.language as tl

from iofast.work import GRAY, GRAY_UNITS, Step

_RED, _GREEN, _BLUE = (tl.constexpr(weight) for weight in GRAY)
_UNITS = tl.constexpr(GRAY_UNITS)
_BRIGHTNESS, _CONTRAST = tl.constexpr(int(Step.BRIGHTNESS)), tl.constexpr(int(Step.CONTRAST))
_SATURATION, _HUE = tl.constexpr(int(Step.SATURATION)), tl.constexpr(int(Step.HUE))
_SOLARIZE = tl.constexpr(int(Step.SOLARIZE))


@triton.jit
def take_steps(red, green, blue, steps, factors, means, upto, STEPS: tl.constexpr):
    """The first `upto` of an image's STEPS steps. `steps`, `factors` and `means` (of gray, where a step is contrast)
    point at its own."""
    for number in tl.static_range(STEPS):
        code = tl.where(number < upto, tl.load(steps + number), 0)
        factor = tl.load(factors + number).to(tl.float32, bitcast=True)
        if code == _BRIGHTNESS:
            red, green, blue = _clip(red * factor), _clip(green * factor), _clip(blue * factor)
        elif code == _CONTRAST:
            red, green, blue = _blend(red, green, blue, tl.load(means + number), factor)
        elif code == _SATURATION:
            red, green, blue = _blend(red, green, blue, gray(red, green, blue), factor)
        elif code == _HUE:
            red, green, blue = _turn(red, green, blue, factor)
        elif code == _SOLARIZE:
            red = tl.where(red >= factor, 1 - red, red)
            green = tl.where(green >= factor, 1 - green, green)
            blue = tl.where(blue >= factor, 1 - blue, blue)
    return red, green, blue


@triton.jit
def gray(red, green, blue):
    """Gray values."""
    return red * _RED + green * _GREEN + blue * _BLUE


@triton.jit
def gray_units(red, green, blue):
    """Gray values as whole numbers, whose sum is the same in any order; int64."""
    return (gray(red, green, blue) * _UNITS + 0.5).to(tl.int32).to(tl.int64)


@triton.jit
def _clip(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _blend(red, green, blue, other, factor):
    rest = other * (1 - factor)
    return _clip(red * factor + rest), _clip(green * factor + rest), _clip(blue * factor + rest)


@triton.jit
def _turn(red, green, blue, factor):
    low, high = tl.minimum(tl.minimum(red, green), blue), tl.maximum(tl.maximum(red, green), blue)
    chroma = high - low
    place = tl.where(
        high == red,
        green - blue,
        tl.where(high == green, (blue - red) + 2 * chroma, (red - green) + 4 * chroma),
    )
    sixth = place / tl.where(chroma > 0, chroma, 1.0) + 6 * factor
    sixth -= tl.floor(sixth * (1 / 6)) * 6
    red = _clip(_clip(tl.abs(sixth - 3) - 1) * chroma + low)
    green = _clip(_clip(2 - tl.abs(sixth - 2)) * chroma + low)
    blue = _clip(_clip(2 - tl.abs(sixth - 4)) * chroma + low)
    return red, green, blue
