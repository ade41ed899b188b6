"""The native module (src/module.c). Call it through `iofast.kernel`."""

from collections.abc import Buffer  # type: ignore[attr-defined]  # for type checkers only: 3.12 in typeshed

class _Context: ...  # a capsule

# steps, erasings, codes, numbers, erased, fills, amounts, noise, scale
_Work = tuple[int, int, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer]

def new_context(
    filter: int,
    exact: int,
    pillow: int,
    fast: int,
    strict: int,
    clip: int,
    max_pixels: int,
    max_bytes: int,
    way: int,
    /,
) -> _Context: ...
def decode_batch(
    context: _Context,
    fds: Buffer,
    offsets: Buffer,
    lengths: Buffer,
    crcs: Buffer | None,
    orientations: Buffer,
    indexed: Buffer | None,
    boxes: Buffer,
    spans: Buffer | None,
    flips: Buffer,
    out: Buffer,
    status: Buffer,
    start: int,
    stop: int,
    work: _Work | None,
    type: int,
    /,
) -> None: ...
def finish_batch(
    context: _Context,
    images: Buffer,
    work: _Work,
    mix: tuple[Buffer, Buffer, Buffer] | None,
    out: Buffer,
    type: int,
    start: int,
    stop: int,
    /,
) -> None: ...
def levels(pixels: Buffer, table: Buffer, out: Buffer, /) -> None: ...
def counters(context: _Context, timed: int, /) -> tuple[tuple[int, ...], tuple[int, ...]]: ...
def transcode(
    context: _Context,
    data: Buffer,
    box: tuple[int, int, int, int, int, int, int, int],
    width: int,
    height: int,
    orientation: int,
    quality: int,
    h_samp: int,
    v_samp: int,
    restart: int,
    denominator: int,
    kind: int,
    /,
) -> tuple[int, bytes | None]: ...
def encode(
    context: _Context,
    pixels: Buffer,
    channels: int,
    width: int,
    height: int,
    quality: int,
    h_samp: int,
    v_samp: int,
    restart: int,
    /,
) -> tuple[int, bytes | None]: ...
def rewrite(
    context: _Context, data: Buffer, restart: int, tables: int, max_pixels: int, /
) -> tuple[int, bytes | None]: ...
def read_header(data: Buffer, /) -> tuple[int, int, int, int, int, int, int, int]: ...
def read_rows(fd: int, offsets: Buffer, size: int, out: Buffer, /) -> int: ...
def crc32c(data: Buffer, value: int = 0, /) -> int: ...
def find_libraries(webp: str | None, /) -> int: ...
def versions() -> tuple[str, int]: ...
def device_read(
    context: _Context,
    fds: Buffer,
    offsets: Buffer,
    lengths: Buffer,
    crcs: Buffer | None,
    orientations: Buffer,
    indexed: Buffer | None,
    arena: Buffer,
    places: Buffer,
    tables: Buffer,
    files: Buffer,
    status: Buffer,
    start: int,
    stop: int,
    /,
) -> None: ...
def device_place(
    files: Buffer,
    boxes: Buffer,
    flips: Buffer,
    orientations: Buffer,
    images: Buffer,
    filter: int,
    clip: bool,
    width: int,
    height: int,
    /,
) -> tuple[int, int, int, int, int]: ...
def device_blurs(codes: Buffer, numbers: Buffer, blurs: Buffer, blurred: Buffer, /) -> int: ...
def device_run(batch: Buffer, stage: int, threads: int, /) -> None: ...
def device_sizes() -> tuple[int, int, int, int, int]: ...
