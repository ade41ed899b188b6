"""Raw pixels for the kernel's tests: payloads, batches of them with and without strips, and random crops."""

from __future__ import annotations

from contextlib import closing
from types import ModuleType
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from kernel_images import TURNS, Pixels, View, batch_of
from numpy.typing import NDArray
from PIL import Image

from iofast.kernel import raw, twin
from iofast.kernel.contract import FILTERS, DecodeOptions, Kind, Source

KINDS = (Kind.RGB, Kind.YUV420)
SIZES = [(1, 1), (2, 1), (1, 2), (3, 3), (4, 5), (5, 4), (17, 13), (64, 9), (71, 53)]


class Raw(NamedTuple):
    """Some raw images as one batch; `alive` is what their addresses point at."""

    source: Source
    alive: object


def payload(kind: Kind, pixels: Pixels) -> bytes:
    return raw.pack_rgb(pixels) if kind == Kind.RGB else raw.pack_yuv(pixels)


def raw_batch(
    kind: int, payloads: list[bytes], sizes: list[tuple[int, int]], orientation: int = 1, checked: bool = False
) -> Raw:
    batch = batch_of(payloads, [orientation] * len(payloads), checked)
    rows = np.array([(kind, width, height) for width, height in sizes], np.int32)
    return Raw((*batch.source[:5], rows, None), batch.payloads)


def strip_of_bytes(kind: int, width: int, height: int) -> NDArray[np.int64]:
    """The strip that each byte of a stored image lies in, told of whole planes: docs/format.md in another way."""
    pairs = -(-height // 2)
    strip_of_pair = np.array([next(k for k in range(16) if pair < pairs * (k + 1) // 16) for pair in range(pairs)])
    of_rows = strip_of_pair[np.arange(height) // 2]
    if kind == Kind.RGB:
        return of_rows.repeat(3 * width)
    chroma = strip_of_pair.repeat(-(-width // 2))
    return np.concatenate((of_rows.repeat(width), chroma, chroma))


def strips_of(kind: int, data: bytes, width: int, height: int) -> NDArray[np.uint32]:
    """The checksums of a stored image's sixteen strips."""
    samples, strips = np.frombuffer(data, np.uint8), strip_of_bytes(kind, width, height)
    return np.array([twin.crc32c(samples[strips == k].tobytes()) for k in range(16)], np.uint32)


def strips_in_the_way(kind: int, size: tuple[int, int], view: View, orientation: int) -> tuple[int, int]:
    """The first and the last strip that a view of an image of the upright `size` needs."""
    width, height = size[::-1] if orientation >= 5 else size
    numbers = Image.fromarray(np.arange(height, dtype=np.int32)[:, None].repeat(width, 1))
    turn = TURNS[orientation]
    rows = np.asarray((numbers if turn is None else numbers.transpose(turn)).crop(view.box[:4]))
    pairs = {int(row) // 2 for row in np.unique(rows)}
    if kind == Kind.YUV420:  # the triangle filter sees the chroma row next to a row's own
        pairs |= {int(row) // 2 + (1 if row % 2 else -1) for row in np.unique(rows)} & set(range(-(-height // 2)))
    strips = strip_of_bytes(Kind.RGB, 1, height)[::3][[2 * pair for pair in (min(pairs), max(pairs))]]
    return int(strips[0]), int(strips[1])


def run(
    kernel: ModuleType, source: Source, views: list[View], options: DecodeOptions | None = None
) -> tuple[list[int], Pixels]:
    """Status and pixels of some rows, whose windows are all as large as the first."""
    width, height = views[0].size
    out = np.full((len(views), height, width, 3), 99, np.uint8)
    status = np.full(len(views), -1, np.int32)
    boxes, flips = np.array([view.box for view in views], np.int32), np.array([view.flip for view in views], np.uint8)
    with closing(kernel.Context(options or DecodeOptions())) as context:
        kernel.decode_batch(context, source, boxes, flips, out, status, 0, len(views))
    return status.tolist(), out


def whole(width: int, height: int) -> View:
    return View((0, 0, width, height, width, height, 0, 0), (width, height))


@st.composite
def views(draw: st.DrawFn, width: int, height: int) -> View:
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
    virtual = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    size = draw(st.integers(1, virtual[0])), draw(st.integers(1, virtual[1]))
    corner = draw(st.integers(0, virtual[0] - size[0])), draw(st.integers(0, virtual[1] - size[1]))
    return View((x0, y0, x1, y1, *virtual, *corner), size, draw(st.booleans()))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Kind, tuple[int, int], View, int, str]:
    """Kind, upright size, view, orientation and filter."""
    size = draw(st.one_of(st.sampled_from(SIZES), st.tuples(st.integers(1, 80), st.integers(1, 80))))
    view, orientation = draw(views(*size)), draw(st.integers(1, 8))
    return draw(st.sampled_from(KINDS)), size, view, orientation, draw(st.sampled_from(FILTERS))
