"""What is random in pixel operations, drawn for each sample of a batch: descriptions in, a table of columns out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.errors import OptionError
from iofast.ops import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    Level,
    Mix,
    MixUp,
    Op,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomOrder,
    RandomPosterize,
    RandomSolarize,
    Solarize,
    erase_fill,
)
from iofast.transforms.geometry import ATTEMPTS, Column, drawn_sides
from iofast.work import NUMBERS, Step, Work, still

_JITTER = (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.HUE)
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))

# Less than a level by this much is at the level: 128 / 255 * 255 may come out as 128.00000000000003.
_SLACK = 2.0**-10

_NOISES = (1 << 31) - 2  # that an int32 can number; 0 is none

_Steps = tuple[NDArray[np.int8], NDArray[np.float32]]
_Erased = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]  # a box, a fill and a noise for each image


def work(ops: Sequence[Op], draw: Draw, widths: Column, heights: Column) -> Work:
    """The work of a batch whose finished images are `widths` x `heights` (float64 columns, pixels).

    Mixing has shares and patches, and no partners yet: those are a matter of who is in the batch.
    """
    seen: Counter[str] = Counter()
    steps: list[_Steps] = []
    erased: list[_Erased] = []
    made = still(len(draw))
    for place, op in enumerate(ops):
        kind = _NAMES.get(type(op), "")
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind} {seen[kind]}"
        if isinstance(op, RandomErasing):
            erased.append(_erasing(op, draw, name, _boxes(op, draw, name, widths, heights), ops[place + 1 :]))
        elif isinstance(op, MixUp | CutMix):
            made = _mixed(made, op, draw, widths, heights)
        elif kind:
            steps.append(_steps(op, draw, name))
    if steps:
        codes, numbers = (np.concatenate(each, axis=1) for each in zip(*steps, strict=True))
        made = replace(made, steps=codes, numbers=numbers)
    if erased:
        boxes, fills, noises = (np.stack(each, axis=1) for each in zip(*erased, strict=True))
        made = replace(made, erased=boxes, fills=fills, noise=noises)
    return made


# what draws go by: a name is a part of the random numbers, and stays
_NAMES: dict[type, str] = {
    ColorJitter: "jitter",
    Grayscale: "grayscale",
    RandomGrayscale: "grayscale",
    Solarize: "solarize",
    RandomSolarize: "solarize",
    RandomInvert: "invert",
    RandomPosterize: "posterize",
    RandomAutocontrast: "autocontrast",
    RandomEqualize: "equalize",
    RandomAdjustSharpness: "sharpness",
    GaussianBlur: "blur",
    RandomChoice: "choice",
    RandomApply: "apply",
    RandomOrder: "order",
    RandomErasing: "erasing",
    MixUp: "mix",
    CutMix: "mix",
}


def _steps(op: Op, draw: Draw, name: str) -> _Steps:
    """Codes (N, how many steps it has) and numbers (N, as many, NUMBERS) of one operation on levels."""
    match op:
        case ColorJitter():
            return _jitter(op, draw, name)
        case GaussianBlur():
            return _blur(op, draw, name)
        case RandomChoice():
            return _choice(op, draw, name)
        case RandomApply():
            codes, numbers = _in_a_row(_all(op.transforms, draw, name), len(draw))
            return codes * (draw.uniform(name) < op.p), numbers
        case RandomOrder():
            return _order(_all(op.transforms, draw, name), draw, name)
        case _:
            code, number = _single(op)
            done = draw.uniform(name) < getattr(op, "p", 1)
            return (done * code).astype(np.int8), _numbers(np.full((len(draw), 1), number))


def _single(op: Op) -> tuple[Step, float]:
    """The step that an operation of one step is, and its number."""
    match op:
        case Grayscale() | RandomGrayscale():
            return Step.SATURATION, 0.0
        case Solarize() | RandomSolarize():
            return Step.SOLARIZE, op.threshold * 255 - _SLACK
        case RandomInvert():
            return Step.SOLARIZE, 0.0
        case RandomPosterize():
            return Step.POSTERIZE, op.bits
        case RandomAutocontrast():
            return Step.AUTOCONTRAST, 0.0
        case RandomEqualize():
            return Step.EQUALIZE, 0.0
        case RandomAdjustSharpness():
            return Step.SHARPNESS, op.sharpness_factor
    raise OptionError(f"{op!r} is no operation on levels")


def _numbers(*values: Column) -> NDArray[np.float32]:
    """The first numbers of each step, (N, S) each; the others are 0."""
    made = np.zeros((*values[0].shape, NUMBERS), np.float32)
    for place, each in enumerate(values):
        made[..., place] = each
    return made


def _all(ops: Sequence[Level], draw: Draw, name: str) -> list[_Steps]:
    """Each operation draws under a name of its own, so that what one does is no hint of what another does."""
    return [_steps(op, draw, f"{name} {place}") for place, op in enumerate(ops)]


def _in_a_row(made: Sequence[_Steps], rows: int) -> _Steps:
    nothing: _Steps = np.zeros((rows, 0), np.int8), _numbers(np.zeros((rows, 0)))
    codes, numbers = zip(nothing, *made, strict=True)
    return np.concatenate(codes, axis=1), np.concatenate(numbers, axis=1)


def _beside(made: Sequence[_Steps], rows: int) -> _Steps:
    """As many steps of each as the longest has, (N, how many there are, steps)."""
    most = max(codes.shape[1] for codes, _ in made)
    codes, numbers = np.zeros((rows, len(made), most), np.int8), _numbers(np.zeros((rows, len(made), most)))
    for place, (own, theirs) in enumerate(made):
        codes[:, place, : own.shape[1]], numbers[:, place, : own.shape[1]] = own, theirs
    return codes, numbers


def _choice(op: RandomChoice, draw: Draw, name: str) -> _Steps:
    rows = len(draw)
    lists = [_in_a_row(_all(each, draw, f"{name} {number}"), rows) for number, each in enumerate(op.transforms)]  # type: ignore[arg-type]
    codes, numbers = _beside(lists, rows)
    ends = np.asarray(op.p, np.float64).cumsum()
    taken = np.searchsorted(ends / ends[-1], draw.uniform(name)[:, 0], "right")
    return codes[np.arange(rows), taken], numbers[np.arange(rows), taken]


def _order(made: Sequence[_Steps], draw: Draw, name: str) -> _Steps:
    codes, numbers = _beside(made, len(draw))
    order = np.argsort(draw.uniform(name, len(made)), axis=1, kind="stable")
    steps = codes.shape[1] * codes.shape[2]
    codes = np.take_along_axis(codes, order[..., None], axis=1).reshape(len(draw), steps)
    return codes, np.take_along_axis(numbers, order[..., None, None], axis=1).reshape(len(draw), steps, NUMBERS)


def _blur(op: GaussianBlur, draw: Draw, name: str) -> _Steps:
    across, down = (size // 2 for size in op.kernel_size)  # type: ignore[union-attr]
    low, high = op.sigma  # type: ignore[misc]
    sigma = low + (high - low) * draw.uniform(name)
    numbers = _numbers(sigma, np.full_like(sigma, across), sigma, np.full_like(sigma, down))
    return np.full(sigma.shape, Step.BLUR, np.int8), numbers


def _jitter(op: ColorJitter, draw: Draw, name: str) -> _Steps:
    """Lanes 0 to 3 of the name are the factors, 4 to 7 the order: what has the smaller number is done first."""
    u = draw.uniform(name, 8)
    spans = np.array((op.brightness, op.contrast, op.saturation, op.hue), np.float64)
    used = [number for number, neutral in enumerate(_NEUTRAL) if tuple(spans[number]) != neutral]
    factors = spans[used, 0] + (spans[used, 1] - spans[used, 0]) * u[:, used]
    order = np.argsort(u[:, [4 + number for number in used]], axis=1, kind="stable")
    codes = np.array([_JITTER[number] for number in used], np.int8)[order]
    return codes.reshape(len(u), len(used)), _numbers(np.take_along_axis(factors, order, axis=1))


def _boxes(op: RandomErasing, draw: Draw, name: str, widths: Column, heights: Column) -> NDArray[np.int32]:
    """Lane 0: whether; 1 and 2: the place (top, left); 3 + 2i and 4 + 2i: area and ratio of attempt i."""
    u = draw.uniform(name, 3 + 2 * ATTEMPTS)
    area = (widths * heights)[:, None]
    h, w = drawn_sides(area, u[:, 3::2], u[:, 4::2], op.scale, op.ratio)
    fits = (h < heights[:, None]) & (w < widths[:, None])
    first = np.arange(len(u)), np.argmax(fits, axis=1)
    done = (u[:, 0] < op.p) & fits[first]
    h, w = h[first] * done, w[first] * done
    y, x = np.floor(u[:, 1] * (heights - h + 1)), np.floor(u[:, 2] * (widths - w + 1))
    return np.stack((y, x, y + h, x + w), axis=1).astype(np.int32)


def _erasing(op: RandomErasing, draw: Draw, name: str, boxes: NDArray[np.int32], after: Sequence[Op]) -> _Erased:
    """Boxes with what they are filled with: a value that the operations `after` it normalise, or noise."""
    fills = np.broadcast_to(erase_fill(op, after).astype(np.float32), (len(draw), 3))
    noise = 1 + draw.integers(f"{name} noise", _NOISES) if op.random else np.zeros(len(draw))
    return boxes, fills, noise.astype(np.int32)


def _mixed(made: Work, op: Mix, draw: Draw, widths: Column, heights: Column) -> Work:
    share = draw.beta("mix", op.alpha)
    if isinstance(op, MixUp):
        return replace(made, share=share.astype(np.float32), own=share.astype(np.float32))
    u = draw.uniform("mix place", 2)
    x, y = np.floor(u[:, 0] * widths), np.floor(u[:, 1] * heights)
    half = 0.5 * np.sqrt(1 - share)
    w, h = np.floor(half * widths), np.floor(half * heights)
    x0, y0, x1, y1 = np.maximum(x - w, 0), np.maximum(y - h, 0), np.minimum(x + w, widths), np.minimum(y + h, heights)
    own = 1 - (x1 - x0) * (y1 - y0) / (widths * heights)
    return replace(made, patch=np.stack((y0, x0, y1, x1), axis=1).astype(np.int32), own=own.astype(np.float32))
