"""The markers before the scan of a JPEG, for those that can be taken apart: the twin of src/frame.c.

Baseline with 8 bits in one scan, grayscale or YCbCr in 4:4:4, 4:2:2 or 4:2:0, with Huffman tables that are whole.
Whatever is unusual or damaged is none of these: who decodes it judges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from iofast.kernel.contract import MAX_SIDE

FRAMES = (0xC0, 0xC1)  # baseline; extended sequential, which with 8 bits and one scan is the same
_DHT, _SOS, _DQT, _DRI, _JFIF, _ADOBE, _COM = 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xEE, 0xFE


class FrameHeader(NamedTuple):
    """What the markers say. `h` and `v` are samples of luma for one of chroma; `restart` is in MCUs, 0 = no markers."""

    width: int
    height: int
    h: int
    v: int
    restart: int
    scan: int  # offset of the first entropy-coded byte

    @property
    def across(self) -> int:
        """MCUs in a row."""
        return -(-self.width // (8 * self.h))

    @property
    def down(self) -> int:
        """Rows of MCUs."""
        return -(-self.height // (8 * self.v))

    @property
    def spliceable(self) -> bool:
        """Whether its rows are whole restart segments."""
        return self.restart > 0 and self.across % self.restart == 0


class _UnusualError(Exception):
    """Not one of those that can be taken apart."""


@dataclass
class _Seen:
    """What was seen of the markers so far."""

    size: tuple[int, int] = (0, 0)
    ids: list[int] = field(default_factory=list)
    factors: list[tuple[int, int]] = field(default_factory=list)
    quants: list[int] = field(default_factory=list)  # the table that each component wants
    tables: set[int] = field(default_factory=set)  # quantisation tables that are there
    codes: dict[int, bool] = field(default_factory=dict)  # class << 4 | number: whether that Huffman table is whole
    wanted: list[tuple[int, int]] = field(default_factory=list)  # DC and AC table of each component
    restart: int = 0
    jfif: bool = False
    adobe: int = -1


def frame_of(data: bytes) -> FrameHeader | None:
    """What a JPEG's markers say up to its scan; None where it is not one that can be taken apart."""
    try:
        return _frame(data)
    except _UnusualError:
        return None


def _frame(data: bytes) -> FrameHeader:
    _demand(len(data) >= 4 and data[:2] == b"\xff\xd8")
    at, marker, seen = 2, 0, _Seen()
    while marker != _SOS:
        size = int.from_bytes(data[at + 2 : at + 4], "big") if at + 4 <= len(data) else 0
        _demand(size >= 2 and data[at] == 0xFF and at + 2 + size <= len(data))
        marker = data[at + 1]
        _read(marker, data[at + 4 : at + 2 + size], seen)
        at += 2 + size
    h, v = _sampling(seen)
    for quant, (dc, ac) in zip(seen.quants, seen.wanted, strict=True):
        _demand(quant in seen.tables and seen.codes.get(dc, False) and seen.codes.get(0x10 | ac, False))
    _demand(h == 1 or -(-seen.size[0] // h) > 2)  # at tiny widths libjpeg does without fancy upsampling
    return FrameHeader(*seen.size, h, v, seen.restart, at)


def _demand(condition: bool) -> None:
    if not condition:
        raise _UnusualError


def _read(marker: int, body: bytes, seen: _Seen) -> None:
    if marker in FRAMES:
        _size(body, seen)
    elif marker == _DHT:
        _huffman(body, seen)
    elif marker == _DQT:
        while body:  # tables of 16 bits have no place in a baseline file
            _demand(body[0] <= 3 and len(body) >= 65)
            seen.tables.add(body[0])
            body = body[65:]
    elif marker == _SOS:
        _scan(body, seen)
    elif marker == _DRI:
        _demand(len(body) == 2)
        seen.restart = int.from_bytes(body, "big")
    elif marker == _JFIF:
        seen.jfif = seen.jfif or (len(body) >= 14 and body[:5] == b"JFIF\0")
    elif marker == _ADOBE:
        if len(body) >= 12 and body[:5] == b"Adobe":
            seen.adobe = body[11]
    else:
        _demand(0xE1 <= marker <= 0xEF or marker == _COM)


def _size(body: bytes, seen: _Seen) -> None:
    _demand(len(body) >= 6 and body[0] == 8 and body[5] in (1, 3) and len(body) == 6 + 3 * body[5] and not seen.ids)
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    _demand(min(width, height) > 0 and max(width, height) <= MAX_SIDE)
    seen.size = width, height
    for ident, factors, quant in zip(body[6::3], body[7::3], body[8::3], strict=True):
        _demand(quant <= 3)
        seen.ids.append(ident)
        seen.factors.append((factors >> 4, factors & 15))
        seen.quants.append(quant)


def _huffman(body: bytes, seen: _Seen) -> None:
    while body:
        counts = body[1:17]
        count = sum(counts)
        _demand(len(counts) == 16 and not body[0] & ~0x13 and count <= 256 and len(body) >= 17 + count)
        seen.codes[body[0]] = _whole(counts, body[17 : 17 + count], ac=body[0] >= 0x10)
        body = body[17 + count :]


def _whole(counts: bytes, symbols: bytes, *, ac: bool) -> bool:
    """Whether these are codes of a baseline JPEG: values that 8 bits can have, and no code of all ones."""
    code, whole = 0, all((each & 15) <= 10 if ac else each <= 11 for each in symbols)
    for length, count in enumerate(counts, 1):
        code += count
        whole = whole and code < 1 << length
        code <<= 1
    return whole


def _scan(body: bytes, seen: _Seen) -> None:
    """Only one scan of all components, from the first coefficient to the last."""
    count = len(seen.ids)
    _demand(count > 0 and len(body) == 4 + 2 * count and body[0] == count and body[-3:] == b"\0\x3f\0")
    for ident, ident_here, tables in zip(seen.ids, body[1:-3:2], body[2:-3:2], strict=True):
        _demand(ident_here == ident and not tables & ~0x33)
        seen.wanted.append((tables >> 4, tables & 3))


def _sampling(seen: _Seen) -> tuple[int, int]:
    """Samples of luma for one of chroma, across and down."""
    h, v = seen.factors[0]
    if len(seen.ids) == 1:  # a scan of one component knows no sampling factors
        _demand(1 <= h <= 4 and 1 <= v <= 4)
        return 1, 1
    ycc = seen.jfif or seen.adobe == 1 or (seen.adobe < 0 and seen.ids == [1, 2, 3])
    _demand(ycc and 1 <= h <= 2 and 1 <= v <= h and seen.factors[1:] == [(1, 1), (1, 1)])
    return h, v
