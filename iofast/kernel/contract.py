"""What the native kernel and its Python twin have in common: options, results, status codes, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.work import Work

FILTERS = ("nearest", "box", "bilinear", "bicubic", "lanczos")
ALIASED = "bilinear-aliased"  # between the four nearest pixels, however much smaller an image becomes
ALL_FILTERS = (*FILTERS, ALIASED)  # the order is the native kernel's numbering
MAX_PIXELS = 1 << 28  # 268 million; three times Pillow's bomb warning, enough for 16,000 x 16,000
MAX_MEMORY = 1 << 31  # bytes for packing one image: enough for 16,000 x 16,000 pixels in RGB, not in RGBA
LARGE = 1 << 24  # pixels; of a larger image memory counts more than time: fewer copies, and no scratch memory is kept
MAX_BYTES = 1 << 30  # of one encoded image; read into scratch, so bounded before it is allocated
MAX_SIDE = 65_500  # libjpeg's JPEG_MAX_DIMENSION
MAX_RESTART = 65_535  # MCUs per restart interval: the marker has 16 bits


class Payloads(NamedTuple):
    """Where the payloads of N images lie: open descriptors, or addresses where the descriptor is -1. Columns of N rows.

    crcs          CRC32C of each; None, or -1 in int64 = not checked; of raw pixels then only some rows are read
    orientations  EXIF 1-8, to be applied; 0 = as stored, whatever the header says
    indexed       (N, 3): `Kind`, upright width and height, as the index has them; None = encoded images of unknown
                  size. The header of an encoded image must agree with size and orientation, unless the width is 0
    """

    fds: NDArray[np.int32]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    crcs: NDArray[np.uint32] | NDArray[np.int64] | None
    orientations: NDArray[np.uint8]
    indexed: NDArray[np.int32] | None

    def rows(self, rows: NDArray[np.intp] | slice) -> Payloads:
        """The same columns of some of the rows."""
        return Payloads._make(None if column is None else column[rows] for column in self)

    def checked(self, check: bool) -> Payloads:
        """The same, without checksums if `check` is off."""
        return self if check else self._replace(crcs=None)


def by_check(source: Payloads, start: int, stop: int) -> Iterator[tuple[Payloads, int, int]]:
    """Rows [start, stop) of a source as runs of rows that are all checked or all not.

    Checksums in int64 become uint32, or None; a source with others is given as it is.
    """
    crcs = source.crcs
    if crcs is None or crcs.dtype != np.int64:
        yield source, start, stop
        return
    if crcs.shape != source.offsets.shape or stop > len(crcs):
        raise OptionError(f"crcs must have the shape {source.offsets.shape} and rows to {stop}, found {crcs.shape}")
    checked, plain = crcs >= 0, crcs.astype(np.uint32)
    turns = np.flatnonzero(checked[start + 1 : stop] != checked[start : stop - 1]) + start + 1
    for first, last in pairwise([start, *turns.tolist(), stop]):
        if last > first:
            yield source._replace(crcs=plain if checked[first] else None), first, last


TURNED, MIRRORED_X, MIRRORED_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)  # EXIF orientations; the axes are upright

PART_ROOM = 64  # bytes that a part may be longer than its payload

# a row of `Parts.table`; width and height are the part's own, x0 to y1 (what is wanted of it) stored pixels of it, and
# (left, top) is where that piece, made upright, lies in the upright image
PART_COLUMNS = ("length", "width", "height", "x0", "y0", "x1", "y1", "left", "top")


class Parts(NamedTuple):
    """Where `part_batch` puts the parts of N JPEGs: row i to out[places[i] : places[i + 1]], how it is to the table.

    `PART_ROOM` bytes more than its payload are always room enough for a part.
    """

    out: NDArray[np.uint8]  # (bytes,)
    places: NDArray[np.int64]  # (N + 1,)
    table: NDArray[np.int32]  # (N, 9): PART_COLUMNS


TYPES = ("uint8", "float32", "bfloat16", "float16")  # the order is the native kernel's numbering


class Finish(NamedTuple):
    """What is done to the decoded images of a batch before they are stored: `work` (of which row i is image i's), then
    level * scale[0] + scale[1] in float32, then erased rectangles with their noise, then the cast to `type`."""

    work: Work
    scale: NDArray[np.float32]  # (2, 3); not looked at where `type` is uint8
    amounts: NDArray[np.float32]  # (E, 3): how much noise each erasing adds
    type: str  # one of TYPES; bfloat16 is stored in arrays of uint16


class Kind(IntEnum):
    """What a payload is: an encoded image, or pixels as the fields `rgb` and `yuv` have them (docs/format.md)."""

    ENCODED = 0
    RGB = 1
    YUV420 = 2


class Status(IntEnum):
    """What became of one row of `decode_batch`. The numbers are the native kernel's and do not change."""

    OK = 0
    READ = 1
    SHORT = 2
    CHECKSUM = 3
    CORRUPT = 4
    TRUNCATED = 5
    LIMIT = 6
    BOX = 7
    MEMORY = 8
    UNSUPPORTED = 9
    CHANGED = 10
    EMPTY = 11


MESSAGES = {
    Status.OK: "ok",
    Status.READ: "the file cannot be read",
    Status.SHORT: "the file ends inside the payload",
    Status.CHECKSUM: "the payload's CRC32C differs from the index: the bytes are damaged",
    Status.CORRUPT: "the image data is corrupt",
    Status.TRUNCATED: "the image is truncated",
    Status.LIMIT: "the image is larger than the limit on pixels or bytes",
    Status.BOX: "the box lies outside the image (a crop larger than it?), or its size differs from the index",
    Status.MEMORY: "out of memory",
    Status.UNSUPPORTED: "not an image that can be decoded here",
    Status.CHANGED: "the image's size or orientation differs from the index: its file was changed; open the set again",
    Status.EMPTY: "the file or field is empty",
}


class StatusError(Exception):
    """Why an image cannot be decoded: a status code, details such as Pillow's words, and what to say of the code."""

    def __init__(self, status: Status, detail: str = "", message: str = "") -> None:
        super().__init__(detail)
        self.status, self.message = status, message or MESSAGES[status]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a batch is decoded: the same for every row.

    `fast` permits DCT scaling where the scaled crop still covers the output and where it is faster: of images that
    libjpeg-turbo decodes. Our own decoder takes less time without it. `strict` makes damaged or truncated image
    data an error even where a decoder could go on and guess the rest. `clip`: a window that reaches beyond its
    resampled image is moved into it; where it is larger, what there is goes to the upper left of the output, and the
    rest is left undefined. Without it such a window is an error.
    """

    filter: str = "bilinear"
    fast: bool = False
    strict: bool = True
    max_pixels: int = MAX_PIXELS
    max_bytes: int = MAX_BYTES
    clip: bool = False

    def __post_init__(self) -> None:
        if self.filter not in ALL_FILTERS:
            raise OptionError(f"filter must be one of {', '.join(ALL_FILTERS)}, found {self.filter!r}")
        if not 0 < self.max_pixels <= 1 << 32 or not 0 < self.max_bytes <= 1 << 32:
            raise OptionError(f"max_pixels and max_bytes must be 1 to 2^32, found {self.max_pixels}, {self.max_bytes}")


# the native kernel's numbering; the last is the twin's
WAYS = ("segments", "rows", "splice", "libjpeg", "raw", "pillow")
Timed = Literal["read", "all"]  # which stages a context reads the clock for
STAGES = (
    "read",
    "check",
    "scan",
    "splice",
    "entropy",
    "transform",
    "colour",
    "libjpeg",
    "axes",
    "resample",
    "steps",
    "store",
)


class Counts(NamedTuple):
    """What a context has done so far.

    `ways`: images by the way they were decoded. segments: our decoder, only the restart segments in the way; rows: our
    decoder, on a file without markers; splice: libjpeg, on a smaller file made of segments; libjpeg: libjpeg, crop and
    skip; raw: raw pixels, where there is nothing to decode; pillow: Pillow. `nanoseconds`: by stage of the native
    kernel, zero unless the context is timed.
    """

    ways: dict[str, int]
    nanoseconds: dict[str, int]


class Header(NamedTuple):
    """What the first bytes of an image say. `width` and `height` are upright: after `orientation` was applied."""

    format: str  # jpeg, png, webp, gif, bmp, tiff, ppm, avif
    width: int
    height: int
    orientation: int  # EXIF 1-8 that a decoder has still to apply
    components: int  # colour components: 1 grayscale, 3 RGB or YCbCr, 4 CMYK or with alpha
    progressive: bool
    restart: int = 0  # MCUs per restart interval of a JPEG, 0 = no restart markers
    mcus: int = 0  # MCUs per row of a JPEG as it is stored, 0 = not known


class Transcoded(NamedTuple):
    """One packed image. All sizes are upright."""

    data: bytes
    field: str  # jpg, png, webp, rgb or yuv
    width: int
    height: int
    orientation: int  # 1, unless the payload was kept verbatim with its tag
    original_width: int
    original_height: int


@dataclass(frozen=True, slots=True)
class TranscodeRecipe:
    """Every option that shapes the pixels of a packed image.

    `mode`: `short` and `long` make that side `size` pixels and keep the aspect ratio; `exact` makes a square of `size`
    whatever the aspect ratio; `crop` makes the short side `size` and cuts the centre square; `pad` makes the long side
    `size` and puts the image into the middle of a square of `pad_color` (None: black); `none` keeps the size.
    `reducing_gap` (Pillow's word): a large JPEG is decoded at 1/2, 1/4 or 1/8 where that is still at least this many
    times the wanted size; 0 = always in full. `format="keep"` stores the bytes as they are where no pixel changes,
    and files of other formats as PNG, unless their size changes; `rgb` and `yuv420` store pixels that need no decoder.
    `restart`: MCUs per restart interval of a JPEG, 0 = no restart markers, "auto" = the best for decoding parts of it
    (`restart_interval`). A JPEG that is kept is written again for it, with the same coefficients and markers; with 0 or
    None it is not touched (None is "auto" for whatever is encoded).
    `icc`: "srgb" converts what has another colour profile, "keep" hands the profile on, "drop" ignores it; None is
    "srgb" for whatever is encoded, and leaves kept files alone. `background`: the colour that transparency is laid
    over, or "drop" for the colours beneath it as Pillow's `convert("RGB")`; None is white, and leaves kept files alone.
    `max_pixels` and `max_memory` (bytes, estimated before anything is decoded) are limits of an image.
    `check`: how far a kept file is looked at: None or "decode" decodes it, "end" looks at its header and its end only.
    """

    size: int | None = None
    mode: str = "none"
    only_shrink: bool = False
    filter: str = "bilinear"
    format: str = "jpeg"
    quality: int = 90
    subsampling: str = "420"
    restart: int | str | None = 0
    reducing_gap: float = 2.0
    max_pixels: int = MAX_PIXELS
    max_memory: int = MAX_MEMORY
    pad_color: str | None = None
    icc: str | None = None
    background: str | None = None
    check: str | None = None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, ("short", "long", "exact", "crop", "pad", "none"))
        _one_of("filter", self.filter, FILTERS)
        _one_of("format", self.format, ("jpeg", "png", "webp", "rgb", "yuv420", "keep"))
        _one_of("subsampling", self.subsampling, ("420", "422", "444"))
        if self.size is not None:
            _whole("resize= in pixels", self.size, 1, MAX_SIDE)
        if self.size is None and self.mode != "none":
            raise OptionError(f"mode={self.mode}: expected resize= in pixels beside it, found none")
        if self.size is not None and self.mode == "none":
            raise OptionError(f"mode=none changes no size: expected none beside it, found resize={self.size}")
        _whole("quality", self.quality, 1, 100)
        if self.reducing_gap != 0 and not 1 <= self.reducing_gap <= 16:
            raise OptionError(f"reducing_gap must be 0 or 1 to 16, found {self.reducing_gap}")
        if self.restart is not None and self.restart != "auto" and not _is_whole(self.restart, 0, MAX_RESTART):
            raise OptionError(f"restart must be auto, none or 0 to {MAX_RESTART} (MCUs), found {self.restart!r}")
        _one_of("check", self.check or "decode", ("decode", "end"))
        self._check_colours()

    def _check_colours(self) -> None:
        if self.icc is not None:
            _one_of("icc", self.icc, ("srgb", "keep", "drop"))
        if self.icc == "keep" and self.format in ("rgb", "yuv420"):
            raise OptionError(f"icc 'keep' needs a format that can hold a profile, found {self.format!r}")
        for text in (self.pad_color, self.background):
            if text not in (None, "drop"):
                levels_of(str(text))
        if self.pad_color == "drop":
            raise OptionError("pad_color must be a colour, found 'drop'")

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """The size (width, height) that an upright image of `width` x `height` is resampled to, before any crop."""
        if self.size is None:
            return width, height
        if self.mode == "exact":
            goal = (self.size, self.size)
        else:
            side = max(width, height) if self.mode in ("long", "pad") else min(width, height)
            # torchvision's rounding (truncation), so that Resize(size) of a packed image changes nothing
            goal = tuple(self.size if s == side else max(1, s * self.size // side) for s in (width, height))  # type: ignore[assignment]
        if self.only_shrink and (goal[0] > width or goal[1] > height):
            return width, height
        return goal

    def interval(self, mcus: int) -> int:
        """MCUs per restart interval of a JPEG with `mcus` MCUs per row; 0 = none."""
        return self.restart if isinstance(self.restart, int) else restart_interval(mcus)

    def crop(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The box (x0, y0, x1, y1) kept of a resampled image of `width` x `height`: all of it, or its centre."""
        if self.mode != "crop":
            return 0, 0, width, height
        side = min(self.size or width, width, height)
        x, y = round((width - side) / 2), round((height - side) / 2)  # as torchvision's CenterCrop rounds
        return x, y, x + side, y + side

    def padded(self, width: int, height: int) -> tuple[int, int]:
        """The size (width, height) of the canvas that a resampled, cropped image is put into the middle of."""
        return (self.size, self.size) if self.mode == "pad" and self.size else (width, height)


def restart_interval(mcus: int) -> int:
    """MCUs per restart interval that "auto" means: the divisor of `mcus` (of a row) nearest to 4, the smaller of two.

    A divisor, so that a row of MCUs begins with an interval, and any rectangle of intervals can be a JPEG of its own.
    Shorter ones let a crop decode less beside what it needs; each costs a marker of two bytes, and DCs coded in full.
    """
    return min((n for n in range(1, mcus + 1) if mcus % n == 0), key=lambda n: (abs(n - 4), n))


def mcus_per_row(width: int, components: int, subsampling: str) -> int:
    """MCUs per row of the JPEG that an image of this width becomes."""
    return -(-width // (16 if components == 3 and subsampling != "444" else 8))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(allowed)}, found {value!r}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not _is_whole(value, low, high):
        raise OptionError(f"{name} must be a whole number from {low} to {high}, found {value!r}")


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def levels_of(text: str) -> tuple[int, int, int]:
    """The colour that an option names: `white`, `black`, `gray`, `#rrggbb`, or three levels `r,g,b`.

    Raises `OptionError`.
    """
    named = {"white": (255, 255, 255), "black": (0, 0, 0), "gray": (128, 128, 128), "grey": (128, 128, 128)}
    if text in named:
        return named[text]
    try:
        if text.startswith("#") and len(text) == 7:
            red, green, blue = bytes.fromhex(text[1:])
        else:
            red, green, blue = map(int, text.split(","))
    except ValueError:
        red = green = blue = -1
    if min(red, green, blue) < 0 or max(red, green, blue) > 255:
        raise OptionError(f"a colour must be white, black, gray, #rrggbb or r,g,b of 0 to 255, found {text!r}")
    return red, green, blue
