"""The one thing that is wanted of an EXIF block. Pillow's reader warns of each oddity in every other tag."""

from __future__ import annotations

import struct

_TAG = 0x0112
_SHORT, _LONG = 3, 4
_PREFIX = b"Exif\0\0"


def orientation(block: bytes) -> int:
    """The orientation in `block` (a TIFF header and directories, `Exif` in front or not); 1 where none makes sense."""
    start = 0
    while block.startswith(_PREFIX, start):
        start += len(_PREFIX)
    block = block[start:]  # once: a block of a megabyte of prefixes would be copied 170,000 times
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    try:
        value = _find(block, order) if order else 1
    except struct.error:  # the block ends inside the directory
        return 1
    return value if 1 <= value <= 8 else 1


def _find(block: bytes, order: str) -> int:
    (at,) = struct.unpack_from(order + "I", block, 4)
    (entries,) = struct.unpack_from(order + "H", block, at)
    for entry in range(at + 2, at + 2 + 12 * entries, 12):
        tag, kind, _count = struct.unpack_from(order + "HHI", block, entry)
        if tag == _TAG and kind in (_SHORT, _LONG):
            return int(struct.unpack_from(order + ("H" if kind == _SHORT else "I"), block, entry + 8)[0])
    return 1
