"""The size of a JPEG XL, from its first bytes (ISO/IEC 18181): the plugin decodes an image while opening it."""

from collections.abc import Callable

from iofast.kernel.contract import TURNED, Header, Status, StatusError
from iofast.kernel.payload import Payload

CODESTREAM, CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"

_SIDES = ((9, 1), (13, 1), (18, 1), (30, 1))  # bits and offset, by the selector of a side
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))  # width to height
_MOST_BOXES = 64
_HEAD = 64  # bytes of the codestream; size and orientation are within 12


def header(data: Payload) -> Header:
    """Read the header: the upright size, and the orientation that the plugin does not apply.

    The plugin gives an image upright, unless the file is a JPEG that was packed without loss: that one it restores.
    Raises `StatusError`.
    """
    codestream, is_jpeg = _codestream(data)
    value, left = int.from_bytes(codestream, "little"), 8 * len(codestream)

    def take(count: int) -> int:
        """The next number of `count` bits; the lowest of each byte come first."""
        nonlocal value, left
        if count > left:
            raise StatusError(Status.TRUNCATED, "the header of a JPEG XL")
        number, value, left = value & ((1 << count) - 1), value >> count, left - count
        return number

    if take(16) != 0x0AFF:
        raise StatusError(Status.CORRUPT, "a JPEG XL without a codestream")
    width, height = _size(take)
    orientation = 1
    if not take(1) and take(1):  # not all by default, extra fields
        orientation = 1 + take(3)
    size = (height, width) if orientation in TURNED else (width, height)
    return Header("jxl", *size, orientation if is_jpeg else 1, 3, False)


def _size(take: Callable[[int], int]) -> tuple[int, int]:
    is_small = take(1)

    def side() -> int:
        if is_small:
            return 8 * (1 + take(5))
        count, offset = _SIDES[take(2)]
        return take(count) + offset

    height = side()
    if not (ratio := take(3)):
        return side(), height
    over, under = _RATIOS[ratio - 1]
    return height * over // under, height


def _codestream(data: Payload) -> tuple[bytes, bool]:
    """The beginning of the codestream, and whether a JPEG can be restored from the file."""
    if data[:2] == CODESTREAM:
        return data[:_HEAD], False
    at, found, is_jpeg = 0, b"", False
    for _ in range(_MOST_BOXES):
        head = data[at : at + 16]
        if len(head) < 8:
            break
        size, kind, skip = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, skip = int.from_bytes(head[8:16], "big"), 16
        size = size or len(data) - at  # 0: up to the end
        if size < skip:
            raise StatusError(Status.CORRUPT, f"a box of {size} bytes in a JPEG XL")
        is_jpeg |= kind == b"jbrd"
        if kind in (b"jxlc", b"jxlp") and not found:
            start = at + skip + (4 if kind == b"jxlp" else 0)
            found = data[start : min(start + _HEAD, at + size)]
        at += size
    return found, is_jpeg
