"""The header of a JPEG whose scan can be cut into parts: the twin of src/frame.c.

Such JPEGs are baseline with 8 bits in one scan, grayscale or YCbCr in 4:4:4, 4:2:2 or 4:2:0, with valid Huffman tables.
Unusual or damaged files are refused and left to the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from iofast.kernel.contract import MAX_SIDE

FRAMES = (0xC0, 0xC1)  # baseline; extended sequential, equivalent with 8 bits and one scan
_DHT, _SOS, _DQT, _DRI, _JFIF, _ADOBE, _COM = 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xEE, 0xFE


class FrameHeader(NamedTuple):
    """Contents of the header. `h` and `v` are luma samples per chroma sample; `restart` is in MCUs, 0 = no markers."""

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
    """The JPEG cannot be cut into parts."""


@dataclass
class _Markers:
    """Contents of the markers read so far."""

    size: tuple[int, int] = (0, 0)
    ids: list[int] = field(default_factory=list)
    factors: list[tuple[int, int]] = field(default_factory=list)
    quants: list[int] = field(default_factory=list)  # quantisation table of each component
    tables: set[int] = field(default_factory=set)  # quantisation tables defined so far
    codes: dict[int, bool] = field(default_factory=dict)  # class << 4 | number: whether that Huffman table is valid
    scanned: list[tuple[int, int]] = field(default_factory=list)  # DC and AC table of each component
    restart: int = 0
    jfif: bool = False
    adobe: int = -1


def frame_of(data: bytes) -> FrameHeader | None:
    """Return the header of a JPEG, or None if it cannot be cut into parts."""
    try:
        return _frame(data)
    except _UnusualError:
        return None


def _frame(data: bytes) -> FrameHeader:
    _demand(len(data) >= 4 and data[:2] == b"\xff\xd8")
    at, marker, markers = 2, 0, _Markers()
    while marker != _SOS:
        size = int.from_bytes(data[at + 2 : at + 4], "big") if at + 4 <= len(data) else 0
        _demand(size >= 2 and data[at] == 0xFF and at + 2 + size <= len(data))
        marker = data[at + 1]
        _read(marker, data[at + 4 : at + 2 + size], markers)
        at += 2 + size
    h, v = _sampling(markers)
    for quant, (dc, ac) in zip(markers.quants, markers.scanned, strict=True):
        _demand(quant in markers.tables and markers.codes.get(dc, False) and markers.codes.get(0x10 | ac, False))
    _demand(h == 1 or -(-markers.size[0] // h) > 2)  # libjpeg does not interpolate chroma at tiny widths
    return FrameHeader(*markers.size, h, v, markers.restart, at)


def _demand(condition: bool) -> None:
    if not condition:
        raise _UnusualError


def _read(marker: int, body: bytes, markers: _Markers) -> None:
    if marker in FRAMES:
        _size(body, markers)
    elif marker == _DHT:
        _huffman(body, markers)
    elif marker == _DQT:
        while body:  # baseline files have no tables of 16 bits
            _demand(body[0] <= 3 and len(body) >= 65)
            markers.tables.add(body[0])
            body = body[65:]
    elif marker == _SOS:
        _scan(body, markers)
    elif marker == _DRI:
        _demand(len(body) == 2)
        markers.restart = int.from_bytes(body, "big")
    elif marker == _JFIF:
        markers.jfif = markers.jfif or (len(body) >= 14 and body[:5] == b"JFIF\0")
    elif marker == _ADOBE:
        if len(body) >= 12 and body[:5] == b"Adobe":
            markers.adobe = body[11]
    else:
        _demand(0xE1 <= marker <= 0xEF or marker == _COM)


def _size(body: bytes, markers: _Markers) -> None:
    _demand(len(body) >= 6 and body[0] == 8 and body[5] in (1, 3) and len(body) == 6 + 3 * body[5] and not markers.ids)
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    _demand(min(width, height) > 0 and max(width, height) <= MAX_SIDE)
    markers.size = width, height
    for ident, factors, quant in zip(body[6::3], body[7::3], body[8::3], strict=True):
        _demand(quant <= 3)
        markers.ids.append(ident)
        markers.factors.append((factors >> 4, factors & 15))
        markers.quants.append(quant)


def _huffman(body: bytes, markers: _Markers) -> None:
    while body:
        counts = body[1:17]
        count = sum(counts)
        _demand(len(counts) == 16 and not body[0] & ~0x13 and count <= 256 and len(body) >= 17 + count)
        markers.codes[body[0]] = _is_valid(counts, body[17 : 17 + count], ac=body[0] >= 0x10)
        body = body[17 + count :]


def _is_valid(counts: bytes, symbols: bytes, *, ac: bool) -> bool:
    """Whether the codes are valid in a baseline JPEG: values within 8 bits of precision, and no code of all ones."""
    code, valid = 0, all((each & 15) <= 10 if ac else each <= 11 for each in symbols)
    for length, count in enumerate(counts, 1):
        code += count
        valid = valid and code < 1 << length
        code <<= 1
    return valid


def _scan(body: bytes, markers: _Markers) -> None:
    """Require a single scan of all components and coefficients."""
    count = len(markers.ids)
    _demand(count > 0 and len(body) == 4 + 2 * count and body[0] == count and body[-3:] == b"\0\x3f\0")
    for ident, ident_here, tables in zip(markers.ids, body[1:-3:2], body[2:-3:2], strict=True):
        _demand(ident_here == ident and not tables & ~0x33)
        markers.scanned.append((tables >> 4, tables & 3))


def _sampling(markers: _Markers) -> tuple[int, int]:
    """Return luma samples per chroma sample, across and down."""
    h, v = markers.factors[0]
    if len(markers.ids) == 1:  # sampling factors mean nothing in a scan of one component
        _demand(1 <= h <= 4 and 1 <= v <= 4)
        return 1, 1
    ycc = markers.jfif or markers.adobe == 1 or (markers.adobe < 0 and markers.ids == [1, 2, 3])
    _demand(ycc and 1 <= h <= 2 and 1 <= v <= h and markers.factors[1:] == [(1, 1), (1, 1)])
    return h, v
