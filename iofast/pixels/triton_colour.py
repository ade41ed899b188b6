"""Steps on single pixels in Triton, as in steps.py, for one block of pixels of one image.

Values are int32, so the results are those of every other device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from iofast.work import Step

_BRIGHTNESS, _CONTRAST = tl.constexpr(int(Step.BRIGHTNESS)), tl.constexpr(int(Step.CONTRAST))
_SATURATION, _HUE = tl.constexpr(int(Step.SATURATION)), tl.constexpr(int(Step.HUE))
_SOLARIZE, _POSTERIZE = tl.constexpr(int(Step.SOLARIZE)), tl.constexpr(int(Step.POSTERIZE))
_ADD_BELOW = tl.constexpr(int(Step.ADD_BELOW))


@triton.jit
def take_steps(red, green, blue, steps, offsets, upto, STEPS: tl.constexpr):
    """Apply the first `upto` of an image's STEPS steps.

    `steps` points at STEPS codes, then at the two integer parameters of each (`steps.whole_numbers`). `offsets` points
    at the addends of brightness and contrast.
    """
    for number in tl.static_range(STEPS):
        code = tl.where(number < upto, tl.load(steps + number), 0)
        a, b = tl.load(steps + STEPS + number), tl.load(steps + 2 * STEPS + number)
        if (code == _BRIGHTNESS) | (code == _CONTRAST):
            offset = tl.load(offsets + number)
            red, green, blue = _on_line(red, a, b, offset), _on_line(green, a, b, offset), _on_line(blue, a, b, offset)
        elif code == _SATURATION:
            other = gray(red, green, blue)
            red, green, blue = _blend(red, other, a, b), _blend(green, other, a, b), _blend(blue, other, a, b)
        elif code == _HUE:
            red, green, blue = _turn(red, green, blue, a)
        elif code == _SOLARIZE:
            red = tl.where(red >= a, 255 - red, red)
            green = tl.where(green >= a, 255 - green, green)
            blue = tl.where(blue >= a, 255 - blue, blue)
        elif code == _POSTERIZE:
            red, green, blue = red & a, green & a, blue & a
        elif code == _ADD_BELOW:
            red, green, blue = _added(red, a, b), _added(green, a, b), _added(blue, a, b)
    return red, green, blue


@triton.jit
def gray(red, green, blue):
    """Return gray values, as `steps.gray`."""
    return ((red * 19589 >> 8) + (green * 38470 >> 8) + (blue * 7471 >> 8) + 1) >> 8


@triton.jit
def _level(value, bits):
    return tl.minimum(tl.maximum(value >> bits, 0), 255)


@triton.jit
def _on_line(value, factor, bits, offset):
    return _level((value * 128 * factor >> 16) + offset, bits)


@triton.jit
def _blend(value, other, factor, bits):
    return _level(((value - other) * 128 * factor >> 16) + (other << bits) + (bits > 0).to(tl.int32), bits)


@triton.jit
def _added(value, threshold, more):
    return tl.where(value < threshold, tl.minimum(value + more, 255), value)


@triton.jit
def _turn(red, green, blue, shift):
    low, high = tl.minimum(tl.minimum(red, green), blue), tl.maximum(tl.maximum(red, green), blue)
    chroma = (high - low) << 4
    hue = tl.where(
        high == red,
        (green - blue) * 16,
        tl.where(high == green, (blue - red) * 16 + 2 * chroma, (red - green) * 16 + 4 * chroma),
    )
    hue += chroma * 8 * shift >> 16
    hue = tl.where(hue < 0, hue + 6 * chroma, hue)
    hue = tl.where(hue >= 6 * chroma, hue - 6 * chroma, hue)
    red = _from_hue(low, tl.abs(hue - 3 * chroma) - chroma, chroma)
    green = _from_hue(low, 2 * chroma - tl.abs(hue - 2 * chroma), chroma)
    blue = _from_hue(low, 2 * chroma - tl.abs(hue - 4 * chroma), chroma)
    return red, green, blue


@triton.jit
def _from_hue(low, share, chroma):
    value = (low << 4) + tl.minimum(tl.maximum(share, 0), chroma)
    return (value + ((value + 8) >> 8)) >> 4
