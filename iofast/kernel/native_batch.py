"""The native kernel's batches: many images decoded in one call of the C code, without the GIL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.kernel import _native, contract, twin
from iofast.kernel.contract import (
    ALL_FILTERS,
    STAGES,
    TYPES,
    WAYS,
    Counts,
    DecodeOptions,
    Finish,
    Payloads,
    Status,
    Timed,
    by_check,
)
from iofast.kernel.twin import Buffer

STORED: dict[str, type[np.generic]] = {
    "uint8": np.uint8,
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.float16,
}  # by TYPES
SOURCE_DTYPES = (np.int32, np.uint64, np.uint64, np.uint32, np.uint8, np.int32)


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
            ALL_FILTERS.index(options.filter),
            options.fast,
            options.strict,
            options.clip,
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
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[Any],
    status: NDArray[np.int32],
    start: int,
    stop: int,
    finish: Finish | None = None,
) -> None:
    """Rows [start, stop) of a batch, without the GIL. Arguments, results and errors are `twin.decode_batch`'s.

    With `finish`, of which row i belongs to row i of `out`, each image is finished while it is in the cache, and `out`
    has the type that `finish` says.
    """
    if not 0 <= start <= stop <= len(out):
        raise OptionError(f"rows {start} to {stop} are not within a batch of {len(out)}")
    if source.crcs is not None and source.crcs.dtype == np.int64:
        for part, first, last in by_check(source, start, stop):
            decode_batch(context, part, boxes, flips, out, status, first, last, finish)
        return
    _check(source, boxes, flips, status, _type(finish), out)
    work, number = _columns(finish)
    _native.decode_batch(context.handle, *source, boxes, flips, out, status, start, stop, work, number)
    left = np.flatnonzero(status[start:stop] == Status.UNSUPPORTED) + start
    if not len(left):
        return
    decoded = out if finish is None else np.zeros(out.shape, np.uint8)
    twin.decode_rows(context.options, source, boxes, flips, decoded, status, left.tolist())
    whole = left[status[left] == Status.OK].tolist()
    for row in whole if finish is not None else ():
        _native.finish_batch(context.handle, decoded, work, None, out, number, row, row + 1)  # type: ignore[arg-type]
    context.left += len(whole)


def decode_each(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    outs: Sequence[NDArray[Any]],
    status: NDArray[np.int32],
    finish: Finish | None = None,
) -> None:
    """A batch whose images differ in size, without the GIL. Arguments, results and errors are `twin.decode_each`'s;
    `finish` as for `decode_batch`.

    A call of the C code for each image, and the slices for it, take 3.5 us more than one call for all of them: 3 % of a
    training crop of a 256-pixel photograph, 1 % of the whole of it.
    """
    twin.check_each(source, boxes, flips, outs, status, STORED[_type(finish)])
    for part, first, last in by_check(source, 0, len(outs)):
        for row in range(first, last):
            one = slice(row, row + 1)
            own = None if finish is None else finish._replace(work=finish.work.rows(one))
            decode_batch(context, part.rows(one), boxes[one], flips[one], outs[row][None], status[one], 0, 1, own)


def finish_batch(context: Context, images: NDArray[np.uint8], finish: Finish, out: NDArray[Any]) -> None:
    """What `finish` makes of uint8 `images` (N, height, width, 3), into `out` of that shape and its type; both of any
    strides. Rows whose partner is another are mixed with it. Without the GIL."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape != out.shape:
        raise OptionError(
            f"finish_batch: images must be uint8 {out.shape}, as out, found {images.dtype} {images.shape}"
        )
    if len(finish.work) != len(images) or out.dtype != STORED[finish.type]:
        raise OptionError(
            f"finish_batch: out must be {STORED[finish.type].__name__} and work have {len(images)} rows, found "
            f"{out.dtype} and {len(finish.work)}"
        )
    work, number = _columns(finish)
    own = finish.work
    mix = (own.partner, own.share, own.patch) if own.mixes else None
    _native.finish_batch(context.handle, images, work, mix, out, number, 0, len(images))  # type: ignore[arg-type]


def _type(finish: Finish | None) -> str:
    return "uint8" if finish is None else finish.type


def _columns(finish: Finish | None) -> tuple[tuple[Any, ...] | None, int]:
    """What the C code takes as work, and its number for the type that is stored."""
    if finish is None:
        return None, 0
    work = finish.work
    columns = (work.steps, work.numbers, work.erased, work.fills, finish.amounts, work.noise, finish.scale)
    check_dtypes("finish", (finish.amounts, finish.scale), (np.float32, np.float32))
    counts = work.steps.shape[1], work.erased.shape[1]
    return (*counts, *map(np.ascontiguousarray, columns)), TYPES.index(finish.type)


def check_dtypes(call: str, columns: Sequence[NDArray[Any] | None], dtypes: Sequence[type[np.generic]]) -> None:
    """Raise `OptionError` unless every array of a call is of its type: the C code sees bytes."""
    for column, dtype in zip(columns, dtypes, strict=True):
        if column is not None and column.dtype != dtype:
            raise OptionError(f"{call} wants an array of {np.dtype(dtype)}, found {column.dtype}")


def _check(
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    status: NDArray[np.int32],
    type: str,
    out: NDArray[Any],
) -> None:
    """What the C code does not check itself: it sees bytes."""
    columns, dtypes = (*source, boxes, flips, status, out), (*SOURCE_DTYPES, np.int32, np.uint8, np.int32, STORED[type])
    check_dtypes("decode_batch", columns, dtypes)
    if boxes.ndim != 2 or boxes.shape[1] != 8:
        raise OptionError(f"boxes must have the shape ({len(status)}, 8), found {boxes.shape}")
    if source.indexed is not None and source.indexed.shape[1:] != (3,):
        raise OptionError(f"indexed must have the shape ({len(status)}, 3), found {source.indexed.shape}")


def decode_one(
    context: Context,
    data: Buffer,
    orientation: int,
    boxes: NDArray[np.int32],
    out: NDArray[np.uint8],
    raw: NDArray[np.int32] | None = None,
) -> int:
    """Decode one image that lies in memory; gives its status."""
    payload = np.frombuffer(data, np.uint8)
    source = Payloads(
        np.array([-1], np.int32),
        np.array([payload.ctypes.data], np.uint64),
        np.array([payload.size], np.uint64),
        None,
        np.array([orientation], np.uint8),
        raw,
    )
    result = np.zeros(1, np.int32)
    decode_batch(context, source, boxes, np.zeros(1, np.uint8), out, result, 0, 1)
    return int(result[0])


_idle: dict[str, list[Context]] = {}  # by filter


@contextmanager
def borrowed(filter: str, pixels: int) -> Iterator[Context]:
    """A context for one image of so many pixels, which the caller has compared with its limit.

    Kept for the next one: fresh scratch memory costs a page fault for each 4 KiB, 0.1 ms. That of a large image goes.
    """
    idle = _idle.setdefault(filter, [])  # append and pop of a list are atomic
    try:
        context = idle.pop()  # asking first whether there is one would leave room for another thread to take it
    except IndexError:
        context = Context(DecodeOptions(filter=filter, max_pixels=1 << 32))
    try:
        yield context
    finally:
        if pixels <= contract.LARGE:
            idle.append(context)
