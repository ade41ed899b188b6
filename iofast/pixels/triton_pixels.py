"""The pixel pass in Triton: identical to torch_pixels.py, with one read and one write per pixel.

A program makes some pixels of one image, so all its lanes take the same branches. Contrast first needs a pass that only
reads: it applies the steps before and sums the gray values, which are integers, so that the order of programs does not
matter. The geometry pass is separate because batches decoded on the CPU need this one alone, and because its output is
still in the cache. Steps on several pixels, and all steps before them, run in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from iofast.ops import Op, affine, noise_amounts
from iofast.pixels import steps as torch_steps
from iofast.pixels.triton_colour import gray, take_steps
from iofast.pixels.upload import upload
from iofast.work import NOISE_HASH, NOISE_MIDDLE, NOISE_STEP, NOISE_TERMS, Step, Work

_GOLDEN, _MIX_1, _MIX_2 = (tl.constexpr(each) for each in NOISE_HASH)
_TERMS, _MIDDLE, _STEP = tl.constexpr(NOISE_TERMS), tl.constexpr(NOISE_MIDDLE), tl.constexpr(NOISE_STEP)

_BLOCK, _WARPS = 1024, 8  # four pixels per lane: 32 registers, half as many as with 4 warps


@triton.jit
def _pixels(images, offset, pixel, mask, in_c, in_p):
    """Load pixels of an image as int32."""
    place = images + offset + pixel * in_p
    red = tl.load(place, mask=mask, other=0).to(tl.int32)
    green = tl.load(place + in_c, mask=mask, other=0).to(tl.int32)
    blue = tl.load(place + 2 * in_c, mask=mask, other=0).to(tl.int32)
    return red, green, blue


@triton.jit
def _gray_sums(
    images, table, columns, offsets, upto, sums, pixels, in_n, in_c, in_p, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the gray values before step `upto` of each image to `sums`; images with -1 are skipped."""
    n = tl.program_id(0).to(tl.int64)
    before = tl.load(upto + n)
    if before >= 0:
        pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = pixel < pixels
        red, green, blue = _pixels(images, n * in_n, pixel, inside, in_c, in_p)
        own = table + n * columns
        red, green, blue = take_steps(red, green, blue, own, offsets + n * (STEPS + 1), before, STEPS)
        values = tl.where(inside, gray(red, green, blue), 0)
        tl.atomic_add(sums + n, tl.sum(values).to(tl.int64))


@triton.jit
def _finished(
    images,
    table,
    columns,
    offsets,
    constants,
    n,
    pixel,
    width,
    inside,
    in_n,
    in_c,
    in_p,
    STEPS: tl.constexpr,
    ERASINGS: tl.constexpr,
):
    """Return pixels of image `n` after steps, normalisation and erasing."""
    red, green, blue = _pixels(images, n * in_n, pixel, inside, in_c, in_p)
    own = table + n * columns
    red, green, blue = take_steps(red, green, blue, own, offsets + n * (STEPS + 1), STEPS, STEPS)
    red = red.to(tl.float32) * tl.load(constants) + tl.load(constants + 3)
    green = green.to(tl.float32) * tl.load(constants + 1) + tl.load(constants + 4)
    blue = blue.to(tl.float32) * tl.load(constants + 2) + tl.load(constants + 5)
    for erasing in tl.static_range(ERASINGS):
        erased = _within(own + 3 * STEPS + 4 * erasing, pixel, width)
        fills = own + 3 * STEPS + 4 * ERASINGS + 3 * erasing
        number = tl.load(own + 3 * STEPS + 7 * ERASINGS + erasing)
        red = tl.where(erased, _number(fills), red)
        green = tl.where(erased, _number(fills + 1), green)
        blue = tl.where(erased, _number(fills + 2), blue)
        if number != 0:
            amounts = constants + 6 + 3 * erasing
            red = tl.where(erased, red + _noise(number, pixel, 0) * tl.load(amounts), red)
            green = tl.where(erased, green + _noise(number, pixel, 1) * tl.load(amounts + 1), green)
            blue = tl.where(erased, blue + _noise(number, pixel, 2) * tl.load(amounts + 2), blue)
    return red, green, blue


@triton.jit
def _number(place):
    """Load a float of the table."""
    return tl.load(place).to(tl.float32, bitcast=True)


@triton.jit
def _noise(number, pixel, channel):
    """Return `work.noise_of` for pixels of one channel."""
    total = pixel * 0
    for term in tl.static_range(_TERMS):
        bits = ((pixel * 3 + channel) * _TERMS + term).to(tl.uint32) * _GOLDEN + number.to(tl.uint32)
        bits = (bits ^ (bits >> 16)) * _MIX_1
        bits = (bits ^ (bits >> 13)) * _MIX_2
        bits = bits ^ (bits >> 16)
        total += (bits & 0xFFFF).to(tl.int32) + (bits >> 16).to(tl.int32)
    return (total - _MIDDLE).to(tl.float32) * _STEP


@triton.jit
def _within(box, pixel, width):
    """Whether pixels lie within the box y0, x0, y1, x1."""
    y, x = pixel // width, pixel % width
    high = (y >= tl.load(box)) & (y < tl.load(box + 2))
    return high & (x >= tl.load(box + 1)) & (x < tl.load(box + 3))


@triton.jit
def _finish(
    images,
    table,
    columns,
    offsets,
    constants,
    out,
    pixels,
    width,
    in_n,
    in_c,
    in_p,
    out_n,
    out_c,
    out_p,
    STEPS: tl.constexpr,
    ERASINGS: tl.constexpr,
    MIXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    red, green, blue = _finished(
        images, table, columns, offsets, constants, n, pixel, width, inside, in_n, in_c, in_p, STEPS, ERASINGS
    )
    if MIXES:
        mixing = table + n * columns + 3 * STEPS + 8 * ERASINGS
        partner = tl.load(mixing).to(tl.int64)
        if partner != n:
            other_red, other_green, other_blue = _finished(
                images,
                table,
                columns,
                offsets,
                constants,
                partner,
                pixel,
                width,
                inside,
                in_n,
                in_c,
                in_p,
                STEPS,
                ERASINGS,
            )
            patch = _within(mixing + 2, pixel, width)
            share = tl.where(patch, 0.0, _number(mixing + 1))
            red = red * share + other_red * (1 - share)
            green = green * share + other_green * (1 - share)
            blue = blue * share + other_blue * (1 - share)
    place = out + n * out_n + pixel * out_p
    tl.store(place, red.to(out.dtype.element_ty), mask=inside)
    tl.store(place + out_c, green.to(out.dtype.element_ty), mask=inside)
    tl.store(place + 2 * out_c, blue.to(out.dtype.element_ty), mask=inside)


def apply(
    images: torch.Tensor,
    ops: Sequence[Op],
    work: Work,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.channels_last,
) -> torch.Tensor:
    """Run `pixels.apply` on uint8 `images` (N, 3, H, W); `dtype` is float32, float16 or bfloat16."""
    height, width = images.shape[2:]
    if not images.is_contiguous():
        images = images.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(images, dtype=dtype, memory_format=memory_format)
    if not images.numel():
        return out
    images, work = _without_filters(images, work)
    numbers = torch_steps.whole_numbers(work.steps, work.numbers)
    table = upload(_rows(work, numbers), images.device)
    values = np.concatenate((affine(ops).ravel(), noise_amounts(ops).ravel()))
    constants = upload(values.astype(np.float32), images.device)
    _finish[_grid(images)](
        images,
        table,
        table.shape[1],
        _offsets(images, table, work, numbers[1]),
        constants,
        out,
        height * width,
        width,
        *_strides(images),
        *_strides(out),
        STEPS=work.steps.shape[1],
        ERASINGS=work.erased.shape[1],
        MIXES=work.mixes,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    return out


def _without_filters(images: torch.Tensor, work: Work) -> tuple[torch.Tensor, Work]:
    """Apply all steps up to the last on several pixels, and return the images with the remaining work."""
    filters = np.flatnonzero((work.steps >= Step.AUTOCONTRAST).any(axis=0))
    if not filters.size:
        return images, work
    until = int(filters[-1]) + 1
    images = torch_steps.take_steps(images, work.steps[:, :until], work.numbers[:, :until])
    return images, replace(work, steps=work.steps[:, until:], numbers=work.numbers[:, until:])


def _offsets(images: torch.Tensor, table: torch.Tensor, work: Work, bits: NDArray[np.int32]) -> torch.Tensor:
    """Return the addends of brightness and contrast, int32 (N, S + 1); the last column is a place for unused ones."""
    n, _, height, width = images.shape
    steps = work.steps.shape[1]
    offsets = upload(np.pad(bits > 0, ((0, 0), (0, 1))).astype(np.int32), images.device)
    for upto in _contrasts(work):
        sums = torch.zeros(n, dtype=torch.int64, device=images.device)
        before = upload(upto, images.device)
        _gray_sums[_grid(images)](
            images,
            table,
            table.shape[1],
            offsets,
            before,
            sums,
            height * width,
            *_strides(images),
            STEPS=steps,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
        factors = work.numbers[np.arange(n), np.maximum(upto, 0), 0]
        addends = torch_steps.contrast_offsets(sums, height * width, factors)
        offsets.scatter_(1, (before.long() % (steps + 1))[:, None], addends[:, None])
    return offsets


def _grid(images: torch.Tensor) -> tuple[int, int]:
    """Return one program for each block of pixels of each image."""
    return len(images), triton.cdiv(images.shape[2] * images.shape[3], _BLOCK)


def _strides(images: torch.Tensor) -> tuple[int, int, int]:
    """Return the strides of images, channels and pixels."""
    height, width = images.shape[2:]
    return images.stride(0), images.stride(1), images.stride(2) // width if height > 1 else images.stride(3)


def _rows(work: Work, numbers: tuple[NDArray[np.int32], NDArray[np.int32]]) -> NDArray[np.int32]:
    """Join all columns, int32 (N, 3 S + 8 E + 6), floats by their bits.

    They need only one copy to the device. Each takes the host as long as a pass takes the device.
    """
    n = len(work)
    parts = (
        work.steps,
        *numbers,
        work.erased.reshape(n, -1),
        work.fills.reshape(n, -1).view(np.int32),
        work.noise,
        work.partner[:, None],
        work.share[:, None].view(np.int32),
        work.patch,
    )
    return np.concatenate([part.astype(np.int32) for part in parts], axis=1)


def _contrasts(work: Work) -> list[NDArray[np.int32]]:
    """Return the step of the first contrast of each image, of the second, …, each int32 (N,); -1 = none."""
    wanted = work.steps == Step.CONTRAST
    nth = np.where(wanted, wanted.cumsum(axis=1), 0)
    rounds = int(nth.max(initial=0))
    places = [nth == number for number in range(1, rounds + 1)]
    return [np.where(each.any(axis=1), each.argmax(axis=1), -1).astype(np.int32) for each in places]
