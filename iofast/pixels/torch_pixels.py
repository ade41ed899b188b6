"""Pixel operations in plain torch, for any device: steps, normalisation, erasing, mixing, cast.

Every float operation is rounded separately, so the pixels are identical to those of the kernel and of Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from iofast.errors import OptionError, shown
from iofast.ops import Mix, Normalize, Op, RandomErasing, affine, drawn, noise_amounts
from iofast.pixels.steps import take_steps
from iofast.pixels.upload import upload
from iofast.work import Work, noise_of

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_CHUNK = 1 << 18  # values processed at once on a CPU: 1 MiB of float32


def check_dtype(ops: Sequence[Op], dtype: object) -> torch.dtype:
    """Return `dtype`, None being the usual one: float32 if an op needs floats, otherwise uint8.

    Raises `OptionError` unless it can hold the results of `ops`: a float type, or uint8 without ops that need floats.
    """
    floats = [op for op in ops if isinstance(op, Normalize | RandomErasing | Mix)]
    if dtype is None:
        return torch.float32 if floats else torch.uint8
    if not isinstance(dtype, torch.dtype) or dtype not in (*FLOATS, torch.uint8):
        raise OptionError(f"dtype must be uint8, float16, bfloat16, float32 or float64, found {shown(dtype)}")
    if dtype == torch.uint8 and floats:
        raise OptionError(f"{floats[0]!r} needs a float dtype (such as torch.float32), found {dtype}")
    return dtype


def check(images: torch.Tensor, ops: Sequence[Op], work: Work | None, dtype: torch.dtype) -> None:
    """Raise `OptionError` unless the arguments fit together."""
    check_dtype(ops, dtype)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise OptionError(f"images must be uint8 of shape (N, 3, H, W), found {images.dtype} {tuple(images.shape)}")
    if work is None and (lacking := [op for op in ops if drawn([op])]):
        raise OptionError(f"{lacking[0]!r} needs the numbers drawn for each image: give work")
    if work is not None and len(work) != len(images):
        raise OptionError(f"work must have {len(images)} rows, one per image, found {len(work)}")


def layout_of(images: torch.Tensor, memory_format: torch.memory_format) -> torch.memory_format:
    """Return the memory format of the result: `memory_format`, or that of `images`."""
    if memory_format not in (torch.preserve_format, torch.contiguous_format, torch.channels_last):
        raise OptionError(f"memory_format must be preserve, contiguous or channels_last, found {memory_format}")
    if memory_format != torch.preserve_format:
        return memory_format
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def apply(images: torch.Tensor, ops: Sequence[Op], work: Work, out: torch.Tensor) -> None:
    """Apply `ops` and `work` to uint8 `images` (N, 3, H, W), into `out` of that shape: uint8 or a float type."""
    for rows in _chunks(images, work):
        pixels = take_steps(images[rows], work.steps[rows], work.numbers[rows])
        out[rows].copy_(pixels if out.dtype == torch.uint8 else _finished(pixels, ops, work, rows))


def _chunks(images: torch.Tensor, work: Work) -> Iterator[slice]:
    """Split the rows into chunks, without separating partners."""
    n = len(images)
    step = max(1, _CHUNK // max(1, images[:1].numel())) if images.device.type == "cpu" else max(1, n)
    start = 0
    while start < n:
        stop = min(start + step, n)
        stop += stop < n and work.partner[stop - 1] == stop
        yield slice(start, stop)
        start = stop


def _finished(pixels: torch.Tensor, ops: Sequence[Op], work: Work, rows: slice) -> torch.Tensor:
    scale, bias = (upload(each, pixels.device).view(3, 1, 1) for each in affine(ops).astype(np.float32))
    values = pixels.to(torch.float32, memory_format=torch.contiguous_format).mul_(scale).add_(bias)
    amounts = upload(noise_amounts(ops).astype(np.float32), pixels.device)
    for erasing, amount in enumerate(amounts):
        _erase(values, work, rows, erasing, amount.view(3, 1, 1))
    return _mixed(values, work, rows)


def _erase(values: torch.Tensor, work: Work, rows: slice, erasing: int, amount: torch.Tensor) -> None:
    width = values.shape[3]
    boxes, noises = work.erased[rows, erasing].tolist(), work.noise[rows, erasing].tolist()
    fills = upload(work.fills[rows, erasing], values.device).view(-1, 3, 1, 1)
    for image, fill, (y0, x0, y1, x1), number in zip(values, fills, boxes, noises, strict=True):
        if y1 > y0 and x1 > x0:
            image[:, y0:y1, x0:x1] = fill
            if number:
                noise = noise_of(number, np.arange(y0, y1)[:, None] * width + np.arange(x0, x1))
                image[:, y0:y1, x0:x1] += upload(noise, image.device) * amount


def _mixed(values: torch.Tensor, work: Work, rows: slice) -> torch.Tensor:
    partner = work.partner[rows] - rows.start
    if (partner == np.arange(len(partner))).all():
        return values
    others = values[upload(partner, values.device)]
    share = upload(work.share[rows], values.device).view(-1, 1, 1, 1)
    mixed = values * share + others * (1 - share)
    for image, other, (y0, x0, y1, x1) in zip(mixed, others, work.patch[rows].tolist(), strict=True):
        if y1 > y0 and x1 > x0:
            image[:, y0:y1, x0:x1] = other[:, y0:y1, x0:x1]
    return mixed
