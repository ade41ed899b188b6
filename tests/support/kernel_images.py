"""Inputs of the kernel's tests: photograph-like pixels, every kind of JPEG, and batches of them."""

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from PIL import __version__ as pillow_version

from iofast import kernel
from iofast.kernel.contract import DecodeOptions, Kind, Payloads
from tools.odd_images.jpegs import rearranged
from tools.odd_images.jpegs import segment as segment
from tools.odd_images.jpegs import with_size as with_size
from tools.odd_images.scene import chunk, save
from tools.odd_images.scene import exif as exif

TURNS = (None, None, *(Image.Transpose(i) for i in (0, 3, 1, 5, 4, 6, 2)))  # by EXIF orientation
PILLOW = tuple(int(part) for part in pillow_version.split(".")[:2])

Pixels = NDArray[np.uint8]


def extent(mark: NDArray[np.generic]) -> list[int]:
    """The box (left, top, right, bottom) of what is not 0."""
    rows, columns = np.nonzero(mark)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


@lru_cache(64)
def photo(width: int, height: int, seed: int = 0) -> Pixels:
    """Photograph-like pixels (height, width, 3): slow colours, texture, and a few hard edges."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells, strength in ((3, 150), (12, 60), (60, 40)):
        noise = Image.fromarray(rng.integers(0, 256, (min(cells, height), min(cells, width), 3), np.uint8))
        total += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC)) * (strength / 255)
    for _ in range(3):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        total[y : y + height // 4 + 1, x : x + width // 5 + 1] = rng.integers(0, 256, 3)
    return (total + rng.normal(0, 3, total.shape)).clip(0, 255).astype(np.uint8)


def claims(mode: bytes, side: int = 16_000) -> bytes:
    """The header of a PNG of a large size, without pixels."""
    data = save(Image.new("RGB", (8, 8)), "PNG")
    return data[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, mode[0], 0, 0, 0)) + data[33:]


def jpeg(pixels: Pixels, mode: str = "RGB", **options: object) -> bytes:
    return save(Image.fromarray(pixels).convert(mode), "JPEG", **{"quality": 90, **options})


def as_far_as_it_goes(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Pixels:
    """What Pillow decodes of a truncated image with its option for all of a process, as upright RGB."""
    with monkeypatch.context() as within:
        within.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        return np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB"))


def with_segment(data: bytes, marker: int, *bodies: bytes) -> bytes:
    """A JPEG with more segments of one kind, before all others."""
    segments = [bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body for body in bodies]
    return data[:2] + b"".join(segments) + data[2:]


def _ycck(pixels: Pixels) -> bytes:
    """A JPEG of four components whose Adobe marker declares YCCK."""
    data = jpeg(pixels, "CMYK")
    at = data.index(b"Adobe") + 11
    return data[:at] + b"\2" + data[at + 1 :]


KINDS: dict[str, Callable[[Pixels], bytes]] = {
    "444": lambda pixels: jpeg(pixels, subsampling="4:4:4"),
    "422": lambda pixels: jpeg(pixels, subsampling="4:2:2"),
    "420": lambda pixels: jpeg(pixels, subsampling="4:2:0"),
    "440": lambda pixels: rearranged(pixels, (1, 2), (2, 1), "4:2:2"),
    "411": lambda pixels: rearranged(pixels, (4, 1), (2, 2), "4:2:0"),
    "441": lambda pixels: rearranged(pixels, (1, 4), (2, 2), "4:2:0"),
    "gray": lambda pixels: jpeg(pixels, "L"),
    "cmyk": lambda pixels: jpeg(pixels, "CMYK"),
    "ycck": _ycck,
    "rgb": lambda pixels: jpeg(pixels, keep_rgb=True, subsampling="4:4:4"),
    "progressive": lambda pixels: jpeg(pixels, progressive=True),
    "progressive gray": lambda pixels: jpeg(pixels, "L", progressive=True),
    "optimised": lambda pixels: jpeg(pixels, optimize=True),
    "restart blocks": lambda pixels: jpeg(pixels, restart_marker_blocks=3),
    "restart rows": lambda pixels: jpeg(pixels, restart_marker_rows=1, subsampling="4:2:2"),
    "poor": lambda pixels: jpeg(pixels, quality=15),
    "trailing bytes": lambda pixels: jpeg(pixels) + b"\0trailing\xff",
}


class Batch(NamedTuple):
    """Payloads in memory for `decode_batch`; `payloads` keeps them alive."""

    source: Payloads
    payloads: Sequence[NDArray[np.uint8]]


def batch_of(payloads: Sequence[bytes], orientations: Sequence[int] | None = None, checked: bool = False) -> Batch:
    arrays = [np.frombuffer(payload, np.uint8) for payload in payloads]
    turns = orientations or [1] * len(arrays)
    source = Payloads.in_memory([array.ctypes.data for array in arrays], [array.size for array in arrays], turns)
    crcs = np.array([kernel.crc32c(payload) for payload in payloads], np.uint32) if checked else None
    return Batch(source._replace(crcs=crcs), arrays)


def raw_batch(
    payloads: Sequence[bytes], sizes: Sequence[tuple[int, int]], orientation: int = 1, checked: bool = False
) -> Batch:
    """Raw pixels of images with these upright sizes."""
    batch = batch_of(payloads, [orientation] * len(payloads), checked)
    rows = np.array([(Kind.RGB, *size) for size in sizes], np.int32)
    return batch._replace(source=batch.source._replace(indexed=rows))


def in_a_file(batch: Batch) -> tuple[Payloads, int]:
    """The same payloads in a file; the caller closes the descriptor."""
    lengths = batch.source.lengths
    fd = os.memfd_create("payloads")
    os.write(fd, b"".join(payload.tobytes() for payload in batch.payloads))
    offsets = np.cumsum(lengths) - lengths
    return batch.source._replace(fds=np.full(len(lengths), fd, np.int32), offsets=offsets), fd


class View(NamedTuple):
    """One row's geometry: the eight numbers of `boxes`, and the size of the window."""

    box: tuple[int, int, int, int, int, int, int, int]
    size: tuple[int, int]
    flip: int = False  # as in `flips`: the upper bits may select a filter


@st.composite
def views(draw: st.DrawFn, width: int, height: int) -> View:
    """Any view of an image."""
    x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
    virtual = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    size = draw(st.integers(1, virtual[0])), draw(st.integers(1, virtual[1]))
    corner = draw(st.integers(0, virtual[0] - size[0])), draw(st.integers(0, virtual[1] - size[1]))
    return View((x0, y0, x1, y1, *virtual, *corner), size, draw(st.booleans()))


def whole(width: int, height: int) -> View:
    """All of an image in its own size."""
    return View((0, 0, width, height, width, height, 0, 0), (width, height))


def decode_views(
    source: Payloads,
    views: Sequence[View],
    options: DecodeOptions | None = None,
    spans: object = None,
    backend: Any = kernel,
) -> tuple[list[int], Pixels]:
    """Status and pixels of all rows by `decode_batch`; the first view has the size of all windows."""
    width, height = views[0].size
    out = np.full((len(views), height, width, 3), 99, np.uint8)
    status = np.full(len(views), -1, np.int32)
    boxes, flips = np.array([view.box for view in views], np.int32), np.array([view.flip for view in views], np.uint8)
    more = {} if spans is None else {"spans": np.array(spans, np.float32)}
    with closing(backend.Context(options or DecodeOptions())) as context:
        backend.decode_batch(context, source, boxes, flips, out, status, 0, len(views), **more)
    return status.tolist(), out


def decode_view(
    data: bytes, view: View, options: DecodeOptions | None = None, orientation: int = 1
) -> tuple[int, Pixels]:
    """Status and pixels of one image by `decode_batch`."""
    source, _alive = batch_of([data], [orientation])
    status, out = decode_views(source, [view], options)
    return status[0], out[0]


def upright(data: bytes, orientation: int = 1) -> Image.Image:
    """Pillow's decode."""
    image = Image.open(BytesIO(data))
    image.load()
    image.info.clear()  # else Pillow warns that RGB cannot store the transparency
    image = image.convert("RGB")
    turn = TURNS[orientation]
    return image if turn is None else image.transpose(turn)


def expected(image: Image.Image, view: View, name: str, rows_first: bool = False) -> Pixels:
    """Pillow's crop, resize and crop of a view. `rows_first`: the vertical pass before the horizontal one."""
    x0, y0, x1, y1, width, height, x, y = view.box
    region, filter = image.crop((x0, y0, x1, y1)), Image.Resampling[name.upper()]
    virtual = (region.resize((region.width, height), filter) if rows_first else region).resize((width, height), filter)
    window = np.asarray(virtual.crop((x, y, x + view.size[0], y + view.size[1])))
    return window[:, ::-1] if view.flip else window


def off_by(pixels: Pixels, image: Image.Image, view: View, name: str) -> int:
    """The largest difference from the oracle.

    The order of the axes matters for filters that overshoot. The native kernel always chooses like Pillow 13. An older
    Pillow never begins with the vertical axis, so there the kernel is compared with that order too.
    """
    orders = (False, True) if PILLOW < (13, 0) else (False,)
    return min(worst(pixels, expected(image, view, name, order)) for order in orders)


def worst(a: NDArray[np.generic], b: NDArray[np.generic]) -> int:
    """The largest difference between two images of the same shape."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(np.int16) - b.astype(np.int16)).max())
