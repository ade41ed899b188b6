"""Pillow's operations on colours and its affine transforms, as steps of the kernel that equal them to the last bit.

A step is a code of `iofast.work` with its numbers. It may follow any crop and resize of a lazy RGB image; crops and
resizes after it are Pillow's. A call is the same by Pillow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from iofast.kernel.contract import Finish
from iofast.work import NUMBERS, PillowStep, Step, no_work

Colour = tuple[int, tuple[float, ...]]
Call = Callable[[Image.Image], Image.Image]  # picklable: an `operator.methodcaller`, or what `calling` returns
_MOST_SIGMA = 10_000  # of the kernel's blur
_MOST_FIXED = 1 << 14  # coordinates up to which Pillow's nearest affine transform surely uses its fixed point

_AFFINE = {
    Image.Resampling.NEAREST: PillowStep.AFFINE_NEAREST,
    Image.Resampling.BILINEAR: PillowStep.AFFINE_BILINEAR,
    Image.Resampling.BICUBIC: PillowStep.AFFINE_BICUBIC,
}

# By name: whether the result has the image's `info`, and their step.
ENHANCERS = {  # of ImageEnhance
    "Brightness": (False, PillowStep.BRIGHTNESS),
    "Contrast": (False, PillowStep.CONTRAST),
    "Color": (True, PillowStep.COLOR),
    "Sharpness": (True, PillowStep.SHARPNESS),
}
LUMA: Colour = Step.LUMA, ()
# Of ImageOps, and two of torchvision; the step for their arguments after the image, None: Pillow does it.
OPERATIONS: dict[str, tuple[bool, Callable[..., Colour | None]]] = {
    "autocontrast": (True, lambda: (PillowStep.AUTOCONTRAST, ())),
    "equalize": (True, lambda: (Step.EQUALIZE, ())),
    "invert": (True, lambda: (Step.SOLARIZE, (0.0,))),
    "posterize": (True, lambda bits: (Step.POSTERIZE, (bits,)) if type(bits) is int and 1 <= bits <= 8 else None),
    "solarize": (
        True,
        lambda threshold=128: (Step.SOLARIZE, (float(threshold),)) if 0 <= threshold <= 256 else None,
    ),
    "adjust_hue": (
        False,
        lambda hue_factor: (PillowStep.HUE, (float(int(hue_factor * 255)),)) if abs(hue_factor) <= 0.5 else None,
    ),
    "to_grayscale": (False, lambda num_output_channels: LUMA if num_output_channels == 3 else None),
}


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
    same = type(number) is int and number > 0 and table == 3 * wanted  # Pillow rounds entries that are floats
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


def calling(module: str, name: str, *given: Any, **named: Any) -> Call:
    """Return the call of a function with an image and more arguments. By name: a patched function cannot be pickled."""
    return partial(_call, module, name, given, named)


def _call(module: str, name: str, given: tuple[Any, ...], named: dict[str, Any], image: Image.Image) -> Image.Image:
    done: Image.Image = getattr(importlib.import_module(module), name)(image, *given, **named)
    return done


def enhanced(image: Image.Image, name: str, factor: float) -> Image.Image:
    """Do what a class of ImageEnhance does."""
    from PIL import ImageEnhance

    done: Image.Image = getattr(ImageEnhance, name)(image).enhance(factor)
    return done
