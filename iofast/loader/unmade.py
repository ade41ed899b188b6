"""Images that are made only when their batch is complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.loader.spec import BatchSpec
from iofast.work import Work

if TYPE_CHECKING:
    from iofast.gpu import Bus


class Unmade(ABC):
    """Images of one size (height, width) that the device makes, if there is one."""

    size: tuple[int, int]
    copies: tuple[torch.Tensor, ...] = ()
    damaged: Callable[[], list[int]] | None = None  # rows that turned out to be damaged, once they are made

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, rows: NDArray[np.intp]) -> Self:
        """Some of them."""

    def tensors(self) -> list[torch.Tensor]:
        """What the device needs for them."""
        return []

    def with_copies(self, copies: Sequence[torch.Tensor]) -> Self:
        """The same with copies of `tensors` on the device."""
        self.copies = tuple(copies)
        return self

    @abstractmethod
    def made(self, spec: BatchSpec, work: Work | None, bus: Bus | None) -> torch.Tensor:
        """Cut out and finish them, (N, 3, height, width), on the current stream of the device, or in host memory."""
