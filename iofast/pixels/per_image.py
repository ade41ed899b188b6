"""The work of a batch in torch, for any device: steps, normalisation, erasing, mixing, cast.

On a CPU it goes image by image, so that the float32 pixels of one stay in the cache from the first step to the cast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from iofast.ops import Op, affine, erase_values
from iofast.pixels.colour import take_steps
from iofast.work import Work, noise_of

_CHUNK = 1 << 16  # values at a time on a CPU: an image of 224 x 224 by itself, small ones in company


def carry_out(images: torch.Tensor, ops: Sequence[Op], work: Work, out: torch.Tensor) -> None:
    """What `ops` and `work` make of uint8 `images` (N, 3, H, W), into `out` of that shape, of a float type."""
    exact = torch.float64 if out.dtype == torch.float64 else torch.float32
    scale, bias = affine(ops)
    values = torch.from_numpy(erase_values(ops)).to(exact).to(images.device)  # a device may have no float64
    for rows in _chunks(images, work):
        pixels = images[rows].to(exact, memory_format=torch.contiguous_format).mul_(1 / 255)
        take_steps(pixels, work.steps[rows], work.factors[rows])
        for plane, times, more in zip(pixels.unbind(1), (scale * 255).tolist(), bias.tolist(), strict=True):
            plane.mul_(times).add_(more)
        for erasing, (value, amount) in enumerate(values):
            boxes, noises = work.erased[rows, erasing].tolist(), work.noise[rows, erasing].tolist()
            _fill(pixels, boxes, value.view(3, 1, 1), amount.view(3, 1, 1), noises)
        out[rows].copy_(_mixed(pixels, work, rows))


def _chunks(images: torch.Tensor, work: Work) -> Iterator[slice]:
    """Rows that are done together; partners always are."""
    n = len(images)
    step = max(1, _CHUNK // max(1, images[:1].numel())) if images.device.type == "cpu" else max(1, n)
    start = 0
    while start < n:
        stop = min(start + step, n)
        stop += stop < n and work.partner[stop - 1] == stop
        yield slice(start, stop)
        start = stop


def _fill(
    pixels: torch.Tensor, boxes: list[list[int]], value: torch.Tensor, amount: torch.Tensor, noises: list[int]
) -> None:
    width = pixels.shape[3]
    for image, (y0, x0, y1, x1), number in zip(pixels, boxes, noises, strict=True):
        if y1 > y0 and x1 > x0:
            image[:, y0:y1, x0:x1] = value
            if number:
                noise = noise_of(number, np.arange(y0, y1)[:, None] * width + np.arange(x0, x1))
                image[:, y0:y1, x0:x1] += torch.from_numpy(noise).to(image.device, image.dtype) * amount


def _mixed(pixels: torch.Tensor, work: Work, rows: slice) -> torch.Tensor:
    partner = work.partner[rows] - rows.start
    if (partner == np.arange(len(partner))).all():
        return pixels
    others = pixels[torch.from_numpy(partner).to(pixels.device)]
    share = torch.from_numpy(work.share[rows]).to(pixels.device, pixels.dtype).view(-1, 1, 1, 1)
    mixed = pixels * share + others * (1 - share)
    for image, other, (y0, x0, y1, x1) in zip(mixed, others, work.patch[rows].tolist(), strict=True):
        if y1 > y0 and x1 > x0:
            image[:, y0:y1, x0:x1] = other[:, y0:y1, x0:x1]
    return mixed
