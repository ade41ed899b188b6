"""The steps of `Work` in torch, as an oracle for kernel/src/steps.c, filters.c and device_steps.h: the same bits.

Images are uint8 (n, 3, H, W), each with its own numbers. The arithmetic is in integers. Each step follows torchvision
v2 on uint8 tensors; docs/transforms.md lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.transforms.arguments import MOST_FACTOR
from iofast.transforms.colours import MOST_REACH
from iofast.work import CHANNELS, Edge, Step, beyond


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of an array; all is on the CPU here."""
    return torch.from_numpy(array)


Numbers = NDArray[np.float32]  # (n, NUMBERS): the parameters of each image

_SHARES = 2048  # subdivisions of the way from one pixel to the next
_FARTHEST = 1 << 20  # pixels beyond an edge


def whole(values: NDArray[np.float32], least: int, most: int) -> NDArray[np.int32]:
    """Truncate values to integers within limits; NaN becomes `least`."""
    return np.where(values > least, np.minimum(np.nan_to_num(values, posinf=most), most), least).astype(np.int32)


def spread(values: NDArray[np.int32], images: torch.Tensor) -> torch.Tensor:
    """Return one number per image, in a shape that broadcasts over its pixels."""
    return upload(values, images.device).view(-1, 1, 1, 1)


def _warp(images: torch.Tensor, numbers: Numbers, back: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images with a frame of the outside colour, and the source columns and rows in it, float32 (n, H, W)."""
    n, _, height, width = images.shape
    frames = upload(whole(numbers[:, 8:11], 0, 255).astype(np.uint8), images.device).view(n, 3, 1, 1)
    frames = frames.expand(n, 3, height + 3, width + 3).clone()
    frames[:, :, 1:-2, 1:-2] = images
    a, b, c, d, e, f, g, h = upload(numbers[:, :8].T.copy(), images.device).unsqueeze(-1).unsqueeze(-1)
    at = torch.arange(width, dtype=torch.float32, device=images.device) + 0.5
    line = torch.arange(height, dtype=torch.float32, device=images.device).view(-1, 1) + 0.5
    below = g * at + (h * line + 1)
    x, y = (a * at + (b * line + c)) / below - back, (d * at + (e * line + f)) / below - back
    x, y = torch.where(x > -1, x, -1), torch.where(y > -1, y, -1)  # NaN too
    return frames, x.clamp_(max=width) + 1, y.clamp_(max=height) + 1


def _taken(frames: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    places = (row * frames.shape[3] + column).flatten(1).unsqueeze(1).expand(-1, 3, -1)
    return frames.flatten(2).gather(2, places).view(len(frames), 3, *row.shape[1:])


def warp_nearest(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.WARP_NEAREST`: copy the source pixel of each pixel."""
    frames, x, y = _warp(images, numbers, 0)
    return _taken(frames, y.long(), x.long())


def warp_bilinear(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.WARP_BILINEAR`: interpolate between the four pixels around the source of each pixel."""
    frames, x, y = _warp(images, numbers, 0.5)
    column, row = x.long(), y.long()
    across, down = (((v - cell) * _SHARES + 0.5).to(torch.int32).unsqueeze(1) for v, cell in ((x, column), (y, row)))
    left, right, below_left, below_right = (
        _taken(frames, row + below, column + beside).to(torch.int32) for below in (0, 1) for beside in (0, 1)
    )
    upper, lower = (left << 11) + (right - left) * across, (below_left << 11) + (below_right - below_left) * across
    return ((upper << 9) + (lower - upper >> 2) * down + (1 << 19) >> 20).to(torch.uint8)


def flip(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.FLIP`: mirror left to right, top to bottom."""
    across, down = (spread((numbers[:, place] != 0).astype(np.int32), images) != 0 for place in (0, 1))
    images = torch.where(across, images.flip(3), images)
    return torch.where(down, images.flip(2), images)


def pad(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """`Step.PAD`: look up the rows and columns of the padded image."""
    n, _, height, width = images.shape
    edges = whole(numbers[:, 4], 0, int(Edge.SYMMETRIC))
    from_left, from_top = (whole(numbers[:, place], -_FARTHEST, _FARTHEST) for place in (0, 1))
    x = upload(_beyond(from_left, whole(numbers[:, 2], 1, width), edges, width), images.device)
    y = upload(_beyond(from_top, whole(numbers[:, 3], 1, height), edges, height), images.device)
    padded = images.gather(2, y.clamp(min=0).view(n, 1, -1, 1).expand(n, 3, height, width))
    padded = padded.gather(3, x.clamp(min=0).view(n, 1, 1, -1).expand(n, 3, height, width))
    fills = upload(whole(numbers[:, 5:8], 0, 255).astype(np.uint8), images.device).view(n, 3, 1, 1)
    return torch.where((y < 0).view(n, 1, -1, 1) | (x < 0).view(n, 1, 1, -1), fills, padded)


def _beyond(
    starts: NDArray[np.int32], sizes: NDArray[np.int32], edges: NDArray[np.int32], count: int
) -> NDArray[np.int64]:
    """Return the pixels of axes of `sizes` at `count` places from `starts` on, int64 (n, count)."""
    places = np.arange(count)
    rows = zip(starts.tolist(), sizes.tolist(), edges.tolist(), strict=True)
    return np.stack([beyond(places + start, size, Edge(edge)) for start, size, edge in rows])


_HUE_UNITS = 8192  # per sixth of the circle
_INT16_MAX = 32767


def take_steps(images: torch.Tensor, codes: NDArray[np.int8], numbers: NDArray[np.float32]) -> torch.Tensor:
    """Apply the steps `codes` (n, S) with their `numbers` (n, S, NUMBERS) to each image, in its own order."""
    for column in range(codes.shape[1]):
        for code in sorted(set(codes[:, column].tolist()) - {int(Step.NOTHING)}):
            rows = np.flatnonzero(codes[:, column] == code)
            where = None if len(rows) == len(images) else upload(rows, images.device)
            changed = images if where is None else images[where]
            changed = take_step(changed, Step(code), numbers[rows, column])
            images = changed if where is None else images.index_copy(0, where, changed)
    return images


def take_step(images: torch.Tensor, step: Step, numbers: Numbers) -> torch.Tensor:
    """Apply one step that depends on the images alone; `numbers` (n, NUMBERS) are the parameters of each."""
    return _STEPS[step](images, numbers)


def gray(images: torch.Tensor) -> torch.Tensor:
    """Return 0.2989 R + 0.587 G + 0.114 B of each pixel, rounded down, int32 (n, 1, H, W)."""
    red, green, blue = _planes(images)  # products have 8 fractional bits
    sums: torch.Tensor = (red * 19589 >> 8) + (green * 38470 >> 8) + (blue * 7471 >> 8)
    return sums + 1 >> 8


def _planes(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each channel, int32 (n, 1, H, W)."""
    red, green, blue = images.to(torch.int32).unbind(1)
    return red.unsqueeze(1), green.unsqueeze(1), blue.unsqueeze(1)


def _factors(factors: Numbers) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """Return factors within limits, the same as integers, and the fractional bits of their products."""
    factors = np.where(factors > 0, np.minimum(np.nan_to_num(factors, posinf=MOST_FACTOR), MOST_FACTOR), 0)
    factors = factors.astype(np.float32)
    bits = np.where(factors < 2, 5, np.where(factors < 8, 3, 0)).astype(np.int32)
    whole = np.minimum(np.rint(factors * np.exp2(bits + 9).astype(np.float32)), _INT16_MAX).astype(np.int32)
    return factors, whole, bits


def _level(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    return (values >> bits).clamp_(0, 255).to(torch.uint8)


def _on_line(images: torch.Tensor, factors: Numbers, offsets: torch.Tensor) -> torch.Tensor:
    """Multiply each image by its factor and add `offsets`, int32 (n,), to the products."""
    _, scaled, bits = _factors(factors)
    products = images.to(torch.int32) * 128 * spread(scaled, images) >> 16
    return _level(products + offsets.view(-1, 1, 1, 1), spread(bits, images))


def _blended(images: torch.Tensor, other: torch.Tensor, factors: Numbers) -> torch.Tensor:
    """Return `images` * factor + `other` * (1 - factor)."""
    _, scaled, bits = _factors(factors)
    shift = spread(bits, images)
    products = (images.to(torch.int32) - other) * 128 * spread(scaled, images) >> 16
    return _level(products + (other << shift) + (shift > 0), shift)


def whole_numbers(codes: NDArray[np.int8], numbers: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the two integer parameters of the steps on single pixels, each int32 (n, S).

    The first is a factor, threshold, mask or rotation; the second the fractional bits of the factor, or an addend.
    """
    first, second = np.zeros(codes.shape, np.int32), np.zeros(codes.shape, np.int32)
    own, more = numbers[..., 0], numbers[..., 1]
    _, factors, bits = _factors(own)
    for step, a, b in (
        (Step.BRIGHTNESS, factors, bits),
        (Step.CONTRAST, factors, bits),
        (Step.SATURATION, factors, bits),
        (Step.HUE, _turns(own), second),
        (Step.SOLARIZE, _threshold(own), second),
        (Step.POSTERIZE, _mask(own), second),
        (Step.ADD_BELOW, _threshold(own), whole(more, 0, 255)),
    ):
        first, second = np.where(codes == step, a, first), np.where(codes == step, b, second)
    return first, second


def _turns(values: Numbers) -> NDArray[np.int32]:
    """Convert rotations of the circle to units of hue."""
    return whole(np.rint(values * np.float32(6) * np.float32(_HUE_UNITS)), -3 * _HUE_UNITS, 3 * _HUE_UNITS)


def _threshold(values: Numbers) -> NDArray[np.int32]:
    return whole(np.ceil(values), 0, 256)


def _mask(bits: Numbers) -> NDArray[np.int32]:
    return (0xFF & 0xFF00 >> whole(bits, 0, 8)).astype(np.int32)


def _brightness(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    bits = _factors(numbers[:, 0])[2]
    return _on_line(images, numbers[:, 0], upload((bits > 0).astype(np.int32), images.device))


def _contrast(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    sums = gray(images).sum(dim=(1, 2, 3), dtype=torch.int64)
    offsets = contrast_offsets(sums, images.shape[2] * images.shape[3], numbers[:, 0])
    return _on_line(images, numbers[:, 0], offsets)


def contrast_offsets(sums: torch.Tensor, pixels: int, factors: Numbers) -> torch.Tensor:
    """Return the addend of contrast to products, int32 (n,), from the `sums` of gray values, int64 (n,).

    This does not synchronise with the device, unless it may lack float64, like MPS.
    """
    device = sums.device
    if device.type not in ("cpu", "cuda"):
        sums = sums.cpu()
    limited, _, shifts = _factors(factors)
    clipped, bits = upload(limited, sums.device), upload(shifts, sums.device)
    means = (sums.double() / pixels).float()
    offsets = means * (1 - clipped) * (1 << bits)
    return (offsets.round().to(torch.int32) + (bits > 0)).to(device)


def _saturation(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return _blended(images, gray(images), numbers[:, 0])


def _hue(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Compute hue times chroma, a difference of two channels plus a multiple of the chroma: without division.

    4 fractional bits; values are multiplied by 255.999 / 255 before they are rounded down, as in torchvision.
    """
    shift = spread(_turns(numbers[:, 0]), images)
    red, green, blue = _planes(images)
    most, least = (each.to(torch.int32) for each in (images.amax(1, keepdim=True), images.amin(1, keepdim=True)))
    chroma = most - least << 4
    hue = torch.where(most == green, (blue - red) * 16 + 2 * chroma, (red - green) * 16 + 4 * chroma)
    hue = torch.where(most == red, (green - blue) * 16, hue) + (chroma * 8 * shift >> 16)
    hue = hue + (hue < 0) * 6 * chroma
    hue = hue - (hue >= 6 * chroma) * 6 * chroma
    shares = (
        (hue - 3 * chroma).abs() - chroma,
        2 * chroma - (hue - 2 * chroma).abs(),
        2 * chroma - (hue - 4 * chroma).abs(),
    )
    values = (least << 4) + torch.minimum(torch.cat(shares, dim=1).clamp_(min=0), chroma)
    return (values + (values + 8 >> 8) >> 4).to(torch.uint8)


def _solarize(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return torch.where(images >= spread(_threshold(numbers[:, 0]), images), ~images, images)


def _posterize(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    return images & spread(_mask(numbers[:, 0]), images).to(torch.uint8)


def _add_below(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    below = images < spread(_threshold(numbers[:, 0]), images)
    return (images + below * spread(whole(numbers[:, 1], 0, 255), images)).clamp_(max=255).to(torch.uint8)


def _looked_up(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Map the values of each channel by its own table; `tables` is uint8 (n, 3, 256)."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _autocontrast(images: torch.Tensor, _: Numbers) -> torch.Tensor:
    """Stretch each channel to 0 to 255; a channel with a single value stays unchanged."""
    flat = images.flatten(2)
    least, most = (each.float() for each in (flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)))
    values = torch.arange(256, dtype=torch.float32, device=images.device)
    stretched = (values - least) / torch.where(most == least, 1, (most - least) * float(np.float32(1 / 255)))
    tables = torch.where(most == least, values, stretched.clamp_(0, 255)).to(torch.uint8)
    return _looked_up(images, tables)


def _equalize(images: torch.Tensor, _: Numbers) -> torch.Tensor:
    """Map each value to the number of steps that smaller values fill, as Pillow does.

    A step is a 255th of all pixels except those of the largest value.
    """
    flat = images.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    largest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - largest).div_(255, rounding_mode="floor")
    below = counts.cumsum(2) - counts
    tables = (below + (step >> 1)).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return _looked_up(images, torch.where(step > 0, tables, torch.arange(256, device=images.device)).to(torch.uint8))


def _permuted(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    orders = upload(np.array(CHANNELS)[whole(numbers[:, 0], 0, len(CHANNELS) - 1)], images.device)
    return images.gather(1, orders.view(-1, 3, 1, 1).expand_as(images))


def _luma(images: torch.Tensor, _: Numbers) -> torch.Tensor:
    red, green, blue = _planes(images)
    levels = red * 19595 + green * 38470 + blue * 7471 + 32768 >> 16
    return levels.to(torch.uint8).expand_as(images).clone()


def _sharpness(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Blend with the mean of 3 x 3 pixels, in which the middle one counts five times, except on the border."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    inner = images[:, :, 1:-1, 1:-1]
    sums = 4 * inner.to(torch.int32)
    for y in range(3):
        for x in range(3):
            sums += images[:, :, y : y + height - 2, x : x + width - 2]
    blended = images.clone()
    blended[:, :, 1:-1, 1:-1] = _blended(inner, (2 * sums + 13) // 26, numbers[:, 0])
    return blended


def _blur(images: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Blur each image, mirrored beyond its edges."""
    reaches = whole(numbers[:, 1:4:2], 0, MOST_REACH).tolist()
    sigmas = numbers[:, 0:4:2].tolist()
    return torch.cat([_blurred(*each) for each in zip(images.unsqueeze(1), sigmas, reaches, strict=True)])


def _blurred(image: torch.Tensor, sigmas: list[float], reaches: list[int]) -> torch.Tensor:
    across, down = (gaussian(sigma, reach) for sigma, reach in zip(sigmas, reaches, strict=True))
    values = image.long() << 8
    if len(down) > 1:
        values = _weighted(values, down, 2, len(down) // 2)
    if len(across) > 1:
        values = _weighted(values, across, 3, 128 + len(across) // 2)
    else:
        values = (values + 128).clamp_(max=65535)
    return (values >> 8).to(torch.uint8)


def gaussian(sigma: float, radius: int) -> list[int]:
    """Return the taps of a Gaussian that do not round to zero, in 65,536ths; they add up to 65,536."""
    places = range(1, min(radius, MOST_REACH) + 1)
    values = [math.exp(-0.5 * i * i / (sigma * sigma)) if sigma > 0 else 0.0 for i in places]
    total = 1.0
    for value in values:  # in the order of the C code
        total += 2 * value
    tail = [tap for value in values if (tap := round(value / total * 65536)) >= 1]
    return [*tail[::-1], 65536 - 2 * sum(tail), *tail]


def _weighted(values: torch.Tensor, weights: list[int], axis: int, start: int) -> torch.Tensor:
    size, reach = values.shape[axis], len(weights) // 2
    places = upload(beyond(np.arange(-reach, size + reach), size, Edge.REFLECT), values.device)
    padded = values.index_select(axis, places)
    sums = torch.full_like(values, start)
    for k, weight in enumerate(weights):
        sums += padded.narrow(axis, k, size) * weight >> 16
    return sums & 0xFFFF


_STEPS: dict[Step, Callable[[torch.Tensor, Numbers], torch.Tensor]] = {
    Step.BRIGHTNESS: _brightness,
    Step.CONTRAST: _contrast,
    Step.SATURATION: _saturation,
    Step.HUE: _hue,
    Step.SOLARIZE: _solarize,
    Step.POSTERIZE: _posterize,
    Step.ADD_BELOW: _add_below,
    Step.AUTOCONTRAST: _autocontrast,
    Step.EQUALIZE: _equalize,
    Step.SHARPNESS: _sharpness,
    Step.BLUR: _blur,
    Step.WARP_NEAREST: warp_nearest,
    Step.WARP_BILINEAR: warp_bilinear,
    Step.FLIP: flip,
    Step.PAD: pad,
    Step.PERMUTE: _permuted,
    Step.LUMA: _luma,
}
