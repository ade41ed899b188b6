"""Decoding: batches for training, single images for packing.

The C code (src/, native.py, native_batch.py) decodes JPEG, PNG and WebP, and does everything else with pixels. Pillow
decodes other images (other_formats.py). Where the C code was not built, without_native.py does a little.
"""

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.errors import DecodeError
from iofast.kernel import other_formats
from iofast.kernel.contract import FILTERS as FILTERS
from iofast.kernel.contract import MAX_BYTES
from iofast.kernel.contract import STAGES as STAGES
from iofast.kernel.contract import WAYS as WAYS
from iofast.kernel.contract import Counts as Counts
from iofast.kernel.contract import DecodeOptions as DecodeOptions
from iofast.kernel.contract import Finish as Finish
from iofast.kernel.contract import Header as Header
from iofast.kernel.contract import Kind as Kind
from iofast.kernel.contract import Payloads as Payloads
from iofast.kernel.contract import Status as Status
from iofast.kernel.contract import Transcoded as Transcoded
from iofast.kernel.contract import TranscodeRecipe as TranscodeRecipe
from iofast.kernel.other_formats import failure as failure
from iofast.kernel.payload import HEAD, StoredPayload

_missing: str | None = None  # why the native kernel is not in use
try:
    from iofast.kernel import _native
    from iofast.kernel import native as implementation

    backend = "native"
    simd, _turbo = _native.versions()
except ImportError as error:
    from iofast.kernel import without_native as implementation  # type: ignore[no-redef]

    backend, simd, _turbo = "pillow", "none", 0
    _missing = str(error) if find_spec("iofast.kernel._native") else "it was not built"
    warnings.warn(
        f"iofast's native kernel is missing ({_missing}): decoding runs on Pillow, several times slower. "
        "`iofast doctor` says what to install.",
        RuntimeWarning,
        stacklevel=2,
    )

Context = implementation.Context
crc32c = implementation.crc32c
decode = implementation.decode
decode_batch = implementation.decode_batch
finish_batch = implementation.finish_batch
read_header = implementation.read_header
read_rows = implementation.read_rows
transcode = implementation.transcode


def probe(read: Callable[[int, int], bytes], length: int) -> Header:
    """Read the header of an image of `length` bytes by few calls of `read(offset, count)`.

    Raises `DecodeError`, and the errors of `read`.
    """
    payload = StoredPayload(read, min(length, MAX_BYTES))
    if payload[:3] != b"\xff\xd8\xff":
        return other_formats.read_header(payload)
    for most in (HEAD, 1 << 17):  # the second includes a thumbnail or a colour profile
        try:
            return read_header(payload[:most])
        except DecodeError:
            if most >= length:
                raise
    return read_header(payload[:])


def decode_each(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    outs: Sequence[NDArray[Any]],
    status: NDArray[np.int32],
    finish: Finish | None = None,
) -> None:
    """Decode images, each into its own array (height, width, 3) of any size and strides; see `decode_batch`.

    One call of the C code per image, with its slices, takes 3.5 µs more than a single call for all: 3 % of a training
    crop of a 256-pixel photograph, 1 % of the whole photograph.
    """
    for row, (out, _) in enumerate(zip(outs, status, strict=True)):
        one = slice(row, row + 1)
        own = None if finish is None else finish._replace(work=finish.work.rows(one))
        decode_batch(context, source.rows(one), boxes[one], flips[one], out[None], status[one], 0, 1, own)


def decode_into(
    context: Context,
    source: Payloads,
    boxes: NDArray[np.int32],
    flips: NDArray[np.uint8],
    out: NDArray[Any],
    rows: NDArray[np.intp],
    finish: Finish | None = None,
) -> NDArray[np.int32]:
    """Decode images of one size into `rows` of `out`, which increase; return their status, int32; see `decode_batch`.

    Consecutive rows need a single call, which takes 3 % less time than one call each.
    """
    count, status = len(rows), np.zeros(len(rows), np.int32)
    if count and rows[-1] - rows[0] == count - 1:
        own = out[rows[0] : rows[-1] + 1]
        decode_batch(context, source, boxes, flips, own, status, 0, count, finish)
    else:
        decode_each(context, source, boxes, flips, [out[row] for row in rows], status, finish)
    return status


def describe() -> dict[str, str | None]:
    """Return backend, instruction set, libjpeg-turbo, and why the native kernel is missing, for `iofast doctor`."""
    version = f"{_turbo // 1_000_000}.{_turbo // 1000 % 1000}.{_turbo % 1000}" if _turbo else None
    return {"backend": backend, "simd": simd, "libjpeg-turbo": version, "missing": _missing}
