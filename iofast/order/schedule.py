"""Schedule: the positions of an epoch in each batch, on each rank."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The positions of rank `rank` of `world_size` in batch k, for `n` positions per epoch.

    `batch_size` is per rank. Global batch k is positions [k·B, (k+1)·B) with B = batch_size · world_size; rank r gets
    its r-th slice. All ranks return equally many batches of equal length. Without `drop_last`, the last global batch
    has m = n mod B real positions, dealt evenly: the first m mod world_size ranks get one more. The other ranks are
    filled up with positions 0, 1, … in turn. A rank has nothing but filling only if m < world_size.
    """

    n: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.drop_last and self.n < self.global_batch:
            raise OptionError(
                f"drop_last=True leaves no batch: {self.n} samples are fewer than batch_size {self.batch_size} "
                f"x world_size {self.world_size} = {self.global_batch}"
            )

    @property
    def global_batch(self) -> int:
        """B: positions in a full batch of all ranks together."""
        return self.batch_size * self.world_size

    @property
    def count(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.n // self.global_batch if self.drop_last else -(-self.n // self.global_batch)

    def positions(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions (int64) of this rank's part of batch `batch`, and whether each is valid (False: filling)."""
        start = batch * self.global_batch
        each, more = divmod(min(self.global_batch, self.n - start), self.world_size)  # `more` ranks have one more
        first = start + self.rank * each + min(self.rank, more)
        valid = np.ones(each + (more > 0), np.bool_)
        positions = np.arange(first, first + len(valid), dtype=np.int64)
        if self.rank >= more > 0:  # with fewer samples than ranks, filling wraps around to 0
            positions[-1], valid[-1] = (self.rank - more) % self.n, False
        return positions, valid
