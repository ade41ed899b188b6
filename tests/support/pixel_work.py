"""Random images and work for the tests of pixels, and torchvision's definitions in plain NumPy, one image at a time."""

import colorsys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from iofast import kernel
from iofast import transforms as T
from iofast.choices import Draw
from iofast.kernel.contract import DecodeOptions, Finish
from iofast.loader.finishing import finished
from iofast.transforms.transform import Op
from iofast.work import CHANNELS, NUMBERS, Step, Work, no_work

# Noise of erased pixels: sums of NOISE_TERMS pairs of 16 bits. They are integers, so every device gets the same.
NOISE_TERMS = 4
NOISE_MIDDLE = NOISE_TERMS * 65_535
# 16 bits have the variance (2^32 - 1) / 12
NOISE_STEP = float(np.float32((2 * NOISE_TERMS * (2.0**32 - 1) / 12) ** -0.5))
NOISE_HASH = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35)  # the golden ratio; MurmurHash3's finalizer

IMAGENET = T.Normalize.imagenet()
JITTER = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
EVERYTHING: list[Op] = [
    JITTER,
    T.RandomChoice([T.Grayscale(), [T.ColorJitter(contrast=0.5), T.Grayscale()]]),
    T.RandomGrayscale(0.3),
    T.RandomSolarize(0.5, p=0.3),
    T.RandomOrder([T.RandomPosterize(4), T.RandomAutocontrast(), T.RandomAdjustSharpness(1.8)]),
    T.RandomApply([T.GaussianBlur(5), T.RandomEqualize(), T.RandomInvert(0.2)], p=0.4),
    T.RandomChoice([T.RandAugment(), [T.RandomVerticalFlip(), T.RandomRotation(20)]]),
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
    st.just(T.RandomChannelPermutation()),
    st.builds(T.RandomGrayscale, _SHARES),
    st.builds(T.Solarize, _SHARES),
    st.builds(T.RandomSolarize, _SHARES, _SHARES),
    st.builds(T.RandomInvert, _SHARES),
    st.builds(T.RandomPosterize, st.integers(0, 8), _SHARES),
    st.builds(T.RandomAutocontrast, _SHARES),
    st.builds(T.RandomEqualize, _SHARES),
    st.builds(T.RandomAdjustSharpness, _FACTORS, _SHARES),
    st.builds(T.GaussianBlur, st.integers(0, 9).map(lambda reach: 2 * reach + 1), st.floats(0.1, 5)),
    st.builds(T.RandomHorizontalFlip, _SHARES),
    st.builds(T.RandomRotation, st.floats(0, 180), st.sampled_from(["nearest", "bilinear"])),
    st.builds(T.RandomPerspective, _SHARES, _SHARES),
    st.builds(T.TrivialAugmentWide, interpolation=st.sampled_from(["nearest", "bilinear"])),
)
_SEVERAL = st.lists(_COLOURS, min_size=1, max_size=3)
_CHOICES = st.one_of(
    _SEVERAL.map(T.RandomChoice), _SEVERAL.map(T.RandomOrder), st.builds(T.RandomApply, _SEVERAL, _SHARES)
)
_ERASING = st.builds(T.RandomErasing, _SHARES, value=st.one_of(st.just("random"), _SHARES, _THREES))


@st.composite
def operations(draw: st.DrawFn) -> list[Op]:
    """Pixel operations with any parameters, in a valid order."""
    colours = draw(st.lists(st.one_of(_COLOURS, _CHOICES), max_size=4))
    after: list[Op] = [draw(st.builds(T.Normalize, _THREES, _THREES))] if draw(st.booleans()) else []
    return [*colours, *after, *draw(st.lists(_ERASING, max_size=2))]


def noise_of(number: int, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return noise `number` at `places` of an image (row * width + column), float32 (3, *places.shape)."""
    golden, *mixes = (np.uint32(each) for each in NOISE_HASH)
    terms = (3 * places[None] + np.arange(3).reshape(3, *[1] * places.ndim))[None] * NOISE_TERMS
    bits = (terms + np.arange(NOISE_TERMS).reshape(-1, *[1] * (places.ndim + 1))).astype(np.uint32)
    bits = bits * golden + np.uint32(number)
    for mix, shift in zip(mixes, (16, 13), strict=True):
        bits = (bits ^ (bits >> np.uint32(shift))) * mix
    bits ^= bits >> np.uint32(16)
    sums = ((bits & np.uint32(0xFFFF)) + (bits >> np.uint32(16))).sum(axis=0, dtype=np.int64)
    return np.asarray((sums - NOISE_MIDDLE).astype(np.float32) * np.float32(NOISE_STEP))


def noise(n: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """uint8 (N, 3, H, W) in channels-last: flat rows and noise, with gray, black and white pixels among them."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, height, width, 3), np.uint8)
    images[:, ::3] = rng.integers(0, 256, (n, 1, 1, 3), np.uint8)
    images[:, :, ::5] = images[:, :, ::5, :1]
    images[:, :1, :1], images[:, -1:, -1:] = 0, 255
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def drawn_work(ops: list[Op], n: int, size: tuple[int, int], seed: int = 0, *, paired: bool = False) -> Work:
    """The work drawn for positions 0, 1, …"""
    widths, heights = np.full(n, size[1]), np.full(n, size[0])
    made = T.compile(ops).work(Draw(seed, 0, np.arange(n)), widths, heights)
    rows = np.arange(n)
    return made.paired(np.where((rows ^ 1) < n, rows ^ 1, rows)) if paired else made


def expected(image: NDArray[np.uint8], ops: list[Op], work: Work, row: int) -> Pixels:
    """One finished image (3, H, W) in float64, before it is mixed, from `image` after its steps."""
    pixels = image.astype(np.float64) / 255
    erasings = 0
    for op in ops:
        if isinstance(op, T.Normalize):
            pixels = (pixels - np.reshape(op.mean, (3, 1, 1))) / np.reshape(op.std, (3, 1, 1))
        elif isinstance(op, T.RandomErasing):
            y0, x0, y1, x1 = work.erased[row, erasings]
            pixels[:, y0:y1, x0:x1] = 0 if op.noisy else np.reshape(op.value, (3, 1, 1))
            if op.noisy:
                places = np.arange(y0, y1)[:, None] * pixels.shape[2] + np.arange(x0, x1)
                pixels[:, y0:y1, x0:x1] = noise_of(int(work.noise[row, erasings]), places)
            erasings += 1
    return pixels


def one_step(image: NDArray[np.uint8], code: int, numbers: list[float]) -> Pixels:
    """An image (3, H, W) after one step as in torchvision v2 on uint8 tensors, before values are rounded down."""
    f, pixels = numbers[0], image.astype(np.float64)
    gray = np.floor(np.tensordot((0.2989, 0.587, 0.114), pixels, 1) + 1e-9)
    if code == Step.BRIGHTNESS:
        return np.clip(pixels * f, 0, 255)
    if code == Step.CONTRAST:
        return np.clip(pixels * f + gray.mean() * (1 - f), 0, 255)
    if code == Step.SATURATION:
        return np.clip(pixels * f + gray * (1 - f), 0, 255)
    if code == Step.SOLARIZE:
        return np.where(pixels >= f, 255 - pixels, pixels)
    if code == Step.POSTERIZE:
        return np.floor(pixels / 2 ** (8 - f)) * 2 ** (8 - f)
    if code == Step.ADD_BELOW:
        return np.where(pixels < f, np.minimum(pixels + numbers[1], 255), pixels)
    if code == Step.AUTOCONTRAST:
        least, most = pixels.min((1, 2), keepdims=True), pixels.max((1, 2), keepdims=True)
        return np.where(least == most, pixels, (pixels - least) * 255 / np.maximum(most - least, 1))
    if code == Step.EQUALIZE:
        return np.stack([np.asarray(ImageOps.equalize(Image.fromarray(plane))) for plane in image]).astype(np.float64)
    if code == Step.SHARPNESS:
        made = pixels.copy()
        kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
        made[:, 1:-1, 1:-1] = np.clip(f * made[:, 1:-1, 1:-1] + (1 - f) * np.rint(_around(pixels, kernel)), 0, 255)
        return made
    if code == Step.BLUR:
        across, down = (_gaussian(numbers[i], int(numbers[i + 1])) for i in (0, 2))
        reach = (0, 0), (len(down) // 2,) * 2, (len(across) // 2,) * 2
        return _around(np.pad(pixels, reach, mode="reflect"), np.outer(down, across)) + 0.5
    if code == Step.FLIP:
        return pixels[:, :: -1 if numbers[1] else 1, :: -1 if numbers[0] else 1]
    if code == Step.PERMUTE:
        return pixels[list(CHANNELS[int(f)])]
    if code == Step.LUMA:
        luma = np.asarray(Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert("L"), np.float64)
        return np.broadcast_to(luma, image.shape)
    if code == Step.HUE:
        turned = np.empty_like(pixels)
        for y, x in np.ndindex(pixels.shape[1:]):
            h, s, v = colorsys.rgb_to_hsv(*(pixels[:, y, x] / 255))
            turned[:, y, x] = colorsys.hsv_to_rgb((h + f) % 1, s, v)
        return turned * 255.999
    return _warped(pixels, code, numbers)


def _gaussian(sigma: float, radius: int) -> Pixels:
    values = np.exp(-0.5 * np.arange(-radius, radius + 1) ** 2 / sigma**2)
    return np.asarray(values / values.sum())


def _around(pixels: Pixels, kernel: Pixels) -> Pixels:
    windows = np.lib.stride_tricks.sliding_window_view(pixels, kernel.shape, axis=(1, 2))
    return np.asarray((windows * kernel).sum(axis=(-2, -1)))


def _warped(pixels: Pixels, code: int, numbers: list[float]) -> Pixels:
    """Map the middle of each pixel back to its source; the outside has the colour of the last three numbers."""
    a, b, c, d, e, f, g, h, *outside = numbers[:11]
    height, width = pixels.shape[1:]
    y, x = np.mgrid[:height, :width] + 0.5
    below = g * x + h * y + 1
    u, v = (a * x + b * y + c) / below, (d * x + e * y + f) / below
    grid = torch.from_numpy(np.stack((2 * u / width - 1, 2 * v / height - 1), -1))[None]
    planes = torch.from_numpy(np.concatenate((pixels, np.ones((1, height, width)))))[None]
    mode = "nearest" if code == Step.WARP_NEAREST else "bilinear"
    *found, inside = torch.nn.functional.grid_sample(planes, grid, mode, align_corners=False)[0].numpy()
    made = np.stack(found) + (1 - inside) * np.floor(outside)[:, None, None]
    return np.asarray(made + 0.5 * (mode == "bilinear"))


def apply(
    images: torch.Tensor, ops: Sequence[Op] = (), *, work: Work | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """uint8 images (N, 3, H, W) finished by the kernel, channels last."""
    out = torch.empty(images.shape, dtype=dtype, memory_format=torch.channels_last)
    return finished(images, ops, work, out)


def stepped(images: torch.Tensor, codes: NDArray[np.int8], numbers: NDArray[np.float32]) -> torch.Tensor:
    """uint8 images (N, 3, H, W) after their steps, codes (N, S) and numbers (N, S, NUMBERS), by the kernel."""
    return apply(images, work=replace(no_work(len(images)), steps=codes, numbers=numbers), dtype=torch.uint8)


def after_steps(pixels: NDArray[np.uint8], *steps: tuple[int, Sequence[float]]) -> NDArray[np.uint8]:
    """One image (H, W, 3) after some steps, on the instruction set that the environment names."""
    codes, numbers = np.zeros((1, len(steps)), np.int8), np.zeros((1, len(steps), NUMBERS), np.float32)
    for column, (code, values) in enumerate(steps):
        codes[0, column], numbers[0, column, : len(values)] = code, values
    work = replace(no_work(1), steps=codes, numbers=numbers)
    finish = Finish(work, np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32), "uint8")
    out = np.zeros((1, *pixels.shape), np.uint8)
    with closing(kernel.Context(DecodeOptions())) as context:
        kernel.finish_batch(context, pixels[None], finish, out)
    return out[0]


def is_uniform(values: NDArray[Any], low: float = 0, high: float = 1) -> bool:
    """Whether numbers (also integers) are uniform from `low` to `high`: Kolmogorov-Smirnov at 0.6 %."""
    shares = (np.sort(values.astype(np.float64)) - low) / (high - low)
    return bool(np.abs(shares - (np.arange(len(shares)) + 0.5) / len(shares)).max() < 1.7 / len(shares) ** 0.5)
