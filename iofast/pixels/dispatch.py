"""Which code does the operations: on a CPU the kernel, on a GPU Triton where it works, torch everywhere else."""

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
from iofast.pixels import geometry, torch_pixels
from iofast.pixels.geometry import RaggedBatch
from iofast.work import Work, no_work

# what the kernel stores, by its names
TYPES = {
    torch.uint8: "uint8",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_FUSED = (torch.float32, torch.float16, torch.bfloat16)
# pixels of an image, by pass: a GPU takes no more programs along the axis that it has them on
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
    """Images of `dtype` and `memory_format` on the same device, from uint8 `images` of shape (N, 3, H, W).

    `work` says what `ops` do to each image; only `Normalize` goes without. The result depends on nothing else, and is
    the same on every device. A result goes to `out` where it is given, a tensor of just that shape, type, format and
    device: fresh memory costs a page fault for each 4 KiB, as much time again as the arithmetic.

    Without `ops` a float `dtype` gets pixels in [0, 1]; `dtype=uint8` gets `images` itself, or a copy where the memory
    format differs. Never writes into `images`. Values are computed in float32 and then cast.
    """
    torch_pixels.check(images, ops, work, dtype)
    layout = torch_pixels.layout_of(images, memory_format)
    moves = work is not None and work.steps.size > 0  # padding may be all there is
    if dtype == torch.uint8 and not ops and not moves:
        return images.contiguous(memory_format=layout)
    if images.shape[-2:].numel() <= _MOST and out is None and dtype in _FUSED and _fused(images):
        from iofast.pixels import triton_pixels

        with _current(images.device):
            return triton_pixels.apply(images, ops, work or no_work(len(images)), dtype=dtype, memory_format=layout)
    if out is None:
        out = torch.empty_like(images, dtype=dtype, memory_format=layout)
    elif out.shape != images.shape or out.dtype != dtype or not out.is_contiguous(memory_format=layout):
        raise OptionError(f"out must be {dtype} of shape {tuple(images.shape)}, found {out.dtype} {tuple(out.shape)}")
    if kernel_can(images, dtype):
        _by_kernel(images, finish_of(ops, work or no_work(len(images)), dtype), out)
    else:
        torch_pixels.apply(images, ops, work, out)
    return out


def kernel_can(images: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel finishes `images` as `dtype`."""
    here = images.device.type == "cpu" and images.numel() > 0
    return here and dtype in TYPES and kernel.finish_batch is not None


def finish_of(ops: Sequence[Op], work: Work, dtype: torch.dtype) -> kernel.Finish:
    """What the kernel has to know to finish images: `dtype` is one of `TYPES`."""
    scale, amounts = affine(ops).astype(np.float32), noise_amounts(ops).astype(np.float32)
    return kernel.Finish(work, scale, amounts, TYPES[dtype])


def _by_kernel(images: torch.Tensor, finish: kernel.Finish, out: torch.Tensor) -> None:
    context = kernel.Context(kernel.DecodeOptions())
    kernel.finish_batch(context, rows_of(images), finish, rows_of(out))
    context.close()


def rows_of(images: torch.Tensor) -> NDArray[Any]:
    """The memory of images (N, 3, H, W) as an array (N, H, W, 3); bfloat16 as uint16."""
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
    """The finished batch, (N, 3, height, width) of `dtype`, from images of any sizes: `resample`, then `apply`.

    Where `ops` are the same for every image, a GPU does all of it in one pass.
    """
    if not _fused(batch.data) or size[0] * size[1] > _MOST_RESAMPLED:
        images = geometry.resample(batch, boxes, flips, size)
        return apply(images, ops, work=work, dtype=dtype, memory_format=memory_format)
    from iofast.pixels import triton_geometry

    torch_pixels.check_dtype(ops, dtype)
    with _current(batch.data.device):
        steps = work is not None and work.steps.size > 0
        if drawn(ops) or steps or dtype not in (*_FUSED, torch.uint8):
            images = triton_geometry.resample(batch, boxes, flips, size)
            return apply(images, ops, work=work, dtype=dtype, memory_format=memory_format)
        return triton_geometry.resample(batch, boxes, flips, size, ops, dtype=dtype, memory_format=memory_format)


def _fused(data: torch.Tensor) -> bool:
    """Whether Triton does it."""
    return data.is_cuda and triton_works()


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Within it `device` is the one that Triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(maxsize=1)
def triton_works() -> bool:
    """Whether a first small batch came through the Triton pass; if not, it is said why, once."""
    try:
        from iofast.pixels import triton_pixels

        probe = torch.zeros((1, 3, 2, 2), dtype=torch.uint8, device="cuda")
        triton_pixels.apply(probe, (), no_work(1))
    except Exception as error:  # no compiler, a driver that is too old, a GPU that Triton does not know, …
        warnings.warn(
            f"pixel operations run in plain torch, not in Triton: {reason_of(error)}", RuntimeWarning, stacklevel=3
        )
        return False
    return True
