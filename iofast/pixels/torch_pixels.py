"""Pixel operations in plain torch, for any device.

What differs from image to image is in per_image.py. Without that, all of `ops` is folded into one multiplication and
one addition per pixel, done in float32. On a CPU that is bound by memory, so it is done a few images at a time, while
their float32 pixels are still in the cache. 256 images of 224 x 224 on two cores, channels-last: 43 ms to float32 and
32 ms to bfloat16, where whole-batch passes in place take 94 and 125, and (x / 255 - mean) / std as it is written 226
and 285.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from iofast.errors import OptionError, shown
from iofast.ops import Op, affine, drawn
from iofast.pixels.per_image import carry_out
from iofast.work import Work

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_CHUNK = 1 << 20  # values at a time on a CPU: 4 MiB of float32; from an eighth to four times as many it is within 8 %


def check_dtype(ops: Sequence[Op], dtype: torch.dtype) -> None:
    """Raise `OptionError` unless images of `dtype` can hold what `ops` make: a float type, or uint8 without any."""
    if not isinstance(dtype, torch.dtype) or dtype not in (*FLOATS, torch.uint8):
        raise OptionError(f"dtype must be uint8, float16, bfloat16, float32 or float64, found {shown(dtype)}")
    if ops and dtype == torch.uint8:
        raise OptionError(f"{ops[0]!r} needs a float dtype (such as torch.float32), found {dtype}")


def apply(
    images: torch.Tensor,
    ops: Sequence[Op] = (),
    *,
    work: Work | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.preserve_format,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Images of `dtype` and `memory_format` on the same device, from uint8 `images` of shape (N, 3, H, W).

    `work` says what `ops` do to each image; only `Normalize` goes without. The result depends on nothing else.
    A float result goes to `out` where it is given, a tensor of just that shape, type, format and device: fresh memory
    costs a page fault for each 4 KiB, as much time again as the arithmetic.

    Without `ops` a float `dtype` gets pixels in [0, 1]; `dtype=uint8` gets `images` itself, or a copy where the memory
    format differs. Never writes into `images`.
    """
    check(images, ops, work, dtype)
    last = channels_last(images, memory_format)
    if dtype == torch.uint8:
        return images.contiguous(memory_format=_format(last))
    if out is None:
        out = torch.empty_like(images, dtype=dtype, memory_format=_format(last))
    elif out.shape != images.shape or out.dtype != dtype or not out.is_contiguous(memory_format=_format(last)):
        raise OptionError(f"out must be {dtype} of shape {tuple(images.shape)}, found {out.dtype} {tuple(out.shape)}")
    if work is not None and drawn(ops):
        carry_out(images, ops, work, out)
        return out
    scale, bias = (torch.from_numpy(each) for each in affine(ops))
    if not last:
        _scale(images.contiguous(), scale.view(3, 1, 1), bias.view(3, 1, 1), out)
        return out
    # as rows of W x 3 values with the scales repeated: one long loop is 1.3 times as fast as loops of 3
    n, _, height, width = images.shape
    rows = images.permute(0, 2, 3, 1).reshape(n, height, width * 3)
    target = out.permute(0, 2, 3, 1).view(n, height, width * 3)
    _scale(rows, scale.repeat(width), bias.repeat(width), target)
    return out


def check(images: torch.Tensor, ops: Sequence[Op], work: Work | None, dtype: torch.dtype) -> None:
    """Raise `OptionError` unless these go together."""
    check_dtype(ops, dtype)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise OptionError(f"images must be uint8 of shape (N, 3, H, W), found {images.dtype} {tuple(images.shape)}")
    if work is None and (lacking := [op for op in ops if drawn([op])]):
        raise OptionError(f"{lacking[0]!r} needs to know what was drawn for each image: give work")
    if work is not None and len(work) != len(images):
        raise OptionError(f"work must have {len(images)} rows, as there are images, found {len(work)}")


def channels_last(images: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """Whether the result is stored so: as `memory_format` says, or as `images` are."""
    if memory_format not in (torch.preserve_format, torch.contiguous_format, torch.channels_last):
        raise OptionError(f"memory_format must be preserve, contiguous or channels_last, found {memory_format}")
    if memory_format != torch.preserve_format:
        return memory_format == torch.channels_last
    return images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()


def _format(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def _scale(source: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """`source` * `scale` + `bias`, computed in float32 (float64 for float64), stored in `out`."""
    exact = torch.float64 if out.dtype == torch.float64 else torch.float32
    scale, bias = (each.to(exact).to(source.device) for each in (scale, bias))  # a device may have no float64
    step = max(1, _CHUNK // max(1, source[:1].numel())) if source.device.type == "cpu" else max(1, len(source))
    for start in range(0, len(source), step):
        pixels, target = source[start : start + step], out[start : start + step]
        if out.dtype == exact:
            target.copy_(pixels).mul_(scale).add_(bias)
        else:
            target.copy_(pixels.to(exact).mul_(scale).add_(bias))
