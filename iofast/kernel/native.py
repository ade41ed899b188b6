"""The native kernel's Python side: the same functions as the twin. What the C code does not take, the twin does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import DecodeError, OptionError
from iofast.kernel import _native, colour, markers, twin
from iofast.kernel.contract import (
    FILTERS,
    MAX_BYTES,
    MAX_PIXELS,
    MAX_SIDE,
    MESSAGES,
    STAGES,
    WAYS,
    Counts,
    DecodeOptions,
    Header,
    Kind,
    Source,
    Status,
    Timed,
    Transcoded,
    TranscodeRecipe,
    by_check,
    mcus_per_row,
)
from iofast.kernel.twin import Buffer
from iofast.strips import STRIPS

crc32c = _native.crc32c
map_file = _native.map_file

_SAMPLING = {"420": (2, 2), "422": (2, 1), "444": (1, 1)}  # luma samples for one of chroma, across and down
_INT_MAX = (1 << 31) - 1  # of the C code's coordinates, those of a virtual image among them
SOURCE_DTYPES = (np.int32, np.uint64, np.uint64, np.uint32, np.uint8, np.int32, np.uint32)
_KINDS = {
    "jpeg": (Kind.ENCODED, "jpg"),
    "keep": (Kind.ENCODED, "jpg"),
    "rgb": (Kind.RGB, "rgb"),
    "yuv420": (Kind.YUV420, "yuv"),
}  # what the C code makes, and under which field it is stored
STANDARD, OPTIMAL = -1, 0  # Huffman tables: those of the JPEG standard, the best for one image
_WHOLE = DecodeOptions(filter="nearest")  # for decoding whole images, where no pixel is resampled


def cached(fds: NDArray[np.int32], offsets: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of the bytes at these places are in the page cache; see `rows.cached`. Eight of them: one call, 4 µs."""
    out = np.empty(len(fds), np.bool_)
    _native.cached(np.ascontiguousarray(fds, np.int32), np.ascontiguousarray(offsets, np.uint64), out)
    return out


def read_rows(fd: int, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Rows of `size` bytes at these offsets of a file; see `rows.read_rows`. 256 of them: one call, 68 µs."""
    offsets = np.ascontiguousarray(offsets, np.int64)
    out = np.empty((len(offsets), size), np.uint8)
    short = _native.read_rows(fd, offsets, size, out)
    if short >= 0:
        raise EOFError(f"the file ends within {size} bytes from offset {offsets[short]} on, or just behind them")
    return out


class Context:
    """One thread's JPEG handle and scratch memory. Using one from two threads at once raises `RuntimeError`.

    `timed`: the kernel reads the clock between the stages of an image ("all"), or only round its reading ("read"), for
    `counts`. `way`: segments, splice or libjpeg (`Counts`), taken wherever it can be; None = the fastest.
    """

    def __init__(self, options: DecodeOptions, *, timed: Timed | None = None, way: str | None = None) -> None:
        self.options = options
        self.left = 0  # rows that the twin had to take
        if way not in (None, "segments", "splice", "libjpeg"):
            raise OptionError(f"way must be segments, splice, libjpeg or None, found {way!r}")
        self._open: _native._Context | None = _native.new_context(
            FILTERS.index(options.filter),
            options.fast,
            options.strict,
            options.max_pixels,
            options.max_bytes,
            -1 if way is None else WAYS.index(way),
        )
        if timed:
            _native.counters(self.handle, 2 if timed == "all" else 1)

    def counts(self) -> Counts:
        """What this context has decoded so far, and what its time went into."""
        images, nanoseconds = _native.counters(self.handle, -1)
        ways = dict(zip(WAYS, (*images, self.left), strict=True))
        return Counts(ways, dict(zip(STAGES, nanoseconds, strict=True)))

    @property
    def read_ns(self) -> int:
        """Nanoseconds that reading took so far; 1 us where `counts` takes 6."""
        return _native.counters(self.handle, -1)[1][0]

    @property
    def handle(self) -> _native._Context:
        if self._open is None:
            raise OptionError("the kernel was called with a context that is closed")
        return self._open

    def close(self) -> None:
        """Give the memory back. Calling it twice is harmless."""
        self._open = None


def decode_batch(
    context: Context,
    source: Source,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[np.uint8],
    status: NDArray[np.int32],
    start: int,
    stop: int,
) -> None:
    """Rows [start, stop) of a batch, without the GIL. Arguments, results and errors are `twin.decode_batch`'s."""
    if not 0 <= start <= stop <= len(out):
        raise OptionError(f"rows {start} to {stop} are not within a batch of {len(out)}")
    if source[3] is not None and source[3].dtype == np.int64:
        for part, first, last in by_check(source, start, stop):
            decode_batch(context, part, boxes, flips, out, status, first, last)
        return
    _check(source, boxes, flips, status, out)
    _native.decode_batch(context.handle, *source, boxes, flips, out, status, start, stop)
    left = np.flatnonzero(status[start:stop] == Status.UNSUPPORTED)
    if len(left):
        twin.decode_rows(context.options, source, boxes, flips, out, status, (left + start).tolist())
        context.left += int((status[left + start] == Status.OK).sum())


def decode_each(
    context: Context,
    source: Source,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    outs: Sequence[NDArray[np.uint8]],
    status: NDArray[np.int32],
) -> None:
    """A batch whose images differ in size, without the GIL. Arguments, results and errors are `twin.decode_each`'s.

    A call of the C code for each image, and the slices for it, take 3.5 us more than one call for all of them: 3 % of a
    training crop of a 256-pixel photograph, 1 % of the whole of it.
    """
    twin.check_each(source, boxes, flips, outs, status)
    handle = context.handle
    for part, first, last in by_check(source, 0, len(outs)):
        _check(part, boxes, flips, status, *outs)
        for row in range(first, last):
            one = slice(row, row + 1)
            columns = [None if column is None else column[one] for column in (*part, boxes, flips)]
            _native.decode_batch(handle, *columns, outs[row][None], status[one], 0, 1)  # type: ignore[arg-type,call-arg]
    for row in np.flatnonzero(status == Status.UNSUPPORTED).tolist():
        one = slice(row, row + 1)
        left: Source = tuple(None if column is None else column[one] for column in source)  # type: ignore[assignment]
        twin.decode_rows(context.options, left, boxes[one], flips[one], outs[row][None], status[one], (0,))
        context.left += int(status[row] == Status.OK)


def check_dtypes(call: str, columns: Sequence[NDArray[Any] | None], dtypes: Sequence[type[np.generic]]) -> None:
    """Raise `OptionError` unless every array of a call is of its type: the C code sees bytes."""
    for column, dtype in zip(columns, dtypes, strict=True):
        if column is not None and column.dtype != dtype:
            raise OptionError(f"{call} wants an array of {np.dtype(dtype)}, found {column.dtype}")


def _check(
    source: Source,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    status: NDArray[np.int32],
    *outs: NDArray[np.uint8],
) -> None:
    """What the C code does not check itself: it sees bytes."""
    columns, dtypes = (*source, boxes, flips, status, *outs), (*SOURCE_DTYPES, np.int32, np.uint8, np.int32)
    check_dtypes("decode_batch", columns, (*dtypes, *[np.uint8] * len(outs)))
    if boxes.ndim != 2 or boxes.shape[1] != 8:
        raise OptionError(f"boxes must have the shape ({len(status)}, 8), found {boxes.shape}")
    if source[5] is not None and source[5].shape[1:] != (3,):
        raise OptionError(f"raw must have the shape ({len(status)}, 3), found {source[5].shape}")
    if source[6] is not None and source[6].shape[1:] != (STRIPS,):
        raise OptionError(f"strips must have the shape ({len(status)}, {STRIPS}), found {source[6].shape}")


def read_header(data: Buffer) -> Header:
    """Format, upright size and orientation. Raises `DecodeError`; of a file's beginning, the whole may still do."""
    status, width, height, orientation, components, progressive, *intervals = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return twin.read_header(data)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    return Header("jpeg", width, height, orientation, components, bool(progressive), *intervals)


def check(data: Buffer, orientation: int = 1) -> None:
    """Raise `DecodeError` where `decode` would, in half the time where a JPEG is whole and has no restart markers.

    For its last pixel our decoder goes through all Huffman codes, and those alone can be damaged; whatever it does not
    take, or finds wrong, is decoded in full.
    """
    status, width, height, tagged, _, _, restart, _ = _native.read_header(data)
    if not status and not restart and 0 < width * height <= _WHOLE.max_pixels:
        right, low = (height, width) if tagged >= 5 else (width, height)
        with _borrowed(_WHOLE) as context:
            before = _rows(context)
            last = np.array([[right - 1, low - 1, right, low, 1, 1, 0, 0]], np.int32)
            if not _decoded(context, data, 1, last, np.empty((1, 1, 1, 3), np.uint8)) and _rows(context) > before:
                return
    decode(data, orientation)


def _rows(context: Context) -> int:
    """How many images a context has decoded with our own decoder through all their rows."""
    return _native.counters(context.handle, -1)[0][WAYS.index("rows")]


def decode(data: Buffer, orientation: int = 1) -> NDArray[np.uint8]:
    """A whole image as upright RGB, uint8 (height, width, 3), given its EXIF orientation. Raises `DecodeError`."""
    status, width, height, tagged, *_ = _native.read_header(data)
    if status == Status.UNSUPPORTED:
        return twin.decode(data, orientation)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    if (tagged >= 5) != (5 <= orientation <= 8):
        width, height = height, width
    if width * height > _WHOLE.max_pixels:
        raise DecodeError(MESSAGES[Status.LIMIT])
    out = np.empty((1, height, width, 3), np.uint8)
    boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
    with _borrowed(_WHOLE) as context:
        status = _decoded(context, data, orientation, boxes, out)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    image: NDArray[np.uint8] = out[0]
    return image


def _decoded(context: Context, data: Buffer, orientation: int, boxes: NDArray[np.int32], out: NDArray[np.uint8]) -> int:
    """Decode one image that lies in memory; gives its status."""
    payload = np.frombuffer(data, np.uint8)
    source = (
        np.array([-1], np.int32),
        np.array([payload.ctypes.data], np.uint64),
        np.array([payload.size], np.uint64),
        None,
        np.array([orientation], np.uint8),
        None,
        None,
    )
    result = np.zeros(1, np.int32)
    decode_batch(context, source, boxes, np.zeros(1, np.uint8), out, result, 0, 1)
    return int(result[0])


def transcode(data: Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """Decode, make upright, resize and encode in one call without the GIL. Results and errors are the twin's."""
    if recipe.format not in _KINDS:
        return twin.transcode(data, recipe)
    status, width, height, orientation, components, _, _, mcus = _native.read_header(data)
    if status in (Status.UNSUPPORTED, Status.OK) and width * height > recipe.max_pixels:
        status = Status.LIMIT
    if status == Status.UNSUPPORTED:
        return _by_twin(data, recipe)
    if status:
        raise DecodeError(MESSAGES[Status(status)])
    size = recipe.resized(width, height)
    x0, y0, x1, y1 = recipe.crop(*size)
    whole = (x0, y0, x1, y1) == (0, 0, width, height) and recipe.padded(width, height) == (width, height)
    kept = recipe.format == "keep" and whole
    if _needs_twin(data, components, recipe, kept):
        decode(data, orientation)  # Pillow says nothing of damage that libjpeg only warns of
        return _by_twin(data, recipe)
    if kept:
        if recipe.check != "end":
            check(data, orientation)  # a container holds only images that decode
        elif not markers.has_end(data if isinstance(data, bytes) else bytes(data)):
            raise DecodeError(MESSAGES[Status.TRUNCATED])
        written = rewrite(data, recipe.interval(mcus), OPTIMAL, recipe.max_pixels) if recipe.restart and mcus else None
        return Transcoded(bytes(data) if written is None else written, "jpg", width, height, orientation, width, height)
    kind, field = _KINDS[recipe.format]
    most = recipe.max_pixels if kind == Kind.ENCODED else min(recipe.max_pixels, MAX_BYTES // 3)
    if max(x1 - x0, y1 - y0) > MAX_SIDE or (x1 - x0) * (y1 - y0) > most or max(size) > _INT_MAX:
        raise DecodeError(f"{MESSAGES[Status.LIMIT]} ({x1 - x0}x{y1 - y0} pixels after resizing)")
    with _borrowed(DecodeOptions(filter=recipe.filter, max_pixels=recipe.max_pixels)) as context:
        status, payload = _native.transcode(
            context.handle,
            data,
            (0, 0, width, height, *size, x0, y0),
            x1 - x0,
            y1 - y0,
            orientation,
            recipe.quality,
            *_SAMPLING["420" if kind == Kind.YUV420 else recipe.subsampling],
            recipe.interval(mcus_per_row(x1 - x0, min(components, 3), recipe.subsampling)),
            _denominator((width, height), size, recipe.reducing_gap),
            kind,
        )
    if status == Status.UNSUPPORTED:
        return _by_twin(data, recipe)
    if payload is None:
        raise DecodeError(MESSAGES[Status(status)])
    return Transcoded(payload, field, x1 - x0, y1 - y0, 1, width, height)


def _needs_twin(data: Buffer, components: int, recipe: TranscodeRecipe, kept: bool) -> bool:
    """Whether a JPEG is to be padded, or has a colour profile that has to be handed on or converted to sRGB."""
    if recipe.mode == "pad" and not kept:
        return True
    if recipe.icc == "drop" or (kept and recipe.icc != "srgb"):
        return False
    profile = markers.profile(data if isinstance(data, bytes) else bytes(data))
    return bool(profile) if recipe.icc == "keep" else colour.needs_conversion(profile, components)


def _by_twin(data: Buffer, recipe: TranscodeRecipe) -> Transcoded:
    """What the C code does not do: the twin's pixels, with the Huffman tables and markers that a JPEG gets here."""
    made = twin.transcode(data, replace(recipe, restart=0))
    if made.field != "jpg" or made.data == data:
        return made
    interval = recipe.interval(_native.read_header(made.data)[-1])
    written = rewrite(made.data, interval, recipe.quality)
    return made if written is None else made._replace(data=written)


def rewrite(data: Buffer, restart: int, tables: int = OPTIMAL, max_pixels: int = MAX_PIXELS) -> bytes | None:
    """A JPEG with the same coefficients and the same APPn and COM markers, as baseline in one scan.

    `restart` is MCUs per interval, 0 = no markers. `tables`: OPTIMAL for this image, the STANDARD ones, or 1 to 100 for
    those that `transcode` takes at that quality. None where the pixels would not be the same (more blocks per MCU than
    one scan may have, coefficients out of range, quantisation that changes between scans, missing scans). Raises
    `DecodeError` for damage.
    """
    with _borrowed(_WHOLE) as context:
        status, payload = _native.rewrite(context.handle, data, restart, tables, max_pixels)
    if status not in (Status.OK, Status.UNSUPPORTED):
        raise DecodeError(MESSAGES[Status(status)])
    return payload


_idle: dict[DecodeOptions, list[Context]] = {}


@contextmanager
def _borrowed(options: DecodeOptions) -> Iterator[Context]:
    """A context for one image. Kept for the next: fresh scratch memory costs a page fault for each 4 KiB, 0.1 ms."""
    idle = _idle.setdefault(options, [])  # append and pop of a list are atomic
    try:
        context = idle.pop()  # asking first whether there is one would leave room for another thread to take it
    except IndexError:
        context = Context(options)
    try:
        yield context
    finally:
        idle.append(context)


def _denominator(original: tuple[int, int], size: tuple[int, int], gap: float) -> int:
    """The DCT reduction that leaves at least `gap` times the wanted size: the rule of Pillow's `draft`."""
    if not gap:
        return 1
    room = min(have // math.ceil(want * gap) for have, want in zip(original, size, strict=True))
    return next(scale for scale in (8, 4, 2, 1) if room >= scale or scale == 1)
