"""A canvas for gray images of 16 bits: decoded by Pillow, cut out and finished one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.containers.base import Payloads
from iofast.loader.canvas import Canvas, Singly
from iofast.ops import Op, affine

_LEVELS = 257  # of 16 bits for one of 8: white is 255 and 65,535


class Deep(Singly):
    """(N, 1, height, width): int32 levels of 0 to 65,535, or with a float `dtype` what `ops` make of them in [0, 1]."""

    def __init__(self, rows: int, size: tuple[int, int], dtype: torch.dtype, ops: Sequence[Op]) -> None:
        self.size = size
        self._images = torch.zeros((rows, 1, *size), dtype=torch.int32 if dtype == torch.uint8 else dtype)
        self._scale, self._bias = affine(ops)[:, 0].tolist()

    def make(
        self, context: kernel.Context, source: Payloads, box: NDArray[np.int32], flip: NDArray[np.uint8], row: int
    ) -> int:
        """See `Singly`."""
        out, status = np.zeros((1, *self.size), np.uint16), np.zeros(1, np.int32)
        kernel.decode_wide(context.options, source, box, flip, out, status)
        levels = torch.from_numpy(out.astype(np.int32))
        if self._images.dtype.is_floating_point:
            levels = levels.to(torch.float32) * (self._scale / _LEVELS) + self._bias
        self._images[row] = levels
        return int(status[0])

    def take(self, rows: NDArray[np.intp], other: Canvas, of: NDArray[np.intp]) -> None:
        """See `Canvas`."""
        self._images[torch.from_numpy(rows)] = cast(Deep, other)._images[torch.from_numpy(of)]

    def images(self) -> torch.Tensor:
        """See `Canvas`."""
        return self._images
