"""What is random in pixel operations, drawn for each sample of a batch: descriptions in, a table of columns out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.ops import (
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    ImageOp,
    Luma,
    Mix,
    Mixes,
    MixUp,
    Move,
    Op,
    Policy,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Solarize,
    TimmAugment,
    TrivialAugmentWide,
    erase_fill,
    fill_deviation,
)
from iofast.transforms.geometry import ATTEMPTS, Column, drawn_sides
from iofast.transforms.policies import policy
from iofast.transforms.programs import DrawnImages, Program, beside, in_a_row, numbers
from iofast.transforms.warps import moved
from iofast.work import CHANNELS, NUMBERS, Step, Work, no_work

_JITTER = (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.HUE)
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))

# Less than a level by this much is at the level: 128 / 255 * 255 may come out as 128.00000000000003.
_SLACK = 2.0**-10

_NOISES = (1 << 31) - 2  # that an int32 can number; 0 is none

_Erased = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]  # boxes, fills and noises, (N, count, …)


def work(ops: Sequence[Op], draw: Draw, widths: Column, heights: Column, first: Sequence[Program] = ()) -> Work:
    """The work of a batch whose finished images are `widths` x `heights` (float64 columns, pixels); the steps `first`
    come before those of `ops`.

    Mixing has shares and patches, and no partners yet: those are a matter of who is in the batch.
    """
    images, seen = DrawnImages(draw, widths, heights), Counter[str]()
    steps: list[Program] = list(first)
    erased: list[_Erased] = []
    made = no_work(len(draw))
    for place, op in enumerate(ops):
        kind = _NAMES.get(type(op), "")
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind} {seen[kind]}"
        if isinstance(op, RandomErasing):
            erased.append(_erasing(op, images, name, ops[place + 1 :]))
        elif isinstance(op, Mix):
            made = _mixed(made, op, images)
        elif kind:
            steps.append(_steps(op, images, name))  # type: ignore[arg-type]  # the others have no name
    if steps:
        codes, own = in_a_row(steps, len(draw))
        made = replace(made, steps=codes, numbers=own)
    if erased:
        boxes, fills, noises = (np.concatenate(each, axis=1) for each in zip(*erased, strict=True))
        made = replace(made, erased=boxes, fills=fills, noise=noises)
    return made


# what draws go by: a name is a part of the random numbers, and stays
_NAMES: dict[type, str] = {
    ColorJitter: "jitter",
    RandomPhotometricDistort: "distortion",
    RandomChannelPermutation: "channels",
    Grayscale: "grayscale",
    Luma: "luma",
    RandomGrayscale: "grayscale",
    Solarize: "solarize",
    RandomSolarize: "solarize",
    RandomInvert: "invert",
    RandomPosterize: "posterize",
    RandomAutocontrast: "autocontrast",
    RandomEqualize: "equalize",
    RandomAdjustSharpness: "sharpness",
    GaussianBlur: "blur",
    RandomHorizontalFlip: "horizontal flip",
    RandomVerticalFlip: "vertical flip",
    RandomRotation: "rotation",
    RandomAffine: "affine",
    RandomPerspective: "perspective",
    RandAugment: "policy",
    TrivialAugmentWide: "policy",
    AutoAugment: "policy",
    AugMix: "policy",
    TimmAugment: "policy",
    RandomChoice: "choice",
    RandomApply: "apply",
    RandomOrder: "order",
    RandomErasing: "erasing",
}


def _steps(op: ImageOp, images: DrawnImages, name: str) -> Program:
    """The steps of one operation on images."""
    match op:
        case ColorJitter():
            return _jitter(op, images.draw, name)
        case RandomPhotometricDistort():
            return _distortion(op, images.draw, name)
        case RandomChannelPermutation():
            which = np.floor(len(CHANNELS) * images.draw.uniform(name))
            return np.full(which.shape, Step.PERMUTE, np.int8), numbers(which)
        case GaussianBlur():
            return _blur(op, images.draw, name)
        case RandomChoice():
            return _choice(op, images, name)
        case RandomApply():
            codes, own = in_a_row(_all(op.transforms, images, name), len(images))
            return codes * (images.draw.uniform(name) < op.p), own
        case RandomOrder():
            return _order(_all(op.transforms, images, name), images, name)
    if isinstance(op, Policy):
        return policy(op, images, name)
    if isinstance(op, Move):
        return moved(op, images, name)
    code, number = _single(op)
    done = images.draw.uniform(name) < getattr(op, "p", 1)
    return (done * code).astype(np.int8), numbers(np.full((len(images), 1), number))


def _single(op: ImageOp) -> tuple[Step, float]:
    """The step that an operation of one step is, and its number."""
    match op:
        case Grayscale() | RandomGrayscale():
            return Step.SATURATION, 0.0
        case Luma():
            return Step.LUMA, 0.0
        case Solarize() | RandomSolarize():
            return Step.SOLARIZE, op.threshold * 255 - _SLACK
        case RandomInvert():
            return Step.SOLARIZE, 0.0
        case RandomPosterize():
            return Step.POSTERIZE, op.bits
        case RandomAutocontrast():
            return Step.AUTOCONTRAST, 0.0
        case RandomAdjustSharpness():
            return Step.SHARPNESS, op.sharpness_factor
    assert isinstance(op, RandomEqualize)
    return Step.EQUALIZE, 0.0


def _all(ops: Sequence[ImageOp], images: DrawnImages, name: str) -> list[Program]:
    """Each operation draws under a name of its own, so that what one does is no hint of what another does."""
    return [_steps(op, images, f"{name} {place}") for place, op in enumerate(ops)]


def _choice(op: RandomChoice, images: DrawnImages, name: str) -> Program:
    rows = len(images)
    lists = [in_a_row(_all(each, images, f"{name} {number}"), rows) for number, each in enumerate(op.transforms)]  # type: ignore[arg-type]
    codes, own = beside(lists, rows)
    taken = _taken(op.p, images.draw.uniform(name)[:, 0])
    return codes[np.arange(rows), taken], own[np.arange(rows), taken]


def _taken(p: Sequence[float] | None, u: Column) -> NDArray[np.intp]:
    """Which of several things with these probabilities."""
    ends = np.asarray(p, np.float64).cumsum()
    return np.searchsorted(ends / ends[-1], u, "right")


def _order(made: Sequence[Program], images: DrawnImages, name: str) -> Program:
    rows = len(images)
    codes, own = beside(made, rows)
    order = np.argsort(images.draw.uniform(name, len(made)), axis=1, kind="stable")
    steps = codes.shape[1] * codes.shape[2]
    codes = np.take_along_axis(codes, order[..., None], axis=1).reshape(rows, steps)
    return codes, np.take_along_axis(own, order[..., None, None], axis=1).reshape(rows, steps, NUMBERS)


def _blur(op: GaussianBlur, draw: Draw, name: str) -> Program:
    across, down = (size // 2 for size in op.kernel_size)  # type: ignore[union-attr]
    low, high = op.sigma  # type: ignore[misc]
    sigma = low + (high - low) * draw.uniform(name)
    own = numbers(sigma, np.full_like(sigma, across), sigma, np.full_like(sigma, down))
    return np.full(sigma.shape, Step.BLUR, np.int8), own


def _jitter(op: ColorJitter, draw: Draw, name: str) -> Program:
    """Lanes 0 to 3 of the name are the factors, 4 to 7 the order: what has the smaller number is done first."""
    u = draw.uniform(name, 8)
    spans = np.array((op.brightness, op.contrast, op.saturation, op.hue), np.float64)
    used = [number for number, neutral in enumerate(_NEUTRAL) if tuple(spans[number]) != neutral]
    factors = spans[used, 0] + (spans[used, 1] - spans[used, 0]) * u[:, used]
    order = np.argsort(u[:, [4 + number for number in used]], axis=1, kind="stable")
    codes = np.array([_JITTER[number] for number in used], np.int8)[order]
    return codes.reshape(len(u), len(used)), numbers(np.take_along_axis(factors, order, axis=1))


def _distortion(op: RandomPhotometricDistort, draw: Draw, name: str) -> Program:
    """Lanes: whether of each factor, how much of each, whether contrast comes first, whether channels change places,
    and how."""
    u = draw.uniform(name, 11)
    spans = np.array((op.brightness, op.contrast, op.saturation, op.hue), np.float64)
    factors = spans[:, 0] + (spans[:, 1] - spans[:, 0]) * u[:, 4:8]
    steps = [0, 1, 2, 3, 1]
    done = np.concatenate((u[:, steps], u[:, 9:10]), axis=1) < op.p
    done[:, 1] &= u[:, 8] < 0.5
    done[:, 4] &= u[:, 8] >= 0.5
    codes = np.array([*(_JITTER[step] for step in steps), Step.PERMUTE], np.int8)
    which = np.floor(len(CHANNELS) * u[:, 10:])
    return (done * codes).astype(np.int8), numbers(np.concatenate((factors[:, steps], which), axis=1))


def _erasing(op: RandomErasing, images: DrawnImages, name: str, after: Sequence[Op]) -> _Erased:
    """The rectangles with what they are filled with: a value that the operations `after` normalise, a colour, noise."""
    rows, draw = len(images), images.draw
    low, most = op.count  # type: ignore[misc]
    count = np.full(rows, low) if low == most else low + draw.integers(f"{name} count", most - low + 1)
    names = [name, *(f"{name} box {number}" for number in range(2, most + 1))]
    boxes = np.stack([_boxes(op, images, each, count) for each in names], axis=1)
    boxes[np.arange(most) >= count[:, None]] = 0
    if most > 1:  # the first draw says whether there are any
        boxes[draw.uniform(name)[:, 0] >= op.p] = 0
    fills = np.broadcast_to(erase_fill(op, after), (rows, most, 3))
    if op.value == "color":
        fills = fills + _normal(draw, f"{name} color", 3 * most).reshape(rows, most, 3) * fill_deviation(after)
    noise = np.zeros((rows, most), np.int32)
    for number, each in enumerate(names if op.noisy else []):
        noise[:, number] = 1 + draw.integers(f"{each} noise", _NOISES)
    return boxes, fills.astype(np.float32), noise


def _boxes(op: RandomErasing, images: DrawnImages, name: str, count: NDArray[np.int64]) -> NDArray[np.int32]:
    """Lane 0: whether; 1 and 2: the place (top, left); 3 + 2i and 4 + 2i: area and ratio of attempt i."""
    u = images.draw.uniform(name, 3 + 2 * ATTEMPTS)
    widths, heights = images.widths, images.heights
    area = (widths * heights / count)[:, None]
    h, w = drawn_sides(area, u[:, 3::2], u[:, 4::2], op.scale, op.ratio)
    fits = (h < heights[:, None]) & (w < widths[:, None])
    first = np.arange(len(u)), np.argmax(fits, axis=1)
    done = ((u[:, 0] < op.p) | (count > 1)) & fits[first]
    h, w = h[first] * done, w[first] * done
    y, x = np.floor(u[:, 1] * (heights - h + 1)), np.floor(u[:, 2] * (widths - w + 1))
    return np.stack((y, x, y + h, x + w), axis=1).astype(np.int32)


def _normal(draw: Draw, name: str, count: int) -> Column:
    """Standard normal numbers (N, count), by Box and Muller."""
    u = draw.uniform(name, 2 * count)
    return np.asarray(np.sqrt(-2 * np.log(1 - u[:, ::2])) * np.cos(2 * np.pi * u[:, 1::2]))


def _mixed(made: Work, op: Mix, images: DrawnImages) -> Work:
    """Where nothing is mixed, all of an image and its label is its own."""
    draw, rows = images.draw, len(images)
    several = op.choices if isinstance(op, Mixes) else (op,)
    taken = _taken(op.p, draw.uniform("mix which")[:, 0]) if isinstance(op, Mixes) else np.zeros(rows, np.intp)
    share, own, patch = np.ones(rows), np.ones(rows), np.zeros((rows, 4))
    whether = draw.uniform("mix whether")[:, 0]
    for number, each in enumerate(several):
        done = (taken == number) & (whether < each.p) & (each.until is None or draw.epoch < each.until)
        drawn = draw.beta("mix" if number == 0 else f"mix {number}", each.alpha)
        if isinstance(each, MixUp):
            share[done] = own[done] = drawn[done]
        else:
            theirs, left = _patches(drawn, images)
            patch[done], own[done] = theirs[done], left[done]
    columns = share.astype(np.float32), own.astype(np.float32), patch.astype(np.int32)
    return replace(made, share=columns[0], own=columns[1], patch=columns[2])


def _patches(share: Column, images: DrawnImages) -> tuple[Column, Column]:
    """Rectangles (y0, x0, y1, x1) of 1 - `share` of the area, and what of each image lies outside of them."""
    u = images.draw.uniform("mix place", 2)
    widths, heights = images.widths, images.heights
    x, y = np.floor(u[:, 0] * widths), np.floor(u[:, 1] * heights)
    half = 0.5 * np.sqrt(1 - share)
    w, h = np.floor(half * widths), np.floor(half * heights)
    x0, y0, x1, y1 = np.maximum(x - w, 0), np.maximum(y - h, 0), np.minimum(x + w, widths), np.minimum(y + h, heights)
    return np.stack((y0, x0, y1, x1), axis=1), 1 - (x1 - x0) * (y1 - y0) / (widths * heights)
