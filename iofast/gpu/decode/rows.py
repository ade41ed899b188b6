"""`RowsToDecode`: the argument of every canvas's `decode`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.kernel import Payloads


class RowsToDecode(NamedTuple):
    """N rows of a canvas, and what to decode into them.

    source  where the N payloads lie
    boxes   int32 (N, 8), flips uint8 (N,): what `Pipeline.plan` made for them
    rows    intp (N,): their numbers in the canvas
    finish  pixel operations for the same call; without it rows stay uint8
    """

    context: kernel.Context
    source: Payloads
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    rows: NDArray[np.intp]
    finish: kernel.Finish | None = None

    def row(self, place: int) -> RowsToDecode:
        """The row at `place` alone."""
        one = slice(place, place + 1)
        return self._replace(
            source=self.source.rows(one), boxes=self.boxes[one], flips=self.flips[one], rows=self.rows[one]
        )
