"""Pillow's operations on colours and its affine transforms, as steps of the kernel that equal them to the last bit.

A step is a code of `iofast.work` with its numbers. It may follow any crop and resize of a lazy RGB image; crops and
resizes after it are Pillow's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

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
LUMA: Colour = Step.LUMA, ()


def flip(*, across: bool) -> Colour:
    """Return the step that mirrors left to right, else top to bottom."""
    return Step.FLIP, (float(across), float(not across))


def _blur(filter: object) -> Colour | None:
    if type(filter) is not ImageFilter.GaussianBlur:
        return None
    radius = filter.radius
    x, y = radius if isinstance(radius, Sequence) else (radius, radius)
    return (PillowStep.BLUR, (float(x), float(y))) if min(x, y) >= 0 and max(x, y) <= _MOST_SIGMA else None


def _add_below(lut: Any) -> Colour | None:
    """Return the step of a table for three channels: n added below a threshold (timm)."""
    if not isinstance(lut, list) or len(lut) != 3 * 256:
        return None
    number = lut[0]
    below = next((level for level in range(256) if lut[level] == level), 256)
    wanted = [min(255, level + number) if level < below else level for level in range(256)]
    same = type(number) is int and number > 0 and lut == 3 * wanted  # Pillow rounds entries that are floats
    return (Step.ADD_BELOW, (float(below), float(number))) if same else None


# The step of each operation by Pillow's or torchvision's name and arguments; None: Pillow does it.
STEPS: dict[str, Callable[..., Colour | None]] = {
    "Brightness": lambda factor: (PillowStep.BRIGHTNESS, (float(factor),)),  # four classes of ImageEnhance
    "Contrast": lambda factor: (PillowStep.CONTRAST, (float(factor),)),
    "Color": lambda factor: (PillowStep.COLOR, (float(factor),)),
    "Sharpness": lambda factor: (PillowStep.SHARPNESS, (float(factor),)),
    "autocontrast": lambda: (PillowStep.AUTOCONTRAST, ()),  # five functions of ImageOps
    "equalize": lambda: (Step.EQUALIZE, ()),
    "invert": lambda: (Step.SOLARIZE, (0.0,)),
    "posterize": lambda bits: (Step.POSTERIZE, (bits,)) if type(bits) is int and 1 <= bits <= 8 else None,
    "solarize": lambda threshold=128: (Step.SOLARIZE, (float(threshold),)) if 0 <= threshold <= 256 else None,
    "adjust_hue": lambda hue_factor: (  # two functions of torchvision
        (PillowStep.HUE, (float(int(hue_factor * 255)),)) if abs(hue_factor) <= 0.5 else None
    ),
    "to_grayscale": lambda num_output_channels: LUMA if num_output_channels == 3 else None,
    "filter": _blur,  # two methods of images
    "point": _add_below,
}
WITHOUT_INFO = ("Brightness", "Contrast", "adjust_hue", "to_grayscale")  # their results have no metadata


def affine(size: tuple[int, int], data: Any, resample: Any, fillcolor: Any) -> Colour | None:
    """Return the step of an affine transform of an image of this size to its own size; None: Pillow does it."""
    code, matrix = _AFFINE[resample], tuple(map(float, data[:6]))
    a, b, c, d, e, f = matrix
    corners = [each for x in (0, size[0]) for y in (0, size[1]) for each in (a * x + b * y + c, d * x + e * y + f)]
    if not all(abs(each) < _MOST_FIXED for each in (*corners, *matrix)):
        return None
    red, green, blue = Image.new("RGB", (1, 1), fillcolor).getpixel((0, 0))  # type: ignore[misc]  # three of them
    return code, (*matrix, red << 16 | green << 8 | blue)


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
                numbers[row, column, 12] = values[6]
            else:
                numbers[row, column, : len(values)] = values
    work = replace(no_work(len(steps)), steps=codes, numbers=numbers)
    return Finish(work, np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32), "uint8")
