"""Who carries out the operations: Triton on a GPU where it is installed and works, torch everywhere else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.errors import reason_of
from iofast.ops import Op, drawn
from iofast.pixels import geometry, torch_pixels
from iofast.pixels.geometry import Ragged
from iofast.work import Work, still

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

    See `torch_pixels.apply`. The Triton passes agree with it within 1e-5 before the cast.
    """
    if out is not None or dtype not in _FUSED or not _fused(images) or images.shape[-2:].numel() > _MOST:
        return torch_pixels.apply(images, ops, work=work, dtype=dtype, memory_format=memory_format, out=out)
    from iofast.pixels import triton_pixels

    torch_pixels.check(images, ops, work, dtype)
    last = torch_pixels.channels_last(images, memory_format)
    layout = torch.channels_last if last else torch.contiguous_format
    with _current(images.device):
        return triton_pixels.apply(images, ops, work or still(len(images)), dtype=dtype, memory_format=layout)


def augment(
    batch: Ragged,
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
        return torch_pixels.apply(images, ops, work=work, dtype=dtype, memory_format=memory_format)
    from iofast.pixels import triton_geometry

    torch_pixels.check_dtype(ops, dtype)
    with _current(batch.data.device):
        if drawn(ops) or dtype not in (*_FUSED, torch.uint8):
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
        triton_pixels.apply(probe, (), still(1))
    except Exception as error:  # no compiler, a driver that is too old, a GPU that Triton does not know, …
        warnings.warn(
            f"pixel operations run in plain torch, not in Triton: {reason_of(error)}", RuntimeWarning, stacklevel=3
        )
        return False
    return True
