"""Raw pixels for the kernel's tests: payloads, batches of them, and random crops."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from kernel_images import View, batch_of

from iofast.kernel.contract import FILTERS, Payloads

SIZES = [(1, 1), (2, 1), (1, 2), (3, 3), (4, 5), (5, 4), (17, 13), (64, 9), (71, 53)]


class Raw(NamedTuple):
    """Some raw images as one batch; `alive` keeps their memory."""

    source: Payloads
    alive: object


def raw_batch(
    kind: int, payloads: list[bytes], sizes: list[tuple[int, int]], orientation: int = 1, checked: bool = False
) -> Raw:
    batch = batch_of(payloads, [orientation] * len(payloads), checked)
    rows = np.array([(kind, width, height) for width, height in sizes], np.int32)
    return Raw(batch.source._replace(indexed=rows), batch.payloads)


@st.composite
def views(draw: st.DrawFn, width: int, height: int) -> View:
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
    virtual = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    size = draw(st.integers(1, virtual[0])), draw(st.integers(1, virtual[1]))
    corner = draw(st.integers(0, virtual[0] - size[0])), draw(st.integers(0, virtual[1] - size[1]))
    return View((x0, y0, x1, y1, *virtual, *corner), size, draw(st.booleans()))


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, int], View, int, str]:
    """Upright size, view, orientation and filter."""
    size = draw(st.one_of(st.sampled_from(SIZES), st.tuples(st.integers(1, 80), st.integers(1, 80))))
    view, orientation = draw(views(*size)), draw(st.integers(1, 8))
    return size, view, orientation, draw(st.sampled_from(FILTERS))
