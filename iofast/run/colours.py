"""Pillow's operations on colours and its affine transforms, as steps of the kernel that equal them to the last bit.

A step is a code of `iofast.work` with its numbers. It may follow any crop and resize of a lazy RGB image; crops and
resizes after it are Pillow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from iofast.kernel.contract import Finish
from iofast.work import NUMBERS, PillowStep, Step, no_work

Colour = tuple[int, tuple[float, ...]]
_MOST_SIGMA = 10_000  # of the kernel's blur
_MOST_FIXED = 1 << 14  # coordinates up to which Pillow's nearest affine transform surely uses its fixed point

_AFFINE = {
    Image.Resampling.NEAREST: PillowStep.AFFINE_NEAREST,
    Image.Resampling.BILINEAR: PillowStep.AFFINE_BILINEAR,
    Image.Resampling.BICUBIC: PillowStep.AFFINE_BICUBIC,
}

ENHANCERS = {  # of ImageEnhance; whether the result has the `info` of the image
    "Brightness": (PillowStep.BRIGHTNESS, False),
    "Contrast": (PillowStep.CONTRAST, False),
    "Color": (PillowStep.COLOR, True),
    "Sharpness": (PillowStep.SHARPNESS, True),
}
# Functions of ImageOps, with the step for their arguments after the image; None: Pillow does it.
OPERATIONS: dict[str, Callable[..., Colour | None]] = {
    "autocontrast": lambda: (PillowStep.AUTOCONTRAST, ()),
    "equalize": lambda: (Step.EQUALIZE, ()),
    "invert": lambda: (Step.SOLARIZE, (0.0,)),
    "posterize": lambda bits: (Step.POSTERIZE, (bits,)) if type(bits) is int and 1 <= bits <= 8 else None,
    "solarize": lambda threshold=128: (Step.SOLARIZE, (float(threshold),)) if 0 <= threshold <= 256 else None,
}
LUMA: Colour = Step.LUMA, ()


def hue(factor: float) -> Colour:
    """Return the step of torchvision's `adjust_hue`, for -0.5 to 0.5."""
    return PillowStep.HUE, (float(int(factor * 255)),)


def flip(*, across: bool) -> Colour:
    """Return the step that mirrors left to right, else top to bottom."""
    return Step.FLIP, (float(across), float(not across))


def blur(filter: object) -> Colour | None:
    """Return the step of a filter of Pillow's; None if it is no Gaussian blur that the kernel does."""
    from PIL import ImageFilter

    if type(filter) is not ImageFilter.GaussianBlur:
        return None
    radius = filter.radius
    x, y = radius if isinstance(radius, Sequence) else (radius, radius)
    return (PillowStep.BLUR, (float(x), float(y))) if min(x, y) >= 0 and max(x, y) <= _MOST_SIGMA else None


def affine(size: tuple[int, int], data: Any, resample: Any, fillcolor: Any) -> Colour | None:
    """Return the step of an affine transform of an image of this size to its own size; None: Pillow does it."""
    try:
        code, matrix = _AFFINE[resample], tuple(map(float, data[:6]))
        a, b, c, d, e, f = matrix
    except (KeyError, TypeError, ValueError):
        return None
    corners = [each for x in (0, size[0]) for y in (0, size[1]) for each in (a * x + b * y + c, d * x + e * y + f)]
    if not all(abs(each) < _MOST_FIXED for each in (*corners, *matrix)):
        return None
    red, green, blue = Image.new("RGB", (1, 1), fillcolor).getpixel((0, 0))  # type: ignore[misc]  # three of them
    return code, (*matrix, red << 16 | green << 8 | blue)


def add_below(table: Any) -> Colour | None:
    """Return the step of `Image.point` with a table for three channels: n added below a threshold (timm); else None."""
    if not isinstance(table, list) or len(table) != 3 * 256:
        return None
    number = table[0]
    below = next((level for level in range(256) if table[level] == level), 256)
    wanted = [min(255, level + number) if level < below else level for level in range(256)]
    same = number > 0 and table == 3 * wanted
    return (Step.ADD_BELOW, (float(below), float(number))) if same else None


def finish(steps: Sequence[tuple[Colour, ...]]) -> Finish | None:
    """Return the kernel's table of the steps of some images, or None if they have none."""
    most = max(map(len, steps))
    if not most:
        return None
    codes = np.zeros((len(steps), most), np.int8)
    numbers = np.zeros((len(steps), most, NUMBERS), np.float32)
    for row, own in enumerate(steps):
        for column, (code, values) in enumerate(own):
            codes[row, column] = code
            if code in _AFFINE.values():
                numbers[row, column, :12] = np.array(values[:6]).view(np.float32)  # the bits of doubles
                values = values[6:]
                numbers[row, column, 12:] = values
            else:
                numbers[row, column, : len(values)] = values
    work = replace(no_work(len(steps)), steps=codes, numbers=numbers)
    return Finish(work, np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32), "uint8")


def by_pillow(image: Image.Image, steps: Sequence[Colour]) -> Image.Image:
    """Do the steps to a decoded RGB image, by Pillow."""
    for code, numbers in steps:
        image = _BY_PILLOW[code](image, *numbers)
    return image


def _enhanced(name: str) -> Callable[[Image.Image, float], Image.Image]:
    def do(image: Image.Image, factor: float) -> Image.Image:
        from PIL import ImageEnhance

        enhancer: Image.Image = getattr(ImageEnhance, name)(image).enhance(factor)
        return enhancer

    return do


def _operated(name: str) -> Callable[..., Image.Image]:
    def do(image: Image.Image, *numbers: float) -> Image.Image:
        from PIL import ImageOps

        done: Image.Image = getattr(ImageOps, name)(image, *map(int, numbers))
        return done

    return do


def _flipped(image: Image.Image, across: float, down: float) -> Image.Image:
    del down
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT if across else Image.Transpose.FLIP_TOP_BOTTOM)


def _turned(image: Image.Image, shift: float) -> Image.Image:
    hue, *rest = image.convert("HSV").split()
    return Image.merge("HSV", (hue.point(lambda level: int(level + shift) % 256), *rest)).convert("RGB")


def _blurred(image: Image.Image, x: float, y: float) -> Image.Image:
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur((x, y)))


def _transformed(filter: Image.Resampling) -> Callable[..., Image.Image]:
    def do(image: Image.Image, *numbers: float) -> Image.Image:
        *matrix, colour = numbers
        red, rest = divmod(int(colour), 1 << 16)
        fill = red, *divmod(rest, 256)
        return image.transform(image.size, Image.Transform.AFFINE, matrix, filter, fillcolor=fill)

    return do


def _added(image: Image.Image, below: float, number: float) -> Image.Image:
    return image.point(3 * [min(255, level + int(number)) if level < below else level for level in range(256)])


_BY_PILLOW: dict[int, Callable[..., Image.Image]] = {
    **{code: _transformed(filter) for filter, code in _AFFINE.items()},
    Step.ADD_BELOW: _added,
    **{code: _enhanced(name) for name, (code, _) in ENHANCERS.items()},
    PillowStep.AUTOCONTRAST: _operated("autocontrast"),
    Step.EQUALIZE: _operated("equalize"),
    Step.POSTERIZE: _operated("posterize"),
    Step.SOLARIZE: _operated("solarize"),
    PillowStep.HUE: _turned,
    PillowStep.BLUR: _blurred,
    Step.LUMA: lambda image: image.convert("L").convert("RGB"),
    Step.FLIP: _flipped,
}
