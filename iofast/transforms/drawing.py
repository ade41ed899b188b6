"""The random part of pixel operations, drawn for each sample of a batch: descriptions in, a table of columns out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.choices import Draw
from iofast.ops import Mix, Normalize, Op, RandomErasing, colours, moving, policies
from iofast.ops.choosing import ImageOp, RandomApply, RandomChoice, RandomOrder
from iofast.ops.finishing import Mixes, MixUp, erase_fill, fill_deviation
from iofast.transforms.geometry import ATTEMPTS, Column, drawn_sides
from iofast.transforms.policies import policy
from iofast.transforms.programs import DrawnImages, Program, beside, in_a_row, numbers
from iofast.transforms.warps import affine, flipped, perspective, rotated
from iofast.work import CHANNELS, NUMBERS, Step, Work, no_work

_JITTER = (Step.BRIGHTNESS, Step.CONTRAST, Step.SATURATION, Step.HUE)
_NEUTRAL = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
_SLACK = 2.0**-10  # subtracted from a threshold: 128 / 255 * 255 may come out as 128.00000000000003
_NOISES = (1 << 31) - 2  # numbers of noise in an int32; 0 is none

_Erased = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]  # boxes, fills and noises, (N, count, …)
_Drawing = Callable[[Any, DrawnImages, str], Program]  # the steps of an operation, drawn under a name


def work(ops: Sequence[Op], draw: Draw, widths: Column, heights: Column, first: Sequence[Program] = ()) -> Work:
    """The work of a batch whose finished images are `widths` x `heights` (float64 columns, pixels).

    The steps `first` come before those of `ops`. Mixing has shares and patches, but no partners: those depend on the
    batch.
    """
    images, seen = DrawnImages(draw, widths, heights), Counter[str]()
    steps: list[Program] = list(first)
    erased: list[_Erased] = []
    drawn_work = no_work(len(draw))
    for place, op in enumerate(ops):
        if isinstance(op, Mix):
            drawn_work = _mixed(drawn_work, op, images)
        elif isinstance(op, RandomErasing):
            erased.append(_erasing(op, images, _numbered("erasing", seen), ops[place + 1 :]))
        elif not isinstance(op, Normalize):
            steps.append(_steps(op, images, _numbered(_DRAWINGS[type(op)][0], seen)))
    if steps:
        codes, own = in_a_row(steps, len(draw))
        drawn_work = replace(drawn_work, steps=codes, numbers=own)
    if erased:
        boxes, fills, noises = (np.concatenate(each, axis=1) for each in zip(*erased, strict=True))
        drawn_work = replace(drawn_work, erased=boxes, fills=fills, noise=noises)
    return drawn_work


def _numbered(name: str, seen: Counter[str]) -> str:
    """A name of its own for each operation that draws under `name`."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name} {seen[name]}"


def _steps(op: ImageOp, images: DrawnImages, name: str) -> Program:
    return _DRAWINGS[type(op)][1](op, images, name)


def _single(step: Step, number: Callable[[Any], float] = lambda _: 0.0) -> _Drawing:
    """One step with one number, done with the operation's probability `p` if it has one."""

    def draw(op: Any, images: DrawnImages, name: str) -> Program:
        done = images.draw.uniform(name) < getattr(op, "p", 1)
        return (done * step).astype(np.int8), numbers(np.full((len(images), 1), number(op)))

    return draw


def _threshold(op: colours.Solarize | colours.RandomSolarize) -> float:
    return op.threshold * 255 - _SLACK


def _permutation(op: colours.RandomChannelPermutation, images: DrawnImages, name: str) -> Program:  # noqa: ARG001
    which = np.floor(len(CHANNELS) * images.draw.uniform(name))
    return np.full(which.shape, Step.PERMUTE, np.int8), numbers(which)


def _blur(op: colours.GaussianBlur, images: DrawnImages, name: str) -> Program:
    across, down = (size // 2 for size in op.kernel_size)  # type: ignore[union-attr]
    low, high = op.sigma  # type: ignore[misc]
    sigma = low + (high - low) * images.draw.uniform(name)
    own = numbers(sigma, np.full_like(sigma, across), sigma, np.full_like(sigma, down))
    return np.full(sigma.shape, Step.BLUR, np.int8), own


def _jitter(op: colours.ColorJitter, images: DrawnImages, name: str) -> Program:
    """Lanes 0 to 3 of the name are the factors, 4 to 7 the order: the smallest number comes first."""
    u = images.draw.uniform(name, 8)
    ranges = op.brightness, op.contrast, op.saturation, op.hue
    used = [number for number, neutral in enumerate(_NEUTRAL) if ranges[number] != neutral]
    order = np.argsort(u[:, [4 + number for number in used]], axis=1, kind="stable")
    codes = np.array([_JITTER[number] for number in used], np.int8)[order]
    low, high = np.array(ranges, np.float64).T
    factors = low + (high - low) * u[:, :4]
    return codes, numbers(np.take_along_axis(factors[:, used], order, axis=1))


def _all(ops: Sequence[ImageOp], images: DrawnImages, name: str) -> list[Program]:
    """Each operation draws under its own name, so that they are independent."""
    return [_steps(op, images, f"{name} {place}") for place, op in enumerate(ops)]


def _apply(op: RandomApply, images: DrawnImages, name: str) -> Program:
    codes, own = in_a_row(_all(op.transforms, images, name), len(images))
    return codes * (images.draw.uniform(name) < op.p), own


def _choice(op: RandomChoice, images: DrawnImages, name: str) -> Program:
    rows = len(images)
    lists = [in_a_row(_all(each, images, f"{name} {number}"), rows) for number, each in enumerate(op.transforms)]  # type: ignore[arg-type]
    codes, own = beside(lists, rows)
    chosen = _chosen(op.p, images.draw.uniform(name)[:, 0])
    return codes[np.arange(rows), chosen], own[np.arange(rows), chosen]


def _chosen(p: Sequence[float] | None, u: Column) -> NDArray[np.intp]:
    """Choices with the probabilities `p`, by uniform numbers."""
    ends = np.asarray(p, np.float64).cumsum()
    return np.searchsorted(ends / ends[-1], u, "right")


def _order(op: RandomOrder, images: DrawnImages, name: str) -> Program:
    rows = len(images)
    codes, own = beside(_all(op.transforms, images, name), rows)
    order = np.argsort(images.draw.uniform(name, len(op.transforms)), axis=1, kind="stable")
    steps = codes.shape[1] * codes.shape[2]
    codes = np.take_along_axis(codes, order[..., None], axis=1).reshape(rows, steps)
    return codes, np.take_along_axis(own, order[..., None, None], axis=1).reshape(rows, steps, NUMBERS)


# How each operation is drawn, and under which name. A name is part of the random numbers: never change one.
_DRAWINGS: dict[type, tuple[str, _Drawing]] = {
    colours.ColorJitter: ("jitter", _jitter),
    colours.RandomChannelPermutation: ("channels", _permutation),
    colours.Grayscale: ("grayscale", _single(Step.SATURATION)),
    colours.RandomGrayscale: ("grayscale", _single(Step.SATURATION)),
    colours.Luma: ("luma", _single(Step.LUMA)),
    colours.Solarize: ("solarize", _single(Step.SOLARIZE, _threshold)),
    colours.RandomSolarize: ("solarize", _single(Step.SOLARIZE, _threshold)),
    colours.RandomInvert: ("invert", _single(Step.SOLARIZE)),
    colours.RandomPosterize: ("posterize", _single(Step.POSTERIZE, lambda op: op.bits)),
    colours.RandomAutocontrast: ("autocontrast", _single(Step.AUTOCONTRAST)),
    colours.RandomEqualize: ("equalize", _single(Step.EQUALIZE)),
    colours.RandomAdjustSharpness: ("sharpness", _single(Step.SHARPNESS, lambda op: op.sharpness_factor)),
    colours.GaussianBlur: ("blur", _blur),
    moving.RandomHorizontalFlip: ("horizontal flip", flipped),
    moving.RandomVerticalFlip: ("vertical flip", flipped),
    moving.RandomRotation: ("rotation", rotated),
    moving.RandomAffine: ("affine", affine),
    moving.RandomPerspective: ("perspective", perspective),
    policies.RandAugment: ("policy", policy),
    policies.TrivialAugmentWide: ("policy", policy),
    policies.AutoAugment: ("policy", policy),
    policies.TimmAugment: ("policy", policy),
    RandomChoice: ("choice", _choice),
    RandomApply: ("apply", _apply),
    RandomOrder: ("order", _order),
}


def _erasing(op: RandomErasing, images: DrawnImages, name: str, after: Sequence[Op]) -> _Erased:
    """The rectangles and their fill: a value that the operations `after` normalise, a colour, noise."""
    rows, draw = len(images), images.draw
    low, most = op.count  # type: ignore[misc]
    count = np.full(rows, low) if low == most else low + draw.integers(f"{name} count", most - low + 1)
    names = [name, *(f"{name} box {number}" for number in range(2, most + 1))]
    boxes = np.stack([_boxes(op, images, each, count) for each in names], axis=1)
    boxes[np.arange(most) >= count[:, None]] = 0
    if most > 1:  # the first draw decides for all
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


def _mixed(unmixed: Work, op: Mix, images: DrawnImages) -> Work:
    """`unmixed` with shares and patches. An image that is not mixed keeps all of itself and its label."""
    draw, rows = images.draw, len(images)
    several = op.choices if isinstance(op, Mixes) else (op,)
    chosen = _chosen(op.p, draw.uniform("mix which")[:, 0]) if isinstance(op, Mixes) else np.zeros(rows, np.intp)
    share, own, patch = np.ones(rows), np.ones(rows), np.zeros((rows, 4))
    whether = draw.uniform("mix whether")[:, 0]
    for number, each in enumerate(several):
        done = (chosen == number) & (whether < each.p) & (each.until is None or draw.epoch < each.until)
        drawn = draw.beta("mix" if number == 0 else f"mix {number}", each.alpha)
        if isinstance(each, MixUp):
            share[done] = own[done] = drawn[done]
        else:
            patches, left = _patches(drawn, images)
            patch[done], own[done] = patches[done], left[done]
    return replace(unmixed, share=share.astype(np.float32), own=own.astype(np.float32), patch=patch.astype(np.int32))


def _patches(share: Column, images: DrawnImages) -> tuple[Column, Column]:
    """Rectangles (y0, x0, y1, x1) of 1 - `share` of the area, and the share of each image outside of them."""
    u = images.draw.uniform("mix place", 2)
    widths, heights = images.widths, images.heights
    x, y = np.floor(u[:, 0] * widths), np.floor(u[:, 1] * heights)
    half = 0.5 * np.sqrt(1 - share)
    w, h = np.floor(half * widths), np.floor(half * heights)
    x0, y0, x1, y1 = np.maximum(x - w, 0), np.maximum(y - h, 0), np.minimum(x + w, widths), np.minimum(y + h, heights)
    return np.stack((y0, x0, y1, x1), axis=1), 1 - (x1 - x0) * (y1 - y0) / (widths * heights)
