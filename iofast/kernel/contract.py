"""Options, results, status codes and limits of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iofast.errors import OptionError
from iofast.option import FILTER, MOST_MEMORY, MOST_PIXELS, QUALITY, REDUCING_GAP, SUBSAMPLING, check_choice
from iofast.record import LONGEST_SIDE
from iofast.work import Work

FILTERS = ("nearest", "box", "bilinear", "bicubic", "lanczos")
ALIASED = "bilinear-aliased"  # interpolate between the four nearest pixels, whatever the reduction
ALL_FILTERS = (*FILTERS, ALIASED, "hamming")  # in the order of the native kernel's numbers
MAX_PIXELS, MAX_MEMORY = MOST_PIXELS, MOST_MEMORY
LARGE = 1 << 24  # pixels; above, memory matters more than time: make fewer copies and keep no scratch memory
SHARED = 1 << 25  # pixels; a JPEG above waits for the memory of others (`memory.reserved`): 235 MB, 440 if progressive
MAX_BYTES = 1 << 30  # of one encoded image, which is read into scratch memory
MAX_SIDE = 65_500  # libjpeg's JPEG_MAX_DIMENSION
MAX_RESTART = 65_535  # MCUs per restart interval: the marker has 16 bits


class Payloads(NamedTuple):
    """The places of N payloads: open descriptors, or addresses where the descriptor is -1. Columns of N rows.

    crcs          CRC32C of each; None, or -1 in int64 = unknown. Raw pixels without one are read only where needed
    orientations  EXIF 1-8 to apply; 0 = leave the pixels as stored, whatever the header contains
    indexed       (N, 3): `Kind`, upright width and height from the index; None = encoded images of unknown size.
                  An encoded image must match the size and the orientation. Width 0 = do not compare
    """

    fds: NDArray[np.int32]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    crcs: NDArray[np.uint32] | NDArray[np.int64] | None
    orientations: NDArray[np.uint8]
    indexed: NDArray[np.int32] | None

    @classmethod
    def in_memory(
        cls, addresses: ArrayLike, lengths: ArrayLike, orientations: ArrayLike, indexed: ArrayLike | None = None
    ) -> Payloads:
        """Return payloads without checksums in memory that the caller keeps alive."""
        places = np.asarray(addresses, np.uint64)
        columns = places, np.asarray(lengths, np.uint64), None, np.asarray(orientations, np.uint8)
        own = None if indexed is None else np.asarray(indexed, np.int32)
        return cls(np.full(len(places), -1, np.int32), *columns, own)

    def rows(self, rows: NDArray[np.intp] | slice) -> Payloads:
        """Return the columns of some of the rows."""
        return Payloads._make(None if column is None else column[rows] for column in self)

    def checked(self, check: bool) -> Payloads:
        """Drop the checksums unless `check` is on."""
        return self if check else self._replace(crcs=None)

    def indexed_row(self, row: int) -> list[int]:
        """Return `Kind` (or an invalid number), upright width and height of a row; zeros if there is no index."""
        return [0, 0, 0] if self.indexed is None else self.indexed[row].tolist()


TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange width and height

# The types of finished images and their arrays, in the order of the native kernel's numbers.
TYPES: dict[str, type[np.generic]] = {
    "uint8": np.uint8,
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.float16,
}


class Finish(NamedTuple):
    """The operations on the decoded images of a batch before they are stored.

    These are the steps of `work` (row i belongs to image i), level * scale[0] + scale[1] in float32, erased rectangles
    with their noise, and the cast to `type`.
    """

    work: Work
    scale: NDArray[np.float32]  # (2, 3); ignored if `type` is uint8
    amounts: NDArray[np.float32]  # (E, 3): the noise added by each erasing
    type: str  # a key of TYPES


class Kind(IntEnum):
    """Contents of a payload: an encoded image, or pixels as in the field `rgb` (docs/format.md)."""

    ENCODED = 0
    RGB = 1
    DECODED = 2  # pixels that Pillow has decoded, within one call


class Status(IntEnum):
    """Outcome of one row of `decode_batch`. The numbers are the native kernel's and do not change."""

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
    Status.LIMIT: "the image is larger than the limit on pixels or bytes",  # `beyond` says on which
    Status.BOX: "the box lies outside the image (a crop larger than it?), or its size differs from the index",
    Status.MEMORY: "out of memory",
    Status.UNSUPPORTED: "not an image that can be decoded here",
    Status.CHANGED: "the image's size or orientation differs from the index: its file was changed; open the set again",
    Status.EMPTY: "the file or field is empty",
}


class StatusError(Exception):
    """An image that cannot be decoded: its status, details such as Pillow's words, and the message for the status."""

    def __init__(self, status: Status, detail: str = "", message: str = "") -> None:
        super().__init__(detail)
        self.status, self.message = status, message or MESSAGES[status]

    @property
    def reason(self) -> str:
        """The message, with the details in brackets."""
        return self.message + (f" ({self})" if str(self) else "")


def beyond(limit: str, detail: str) -> StatusError:
    """Return the error for an image larger than the limit on `limit`: pixels, memory or bytes."""
    detail += "" if limit == "bytes" else f"; pack has --max-{limit}"
    return StatusError(Status.LIMIT, detail, f"the image is larger than the limit on {limit}")


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise `StatusError` if an image has too many pixels, or a side that an index cannot hold."""
    if width * height > max_pixels or max(width, height) > LONGEST_SIDE:
        raise beyond("pixels", f"{width}x{height} pixels, the limit is {max_pixels}")


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options that apply to every row of a batch. Raises `OptionError` for unknown filters and limits out of range.

    exact   resample in Pillow's arithmetic: pixels equal those of `crop` and `resize` of the installed Pillow.
            `fast` then has no effect
    fast    permit DCT scaling by libjpeg-turbo where the scaled crop still covers the output and scaling is faster.
            Our own decoder never scales: it takes less time without it
    strict  fail on damaged or truncated image data, even where a decoder could guess the rest
    clip    move a window that reaches beyond its resampled image into it. If the window is larger, the image goes
            to the upper left of the output, and the rest stays undefined. Without `clip` such a window is an error
    """

    filter: str = FILTER
    fast: bool = False
    strict: bool = True
    max_pixels: int = MAX_PIXELS
    max_bytes: int = MAX_BYTES
    clip: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        check_choice("filter", self.filter, ALL_FILTERS)
        if not 0 < self.max_pixels <= 1 << 32 or not 0 < self.max_bytes <= 1 << 32:
            raise OptionError(f"max_pixels and max_bytes must be 1 to 2^32, found {self.max_pixels}, {self.max_bytes}")


# In the order of the native kernel's numbers; Pillow's images are counted in Python.
WAYS = ("segments", "rows", "splice", "libjpeg", "raw", "png", "webp", "pillow")
FORCED = ("segments", "splice", "libjpeg")  # those of them that a context can use wherever they apply
Timed = Literal["read", "all"]  # the stages that a context measures
STAGES = (
    *("read", "check", "scan", "splice", "entropy", "transform"),
    *("colour", "libjpeg", "axes", "resample", "steps", "store"),
)


class Counts(NamedTuple):
    """Totals of a context.

    ways         images by decoding path. segments: our decoder, only the restart segments of the crop; rows: our
                 decoder, on a file without markers; splice: libjpeg, on a smaller file made of segments; libjpeg:
                 libjpeg, crop and skip; raw: raw pixels; png, webp: libdeflate or zlib, and libwebp, found at run
                 time; pillow: Pillow
    nanoseconds  time by stage of the native kernel, zero unless the context is timed
    """

    ways: dict[str, int]
    nanoseconds: dict[str, int]


class Header(NamedTuple):
    """Facts from the first bytes of an image. `width` and `height` are upright: after `orientation` was applied."""

    format: str  # of `pillow.format_of`
    width: int
    height: int
    orientation: int  # EXIF 1-8 that the decoder does not apply
    components: int  # 1 grayscale, 3 RGB or YCbCr, 4 CMYK or with alpha; the channels of an array
    progressive: bool
    restart: int = 0  # MCUs per restart interval of a JPEG, 0 = no restart markers
    mcus: int = 0  # MCUs per row of a JPEG as stored, 0 = unknown
    type: str = "uint8"  # of the values of an array

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels of an array."""
        return self.width * self.height * self.components * np.dtype(self.type).itemsize


class Transcoded(NamedTuple):
    """One packed image. All sizes are upright."""

    data: bytes
    field: str  # jpg, png, webp or rgb
    width: int
    height: int
    orientation: int  # 1, unless the payload was kept verbatim with its tag
    original_width: int
    original_height: int


class Fitted(NamedTuple):
    """Where the pixels of an upright image go. All sizes are (width, height).

    size    to which the image of size `original` is resampled
    box     x0, y0, x1, y1 of what is kept of that: all, or its centre; `window` is its size
    canvas  on which it is centred
    """

    original: tuple[int, int]
    size: tuple[int, int]
    box: tuple[int, int, int, int]
    window: tuple[int, int]
    canvas: tuple[int, int]

    @property
    def is_whole(self) -> bool:
        """Whether nothing changes."""
        return self.original == self.size == self.window == self.canvas

    @property
    def row(self) -> tuple[int, int, int, int, int, int, int, int]:
        """A row of `decode_batch`'s boxes."""
        return 0, 0, *self.original, *self.size, *self.box[:2]


@dataclass(frozen=True, slots=True)
class TranscodeRecipe:
    """The options that determine the pixels of a packed image. Raises `OptionError` for invalid combinations.

    mode          `short` and `long` resize that side to `size` pixels and keep the aspect ratio; `exact` makes a square
                  of `size`; `crop` resizes the short side to `size` and cuts out the centre square; `pad` resizes
                  the long side and centres the image on a square of `pad_color` (None: black); `none` keeps the size
    format        `keep` stores a file unchanged if its pixels do not change (formats that no container stores become
                  PNG), and encodes all others as JPEG; `rgb` stores raw pixels; `npy` stores all channels
                  and bits, as `png` does for samples of 16 bits
    restart       MCUs per restart interval of a JPEG; 0 = no markers, "auto" = best for decoding crops. A number or
                  "auto" also rewrites kept JPEGs, with the same coefficients and metadata; 0 and None keep them. For
                  encoded JPEGs None means "auto"
    reducing_gap  decode a large JPEG at 1/2, 1/4 or 1/8 if that is still at least this many times the wanted size;
                  0 = always in full. The name is Pillow's
    max_pixels    limit of an image in pixels
    max_memory    limit of an image in bytes of memory, estimated before decoding
    icc           "srgb" converts other colour profiles, "keep" passes the profile on, "drop" ignores it; None is
                  "srgb" for encoded images and leaves kept files unchanged
    background    colour beneath transparency, or "drop" for the colours that Pillow's `convert("RGB")` gives; None is
                  white for encoded images and leaves kept files unchanged
    check         validation of a kept file: None or "decode" decodes it, "end" reads its header and its end only
    truncated     "accept" decodes JPEGs that are damaged or end early as far as they go, and encodes those that
                  "keep" could not keep; None: they are errors
    """

    size: int | None = None
    mode: str = "none"
    only_shrink: bool = False
    filter: str = FILTER
    format: str = "jpeg"
    quality: int = QUALITY
    subsampling: str = SUBSAMPLING
    restart: int | str | None = 0
    reducing_gap: float = REDUCING_GAP
    max_pixels: int = MAX_PIXELS
    max_memory: int = MAX_MEMORY
    pad_color: str | None = None
    icc: str | None = None
    background: str | None = None
    check: str | None = None
    truncated: str | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("short", "long", "exact", "crop", "pad", "none"))
        check_choice("filter", self.filter, FILTERS)
        check_choice("format", self.format, ("jpeg", "png", "webp", "npy", "rgb", "keep"))
        check_choice("subsampling", self.subsampling, ("420", "422", "444"))
        check_choice("check", self.check or "decode", ("decode", "end"))
        check_choice("truncated", self.truncated or "strict", ("strict", "accept"))
        if self.size is not None and not _is_whole(self.size, 1, MAX_SIDE):
            raise OptionError(f"resize= in pixels must be a whole number from 1 to {MAX_SIDE}, found {self.size!r}")
        if self.size is None and self.mode != "none":
            raise OptionError(f"mode={self.mode}: expected resize= in pixels beside it, found none")
        if self.size is not None and self.mode == "none":
            raise OptionError(f"mode=none changes no size: expected no resize= beside it, found resize={self.size}")
        if not _is_whole(self.quality, 1, 100):
            raise OptionError(f"quality must be a whole number from 1 to 100, found {self.quality!r}")
        if self.reducing_gap != 0 and not 1 <= self.reducing_gap <= 16:
            raise OptionError(f"reducing_gap must be 0 or 1 to 16, found {self.reducing_gap}")
        if self.restart is not None and self.restart != "auto" and not _is_whole(self.restart, 0, MAX_RESTART):
            raise OptionError(f"restart must be auto, none or 0 to {MAX_RESTART} (MCUs), found {self.restart!r}")
        self._check_colours()

    def _check_colours(self) -> None:
        if self.icc is not None:
            check_choice("icc", self.icc, ("srgb", "keep", "drop"))
        if self.icc == "keep" and self.format == "rgb":
            raise OptionError(f"icc 'keep' needs a format that can hold a profile, found {self.format!r}")
        for text in (self.pad_color, self.background):
            if text not in (None, "drop"):
                levels_of(str(text))
        if self.pad_color == "drop":
            raise OptionError("pad_color must be a colour, found 'drop'")

    def framing(self, width: int, height: int) -> Fitted:
        """Return where the pixels of an upright image of this size go."""
        size = self._resized(width, height)
        window, x, y = size, 0, 0
        if self.mode == "crop":
            side = min(self.size or width, *size)
            window = side, side
            x, y = (round((length - side) / 2) for length in size)  # as torchvision's CenterCrop rounds
        canvas = (self.size, self.size) if self.mode == "pad" and self.size else window
        return Fitted((width, height), size, (x, y, x + window[0], y + window[1]), window, canvas)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
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
        """Return the MCUs per restart interval of a JPEG with `mcus` MCUs per row; 0 = no markers."""
        return self.restart if isinstance(self.restart, int) else restart_interval(mcus)


def restart_interval(mcus: int) -> int:
    """Return the "auto" MCUs per restart interval: the divisor of `mcus` (per row) nearest to 4, the smaller of two.

    With a divisor each row of MCUs begins an interval, so any rectangle of intervals can be a JPEG of its own.
    Shorter intervals let a crop decode less; each costs a marker of two bytes and full DC coefficients.
    """
    return min((n for n in range(1, mcus + 1) if mcus % n == 0), key=lambda n: (abs(n - 4), n))


def mcus_per_row(width: int, components: int, subsampling: str) -> int:
    """Return the MCUs per row of a JPEG that is encoded from an image of this width."""
    return -(-width // (16 if components == 3 and subsampling != "444" else 8))


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def levels_of(text: str) -> tuple[int, int, int]:
    """Parse a colour: `white`, `black`, `gray`, `#rrggbb`, or three levels `r,g,b`. Raises `OptionError`."""
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
