"""Random images and work for the tests of pixels, and torchvision's definitions in plain NumPy, one image at a time."""

from __future__ import annotations

import colorsys

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from iofast import transforms as T
from iofast.choices import Draw
from iofast.ops import Op
from iofast.work import Step, Work, noise_of

IMAGENET = T.Normalize.imagenet()
JITTER = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
EVERYTHING: list[Op] = [
    JITTER,
    T.RandomChoice([T.Grayscale(), [T.ColorJitter(contrast=0.5), T.Grayscale()]]),
    T.RandomGrayscale(0.3),
    T.RandomSolarize(0.5, p=0.3),
    IMAGENET,
    T.RandomErasing(0.5, value=(0.1, 0.2, 0.3)),
    T.RandomErasing(0.5, value="random"),
]
Pixels = NDArray[np.float64]


_SHARES, _FACTORS = st.floats(0, 1, width=32), st.floats(0, 2, width=32)
_THREES = st.tuples(*[st.floats(0.125, 1, width=32)] * 3)
_COLOURS = st.one_of(
    st.builds(T.ColorJitter, _FACTORS, _FACTORS, _FACTORS, st.floats(0, 0.5, width=32)),
    st.just(T.Grayscale()),
    st.builds(T.RandomGrayscale, _SHARES),
    st.builds(T.Solarize, _SHARES),
    st.builds(T.RandomSolarize, _SHARES, _SHARES),
)
_CHOICES = st.lists(_COLOURS, min_size=2, max_size=3).map(T.RandomChoice)
_ERASING = st.builds(T.RandomErasing, _SHARES, value=st.one_of(st.just("random"), _SHARES, _THREES))


@st.composite
def operations(draw: st.DrawFn) -> list[Op]:
    """Operations of pixels with any parameters, in an order that transforms may have."""
    colours = draw(st.lists(st.one_of(_COLOURS, _CHOICES), max_size=4))
    after: list[Op] = [draw(st.builds(T.Normalize, _THREES, _THREES))] if draw(st.booleans()) else []
    return [*colours, *after, *draw(st.lists(_ERASING, max_size=2))]


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 (N, 3, H, W) in channels-last: smooth colours and noise, with gray, black and white pixels among them."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, height, width, 3), np.uint8)
    images[:, ::3] = rng.integers(0, 256, (n, 1, 1, 3), np.uint8)
    images[:, :, ::5] = images[:, :, ::5, :1]
    images[:, :1, :1], images[:, -1:, -1:] = 0, 255
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def drawn_work(ops: list[Op], n: int, size: tuple[int, int], seed: int = 0, *, paired: bool = False) -> Work:
    """What is drawn for positions 0, 1, …"""
    widths, heights = np.full(n, size[1]), np.full(n, size[0])
    made = T.compile(ops).work(Draw(seed, 0, np.arange(n)), widths, heights)
    rows = np.arange(n)
    return made.paired(np.where((rows ^ 1) < n, rows ^ 1, rows)) if paired else made


def expected(image: NDArray[np.uint8], ops: list[Op], work: Work, row: int) -> Pixels:
    """One finished image (3, H, W) in float64, before it is mixed, step by step as torchvision documents it."""
    pixels = image.astype(np.float64) / 255
    for code, factor in zip(work.steps[row].tolist(), work.factors[row].astype(np.float64).tolist(), strict=True):
        pixels = one_step(pixels, code, factor)
    erasings = 0
    for op in ops:
        if isinstance(op, T.Normalize):
            pixels = (pixels - np.reshape(op.mean, (3, 1, 1))) / np.reshape(op.std, (3, 1, 1))
        elif isinstance(op, T.RandomErasing):
            y0, x0, y1, x1 = work.erased[row, erasings]
            pixels[:, y0:y1, x0:x1] = 0 if op.random else np.reshape(op.value, (3, 1, 1))
            if op.random:
                places = np.arange(y0, y1)[:, None] * pixels.shape[2] + np.arange(x0, x1)
                pixels[:, y0:y1, x0:x1] = noise_of(int(work.noise[row, erasings]), places)
            erasings += 1
    return pixels


def one_step(pixels: Pixels, code: int, factor: float) -> Pixels:
    gray = np.tensordot((0.2989, 0.587, 0.114), pixels, 1)
    if code == Step.BRIGHTNESS:
        return np.clip(pixels * factor, 0, 1)
    if code == Step.CONTRAST:
        return np.clip(pixels * factor + gray.mean() * (1 - factor), 0, 1)
    if code == Step.SATURATION:
        return np.clip(pixels * factor + gray * (1 - factor), 0, 1)
    if code == Step.SOLARIZE:
        return np.where(pixels >= factor, 1 - pixels, pixels)
    if code == Step.HUE:
        turned = np.empty_like(pixels)
        for y, x in np.ndindex(pixels.shape[1:]):
            h, s, v = colorsys.rgb_to_hsv(*pixels[:, y, x])
            turned[:, y, x] = colorsys.hsv_to_rgb((h + factor) % 1, s, v)
        return turned
    return pixels
