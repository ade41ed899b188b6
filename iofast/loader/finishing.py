"""From uint8 images to the values of a batch: by the kernel on the CPU, by its source on a GPU (`gpu/images.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.errors import OptionError, shown
from iofast.transforms.erasing import noise_amounts
from iofast.transforms.normalize import scale_and_bias
from iofast.transforms.transform import Op, Stage
from iofast.work import Work, no_work

if TYPE_CHECKING:
    from iofast.gpu import Bus
    from iofast.gpu.images import DeviceImages, Made

# the types that the kernel stores, with its names
TYPES = {torch.uint8: "uint8", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def check_dtype(ops: Sequence[Op], dtype: object) -> torch.dtype:
    """Return `dtype`, None being the usual one: float32 if an op needs floats, otherwise uint8.

    Raises `OptionError` unless it can hold the results of `ops`: a float type, or uint8 without ops that need floats.
    """
    floats = [op for op in ops if op.stage > Stage.IMAGE]
    if dtype is None:
        return torch.float32 if floats else torch.uint8
    if not isinstance(dtype, torch.dtype) or dtype not in (*TYPES, torch.float64):
        raise OptionError(f"dtype must be uint8, float16, bfloat16, float32 or float64, found {shown(dtype)}")
    if dtype == torch.uint8 and floats:
        raise OptionError(f"{floats[0]!r} needs a float dtype (such as torch.float32), found {dtype}")
    return dtype


def finish_of(ops: Sequence[Op], work: Work, dtype: torch.dtype) -> kernel.Finish:
    """The kernel's description of `ops` and `work`; float64 is cast from float32."""
    scale, amounts = scale_and_bias(ops).astype(np.float32), noise_amounts(ops).astype(np.float32)
    return kernel.Finish(work, scale, amounts, TYPES.get(dtype, "float32"))


def rows_of(images: torch.Tensor) -> NDArray[Any]:
    """View images (N, 3, H, W) as an array (N, H, W, 3) of the same memory; bfloat16 as uint16."""
    plain = images.view(torch.uint16) if images.dtype == torch.bfloat16 else images
    return plain.permute(0, 2, 3, 1).numpy()


def finished(images: torch.Tensor, ops: Sequence[Op], work: Work | None, out: torch.Tensor) -> torch.Tensor:
    """Finish uint8 `images` (N, 3, H, W) into `out` of the same shape, both in host memory, and return it.

    Values are computed in float32 and then cast; `work` None treats all images alike.
    """
    finish = finish_of(ops, no_work(len(images)) if work is None else work, out.dtype)
    if not out.numel():
        return out
    stored = out if out.dtype in TYPES else torch.empty_like(out, dtype=torch.float32)
    context = kernel.Context(kernel.DecodeOptions())
    kernel.finish_batch(context, rows_of(images), finish, rows_of(stored))
    context.close()
    return out if stored is out else out.copy_(stored)


class Storage(NamedTuple):
    """How the images of a batch are stored."""

    dtype: torch.dtype
    memory_format: torch.memory_format


def made_there(bus: Bus, images: DeviceImages, ops: Sequence[Op], work: Work | None, storage: Storage) -> Made:
    """Make images on the device of `bus` and finish them, (N, 3, height, width), for the current stream."""
    from iofast.gpu.images import make  # needs the native kernel

    finish = finish_of(ops, no_work(len(images.table)) if work is None else work, storage.dtype)
    stored = storage.dtype if storage.dtype in TYPES else torch.float32
    made = make(bus, images, finish, stored, storage.memory_format)
    return made._replace(images=made.images.to(storage.dtype))
