"""Batches: many images are decoded in one call of the C code, without the GIL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import features

from iofast.errors import OptionError
from iofast.kernel import _native, contract, memory, other_formats, pillow
from iofast.kernel.contract import (
    ALL_FILTERS,
    FORCED,
    MAX_MEMORY,
    MAX_PIXELS,
    SHARED,
    STAGES,
    TYPES,
    WAYS,
    Counts,
    DecodeOptions,
    Finish,
    Header,
    Kind,
    Payloads,
    Status,
    Timed,
)

_PILLOW = int(PIL.__version__.split(".")[0])


def _webp_path() -> str | None:
    """Return the file or the name of the libwebp that Pillow uses: that in its wheel, or the system's."""
    if not features.check("webp"):
        return None
    folder = Path(PIL.__file__).parent.parent / "pillow.libs"
    return next((str(path) for path in sorted(folder.glob("libwebp-*.so*"))), "libwebp.so.7")


_found = _native.find_libraries(_webp_path())  # once: when the kernel is imported
FOREIGN = tuple(name for bit, name in enumerate(("png", "webp")) if _found >> bit & 1)  # formats decoded without Pillow
_LARGEST = 3  # bytes of memory per byte of a whole JPEG's pixels: 8.6 per pixel were measured


def read_rows(fd: int, offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Read rows of `size` bytes at `offsets` (int64, (N,)) of an open file, as uint8 (N, size).

    Raises `EOFError` if the file ends inside a row, `OSError` if it cannot be read. One call for 256 rows takes 68 µs.
    """
    offsets = np.ascontiguousarray(offsets, np.int64)
    out = np.empty((len(offsets), size), np.uint8)
    short = _native.read_rows(fd, offsets, size, out)
    if short >= 0:
        raise EOFError(f"the file ends within {size} bytes from offset {offsets[short]} on, or just behind them")
    return out


class Context:
    """The JPEG handle and scratch memory of one thread. Concurrent use by two threads raises `RuntimeError`.

    `timed` measures all stages of an image ("all"), or only reading ("read"), for `counts`. `decoder` forces a
    decoding path wherever it applies: segments, splice or libjpeg (see `Counts`); None = the fastest. With `large`, or
    a limit on pixels above the default, the memory of images is the caller's care.
    """

    def __init__(
        self, options: DecodeOptions, *, timed: Timed | None = None, decoder: str | None = None, large: bool = False
    ) -> None:
        self.options, self._timed = options, timed
        self.decoded_by_pillow = 0
        self._large = [np.zeros(len(WAYS) - 1, np.int64), np.zeros(len(STAGES), np.int64)]  # as `_native.counters`
        if decoder not in (None, *FORCED):
            raise OptionError(f"decoder must be {', '.join(FORCED)} or None, found {decoder!r}")
        self._open: _native._Context | None = _native.new_context(
            ALL_FILTERS.index(options.filter),
            options.exact,
            _PILLOW,
            options.fast,
            options.strict,
            options.clip,
            min(options.max_pixels, SHARED) if not large and options.max_pixels <= MAX_PIXELS else options.max_pixels,
            options.max_bytes,
            -1 if decoder is None else WAYS.index(decoder),
        )
        if timed:
            _native.counters(self.handle, 2 if timed == "all" else 1)

    def counts(self) -> Counts:
        """Return the images decoded so far and the time of each stage."""
        counted = zip(self._large, _native.counters(self.handle, -1), strict=True)
        images, nanoseconds = ((large + own).tolist() for large, own in counted)
        ways = dict(zip(WAYS, (*images, self.decoded_by_pillow), strict=True))
        return Counts(ways, dict(zip(STAGES, nanoseconds, strict=True)))

    @property
    def read_ns(self) -> int:
        """Nanoseconds of reading so far; takes 1 µs where `counts` takes 6."""
        return _native.counters(self.handle, -1)[1][0]

    @property
    def handle(self) -> _native._Context:
        """The context of the C code. Raises `OptionError` after `close`."""
        if self._open is None:
            raise OptionError("the kernel was called with a context that is closed")
        return self._open

    def close(self) -> None:
        """Free the memory. Calling it twice is harmless."""
        self._open = None

    @contextmanager
    def for_large(self) -> Iterator[Context]:
        """Lend a context for one large image. Afterwards its memory is free, and its image is counted here."""
        context = Context(self.options, timed=self._timed, large=True)
        yield context
        images, nanoseconds = _native.counters(context.handle, -1)
        self._large[0] += np.minimum(images, 1)  # decoded in bands, it is one image
        self._large[1] += nanoseconds
        context.close()


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
    spans: NDArray[np.float32] | None = None,
) -> None:
    """Decode rows [start, stop): payload → upright RGB → region → resampled to virtual size → window → flip → `out`.

    boxes   (N, 8): the region x0, y0, x1, y1 in upright source pixels, the virtual width and height that it is
            resampled to, and x, y of the wanted window in the virtual image; the window has the size of `out`
    flips   (N,): bit 0 mirrors left to right. The other bits are 0, or the index of a filter in ALL_FILTERS plus one:
            that filter replaces the context's
    out     uint8 (N, height, width, 3), any strides
    status  (N,): receives the `Status` of each row. Failed rows are filled with zeros

    A payload with a checksum is read and compared as a whole. Raises `ValueError` if the arrays do not fit together;
    their dtypes are not compared.

    With `finish`, whose row i belongs to row i of `out`, each image is finished while it is in the cache, and `out` has
    the type in `finish`.

    If the context's options are `exact`, row i equals, to the last bit, the installed Pillow's
    `image.crop((x0, y0, x1, y1)).resize((virtual width, height), filter).crop(window)` of the upright RGB image. With
    `spans` (N, 4), also exact only, it is `.resize(size, filter, box=spans[i])` of that crop: x0, y0, x1, y1 counted
    from the region's corner. So `image.resize(size, filter, box=box)` has the whole image as its region and the box as
    its span. The order of the two passes is the installed Pillow's. A gray JPEG gives Pillow's `L` three times.

    PNG, WebP and what Pillow decodes are resampled like that in any case.
    """
    work, number = _work_columns(finish)
    if spans is not None and not (context.options.exact and spans.shape == (len(out), 4)):
        found = f"{spans.shape} and exact={context.options.exact}"
        raise OptionError(f"spans must have the shape ({len(out)}, 4), in a context with exact=True, found {found}")
    for part, first, last in _by_check(source, start, stop):
        _native.decode_batch(context.handle, *part, boxes, spans, flips, out, status, first, last, work, number)
    left = (status[start:stop] == Status.UNSUPPORTED) | (status[start:stop] == Status.LIMIT)
    for row in (np.flatnonzero(left) + start).tolist():
        one = slice(row, row + 1)
        own, _ = _work_columns(None if finish is None else finish._replace(work=finish.work.rows(one)))
        span = None if spans is None else spans[one]
        where = (boxes[one], span, flips[one], out[one], status[one], 0, 1, own, number)
        try:
            if status[row] == Status.UNSUPPORTED:
                _decode_other(context, source, row, where)
            else:
                _decode_large(context, source, row, where)
        except Exception as error:  # damaged images raise anything; one row must never end a batch
            status[row] = pillow.failure(error).status
        if status[row] != Status.OK:
            out[row] = 0


def _decode_other(context: Context, source: Payloads, row: int, where: tuple[Any, ...]) -> None:
    """Decode an image that Pillow decodes to `where`, the arguments of the C code. Raises any error of Pillow."""
    with other_formats.decoded_row(source, row, context.options) as image:
        pixels = pillow.array(image, "RGB")
        image.close()
        size = pixels.shape[:2] if source.orientations[row] in contract.TURNED else pixels.shape[1::-1]
        own, indexed = source.orientations[row : row + 1], [[Kind.DECODED, *size]]
        part = Payloads.in_memory([pixels.ctypes.data], [pixels.size], own, indexed)
        with context.for_large() if pixels.size > 3 * SHARED else nullcontext(context) as one:
            for band in _bands(where, 4 if where[3].size > 3 * SHARED else 1):
                _native.decode_batch(one.handle, *part, *band)
        context.decoded_by_pillow += int(where[4][0] == Status.OK)


def _decode_large(context: Context, source: Payloads, row: int, where: tuple[Any, ...]) -> None:
    """Decode an image that the C code refused as large, if it is within the limits. Raises `StatusError`."""
    header = _large_header(source, row, context.options)
    if SHARED < header.width * header.height <= context.options.max_pixels:
        needed = memory.check_whole(header, int(source.lengths[row]))
        with memory.reserved(needed), context.for_large() as large:
            count = 2 if _LARGEST * where[3].size > MAX_MEMORY else 1  # each band reads the file anew
            for part, *_ in _by_check(source.rows(slice(row, row + 1)), 0, 1):
                for band in _bands(where, count):
                    _native.decode_batch(large.handle, *part, *band)


def _bands(where: tuple[Any, ...], count: int) -> Iterator[tuple[Any, ...]]:
    """Split one image's arguments of the C code into `count` bands of rows, until one fails.

    The C code keeps 4 to 5.5 bytes per pixel of a band beside the result. Only a whole image can be finished.
    """
    boxes, spans, flips, out, status, *rows, work, number = where
    edges = [out.shape[1] * band // count for band in range(count + 1)] if work is None else [0, out.shape[1]]
    for top, bottom in pairwise(edges):
        box = boxes + np.array([0, 0, 0, 0, 0, 0, 0, top], boxes.dtype)
        yield box, spans, flips, out[:, top:bottom], status, *rows, work, number
        if status[0] != Status.OK:
            return


def _large_header(source: Payloads, row: int, options: DecodeOptions) -> Header:
    """The header of a JPEG, or of raw pixels. Raises `StatusError`."""
    kind, width, height = source.indexed_row(row)
    if kind != Kind.ENCODED:
        return Header("jpeg", width, height, 1, 3, progressive=False)  # raw pixels take less
    _, width, height, _, components, progressive, *_ = _native.read_header(
        other_formats.read_payload(source, row, options.max_bytes)
    )
    return Header("jpeg", width, height, 1, components, bool(progressive))


def _by_check(source: Payloads, start: int, stop: int) -> Iterator[tuple[Payloads, int, int]]:
    """Split rows [start, stop) into runs in which all rows have a checksum, or none has.

    Checksums in int64 become uint32 or None; other sources are returned whole. Raises `OptionError` for a wrong shape.
    """
    crcs = source.crcs
    if crcs is None or crcs.dtype != np.int64:
        yield source, start, stop
        return
    if crcs.shape != source.offsets.shape or stop > len(crcs):
        raise OptionError(f"crcs must have the shape {source.offsets.shape} and rows to {stop}, found {crcs.shape}")
    checked, plain = crcs >= 0, crcs.astype(np.uint32)
    turns = np.flatnonzero(np.diff(checked[start:stop])) + start + 1
    for first, last in pairwise([start, *turns.tolist(), stop]):
        if last > first:
            yield source._replace(crcs=plain if checked[first] else None), first, last


def finish_batch(context: Context, images: NDArray[np.uint8], finish: Finish, out: NDArray[Any]) -> None:
    """Finish uint8 `images` (N, height, width, 3) into `out`, without the GIL. Raises `ValueError` for other shapes.

    `out` has the shape of `images` and the type in `finish`; both may have any strides. Rows with another row as
    partner are mixed with it.
    """
    columns, number = _work_columns(finish)
    work = finish.work
    mix = (work.partner, work.share, work.patch) if work.mixes else None
    _native.finish_batch(context.handle, images, columns, mix, out, number, 0, len(images))  # type: ignore[arg-type]


def levels(pixels: NDArray[np.uint8], table: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `out` (3, height, width) from `pixels` (height, width, 3): value v of channel c becomes table[c, v].

    All arrays are contiguous. A table has the exact results of any arithmetic that looks at single values, which
    `Finish` with its one multiplication and addition has not. Raises `ValueError` for other sizes.
    """
    _native.levels(pixels, table, out)


def _work_columns(finish: Finish | None) -> tuple[tuple[Any, ...] | None, int]:
    """Return the work as the C code expects it, and the number of the stored type."""
    if finish is None:
        return None, 0
    work = finish.work
    columns = (work.steps, work.numbers, work.erased, work.fills, finish.amounts, work.noise, finish.scale)
    counts = work.steps.shape[1], work.erased.shape[1]
    return (*counts, *map(np.ascontiguousarray, columns)), list(TYPES).index(finish.type)


def decode_one(
    context: Context,
    data: other_formats.Buffer,
    orientation: int,
    boxes: NDArray[np.int32],
    out: NDArray[np.uint8],
    indexed: NDArray[np.int32] | None = None,
) -> int:
    """Decode one image in memory as a batch of one row, and return its status."""
    payload = np.frombuffer(data, np.uint8)
    source = Payloads.in_memory([payload.ctypes.data], [payload.size], [orientation], indexed)
    status = np.zeros(1, np.int32)
    decode_batch(context, source, boxes, np.zeros(1, np.uint8), out, status, 0, 1)
    return int(status[0])


_idle: dict[tuple[str, bool], list[Context]] = {}  # by filter and strictness


@contextmanager
def borrowed(filter: str, pixels: int, *, strict: bool = True) -> Iterator[Context]:
    """Lend a context for one image of `pixels`, which the caller has compared with its limit.

    It is reused: fresh scratch memory costs a page fault per 4 KiB, 0.1 ms. After a large image it is freed.
    """
    idle = _idle.setdefault((filter, strict), [])  # append and pop of a list are atomic
    try:
        context = idle.pop()  # testing first would let another thread take it in between
    except IndexError:
        context = Context(DecodeOptions(filter=filter, strict=strict, max_pixels=1 << 32))
    try:
        yield context
    finally:
        if pixels <= contract.LARGE:
            idle.append(context)
