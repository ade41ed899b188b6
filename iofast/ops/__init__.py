"""Frozen descriptions of pixel operations: what is done, not how. `pixels` and the kernel carry them out.

Numbers of operations are for pixels in [0, 1] (8-bit level / 255), as torchvision's after `ToTensor`. The random parts
are drawn per sample by `transforms.drawing`, into the columns of a `work.Work`.
"""

from __future__ import annotations

from collections.abc import Sequence

from iofast.ops.choosing import ImageOp as ImageOp
from iofast.ops.finishing import Finishing as Finishing
from iofast.ops.finishing import Mix as Mix
from iofast.ops.finishing import Normalize as Normalize
from iofast.ops.finishing import RandomErasing as RandomErasing
from iofast.ops.finishing import affine as affine
from iofast.ops.finishing import noise_amounts as noise_amounts

Op = ImageOp | Finishing


def drawn(ops: Sequence[Op]) -> bool:
    """Whether `ops` hold anything but `Normalize`: then a batch needs its `Work`."""
    return any(not isinstance(op, Normalize) for op in ops)
