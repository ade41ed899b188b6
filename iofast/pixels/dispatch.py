"""The choice of code for the operations: the kernel on a CPU, Triton on a GPU if it works, torch everywhere else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.errors import OptionError, reason_of
from iofast.ops import Op, affine, drawn, noise_amounts
from iofast.pixels import torch_geometry, torch_pixels
from iofast.pixels.torch_geometry import RaggedBatch
from iofast.work import Work, no_work

# the types that the kernel stores, with its names
TYPES = {
    torch.uint8: "uint8",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_FUSED = (torch.float32, torch.float16, torch.bfloat16)
# pixels per image in each pass: a GPU limits the number of programs on that axis
_MOST, _MOST_RESAMPLED = 65_535 << 10, 65_535 << 9


def apply(
    images: torch.Tensor,
    ops: Sequence[Op] = (),
    *,
    work: Work | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.preserve_format,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Finish uint8 `images` (N, 3, H, W) to `dtype` and `memory_format` on the same device. Raises `OptionError`.

    `work` holds the numbers drawn for each image; it is optional if `ops` are only `Normalize`. The result depends on
    these arguments alone and is the same on every device. Values are computed in float32 and then cast; `images` is
    never written to.

    `out` is an optional tensor of the result's shape, type, format and device. It saves a page fault per 4 KiB of fresh
    memory, which takes as long as the arithmetic. Without `ops` a float `dtype` gets pixels in [0, 1], and uint8 gets
    `images` itself, or a copy if the memory format differs.
    """
    torch_pixels.check(images, ops, work, dtype)
    layout = torch_pixels.layout_of(images, memory_format)
    has_steps = work is not None and work.steps.size > 0  # even without ops: padding is a step
    if dtype == torch.uint8 and not ops and not has_steps:
        return images.contiguous(memory_format=layout)
    work = no_work(len(images)) if work is None else work
    if images.shape[-2:].numel() <= _MOST and out is None and dtype in _FUSED and _fused(images):
        from iofast.pixels import triton_pixels

        with _current(images.device):
            return triton_pixels.apply(images, ops, work, dtype=dtype, memory_format=layout)
    if out is None:
        out = torch.empty_like(images, dtype=dtype, memory_format=layout)
    elif out.shape != images.shape or out.dtype != dtype or not out.is_contiguous(memory_format=layout):
        raise OptionError(f"out must be {dtype} of shape {tuple(images.shape)}, found {out.dtype} {tuple(out.shape)}")
    if kernel_can(images, dtype):
        context = kernel.Context(kernel.DecodeOptions())
        kernel.finish_batch(context, rows_of(images), finish_of(ops, work, dtype), rows_of(out))
        context.close()
    else:
        torch_pixels.apply(images, ops, work, out)
    return out


def kernel_can(images: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel can finish `images` as `dtype`."""
    on_cpu = images.device.type == "cpu" and images.numel() > 0
    return on_cpu and dtype in TYPES and kernel.finish_batch is not None


def finish_of(ops: Sequence[Op], work: Work, dtype: torch.dtype) -> kernel.Finish:
    """Return the kernel's description of `ops`; `dtype` is one of `TYPES`."""
    scale, amounts = affine(ops).astype(np.float32), noise_amounts(ops).astype(np.float32)
    return kernel.Finish(work, scale, amounts, TYPES[dtype])


def rows_of(images: torch.Tensor) -> NDArray[Any]:
    """View images (N, 3, H, W) as an array (N, H, W, 3) of the same memory; bfloat16 as uint16."""
    plain = images.view(torch.uint16) if images.dtype == torch.bfloat16 else images
    return plain.permute(0, 2, 3, 1).numpy()


def augment(
    batch: RaggedBatch,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    size: tuple[int, int],
    ops: Sequence[Op] = (),
    *,
    work: Work | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.channels_last,
) -> torch.Tensor:
    """Resample images of any sizes, then `apply`: (N, 3, height, width) of `dtype`.

    If `ops` are the same for every image, a GPU does both in one pass.
    """
    if not _fused(batch.data) or size[0] * size[1] > _MOST_RESAMPLED:
        images = torch_geometry.resample(batch, boxes, flips, size)
        return apply(images, ops, work=work, dtype=dtype, memory_format=memory_format)
    from iofast.pixels import triton_geometry

    torch_pixels.check_dtype(ops, dtype)
    with _current(batch.data.device):
        has_steps = work is not None and work.steps.size > 0
        if drawn(ops) or has_steps or dtype not in (*_FUSED, torch.uint8):
            images = triton_geometry.resample(batch, boxes, flips, size)
            return apply(images, ops, work=work, dtype=dtype, memory_format=memory_format)
        return triton_geometry.resample(batch, boxes, flips, size, ops, dtype=dtype, memory_format=memory_format)


def _fused(data: torch.Tensor) -> bool:
    """Whether Triton processes `data`."""
    return data.is_cuda and triton_works()


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the one that Triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(maxsize=1)
def triton_works() -> bool:
    """Whether the Triton pass can process a small batch; if not, warn once."""
    try:
        from iofast.pixels import triton_pixels

        probe = torch.zeros((1, 3, 2, 2), dtype=torch.uint8, device="cuda")
        triton_pixels.apply(probe, (), no_work(1))
    except Exception as error:  # no compiler, an old driver, an unknown GPU, …
        warnings.warn(
            f"pixel operations run in plain torch, not in Triton: {reason_of(error)}", RuntimeWarning, stacklevel=3
        )
        return False
    return True
