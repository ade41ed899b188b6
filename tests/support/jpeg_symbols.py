"""A parser of baseline JPEGs: coefficients, Huffman symbols, restart intervals. Slow, and without a library.

Tests check the encoder with it: two files of equal coefficients have equal pixels in every decoder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_LONGEST = 16  # bits of a Huffman code
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")


@dataclass(slots=True)
class Table:
    """A Huffman table: for any 16 bits, the length of the code at their start (0 = none) and its symbol."""

    lengths: list[int]
    values: list[int]
    counts: list[int]  # how often each symbol occurs


@dataclass(slots=True)
class Component:
    """One colour component. `coefficients` is int16 (rows of blocks, blocks in a row, 64), in zigzag order.

    Blocks beyond the image's edge, which fill up MCUs, are left out: their content is up to the encoder.
    """

    identifier: int
    across: int
    down: int
    quantisation: int
    coefficients: NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 0, 64), np.int16))
    tables: tuple[int, int] = (0, 0)  # of DC and AC


@dataclass(slots=True)
class Baseline:
    """A sequential JPEG of one scan. `tables[kind, number]`: kind 0 is DC, 1 is AC."""

    width: int = 0
    height: int = 0
    interval: int = 0  # MCUs, 0 = no restart markers
    components: list[Component] = field(default_factory=list)
    tables: dict[tuple[int, int], Table] = field(default_factory=dict)
    quantisation: dict[int, bytes] = field(default_factory=dict)
    segments: list[tuple[int, bytes]] = field(default_factory=list)  # marker and body of each, up to the scan
    markers: int = 0  # restart markers found in the scan

    @property
    def mcus(self) -> tuple[int, int]:
        """MCUs across and down."""
        single = len(self.components) == 1
        across = 8 * (1 if single else max(part.across for part in self.components))
        down = 8 * (1 if single else max(part.down for part in self.components))
        return -(-self.width // across), -(-self.height // down)


def read(data: bytes) -> Baseline:
    """Parse `data`. Raises `ValueError` for anything but a whole interleaved baseline JPEG."""
    image, at = Baseline(), 2
    while (marker := data[at + 1]) != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + size]
        image.segments.append((marker, body))
        if marker in (0xC0, 0xC1):
            _frame(image, body)
        elif 0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            raise ValueError(f"not a baseline JPEG: its frame has the marker {marker:#x}")
        elif marker == 0xC4:
            image.tables.update(_huffman(body))
        elif marker == 0xDB:
            image.quantisation.update(_quantisation(body))
        elif marker == 0xDD:
            image.interval = int.from_bytes(body, "big")
        at += 2 + size
    size = int.from_bytes(data[at + 2 : at + 4], "big")
    _scan_header(image, data[at + 4 : at + 2 + size])
    end = data.rindex(b"\xff\xd9")
    pieces = _RESTART.split(data[at + 2 + size : end])
    image.markers = len(pieces) - 1
    _decode(image, pieces)
    return image


def _frame(image: Baseline, body: bytes) -> None:
    image.height, image.width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    for at in range(6, 6 + 3 * body[5], 3):
        image.components.append(Component(body[at], body[at + 1] >> 4, body[at + 1] & 15, body[at + 2]))


def _scan_header(image: Baseline, body: bytes) -> None:
    if body[0] != len(image.components):
        raise ValueError("the components are not interleaved")
    for part, at in zip(image.components, range(1, 1 + 2 * body[0], 2), strict=True):
        part.tables = body[at + 1] >> 4, body[at + 1] & 15


def _quantisation(body: bytes) -> dict[int, bytes]:
    tables, at = {}, 0
    while at < len(body):
        size = 128 if body[at] >> 4 else 64
        tables[body[at] & 15] = body[at + 1 : at + 1 + size]
        at += 1 + size
    return tables


def _huffman(body: bytes) -> dict[tuple[int, int], Table]:
    tables, at = {}, 0
    while at < len(body):
        counts = body[at + 1 : at + 17]
        symbols = body[at + 17 : at + 17 + sum(counts)]
        lengths, values, place, number = [0] * 65_536, [0] * 65_536, 0, 0
        for length, count in enumerate(counts, 1):
            span = 1 << (_LONGEST - length)
            for _ in range(count):
                lengths[place : place + span] = [length] * span
                values[place : place + span] = [symbols[number]] * span
                place, number = place + span, number + 1
        if place > 65_536 - 1:
            raise ValueError("a Huffman table has a code of nothing but ones, or too many codes")
        tables[body[at] >> 4, body[at] & 15] = Table(lengths, values, [0] * 256)
        at += 17 + len(symbols)
    return tables


def _decode(image: Baseline, pieces: list[bytes]) -> None:
    across, down = image.mcus
    total = across * down
    interval = image.interval or total
    if len(pieces) != -(-total // interval):
        raise ValueError(f"{total} MCUs in intervals of {interval} do not make {len(pieces)} segments")
    single = len(image.components) == 1
    order = [n for n, part in enumerate(image.components) for _ in range(1 if single else part.across * part.down)]
    blocks: list[list[list[int]]] = [[] for _ in image.components]
    for number, piece in enumerate(pieces):
        bits = _Bits(piece.replace(b"\xff\x00", b"\xff"))
        previous = [0] * len(image.components)
        for _ in range(min(interval, total - number * interval)):
            for n in order:
                dc, ac = image.components[n].tables
                block = _block(bits, image.tables[0, dc], image.tables[1, ac])
                block[0] = previous[n] = previous[n] + block[0]
                blocks[n].append(block)
        if not 0 <= 8 * len(bits.data) - bits.at < 8:
            raise ValueError(f"segment {number} has {8 * len(bits.data) - bits.at} bits too many")
    widest, tallest = (max(getattr(part, name) for part in image.components) for name in ("across", "down"))
    for part, values in zip(image.components, blocks, strict=True):
        h, v = (1, 1) if single else (part.across, part.down)
        grid = np.array(values, np.int16).reshape(down, across, v, h, 64).transpose(0, 2, 1, 3, 4)
        columns, rows = -(-image.width * part.across // (8 * widest)), -(-image.height * part.down // (8 * tallest))
        part.coefficients = grid.reshape(down * v, across * h, 64)[:rows, :columns]


class _Bits:
    """A place in a run of bits."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def peek(self) -> int:
        """The next 16 bits; ones after the end, the standard's padding."""
        first = self.at >> 3
        window = (self.data[first : first + 3] + b"\xff\xff\xff")[:3]
        return int.from_bytes(window, "big") >> (8 - (self.at & 7)) & 0xFFFF

    def symbol(self, table: Table) -> int:
        """Read and count the next symbol."""
        window = self.peek()
        length, value = table.lengths[window], table.values[window]
        if length == 0:
            raise ValueError("bits that are no code")
        self.at += length
        table.counts[value] += 1
        return value

    def signed(self, size: int) -> int:
        """Read a number of `size` bits in JPEG's coding."""
        value = self.peek() >> (_LONGEST - size)
        self.at += size
        return value if size == 0 or value >> (size - 1) else value - (1 << size) + 1


def _block(bits: _Bits, dc: Table, ac: Table) -> list[int]:
    block, k = [0] * 64, 1
    block[0] = bits.signed(bits.symbol(dc))
    while k < 64:
        run, size = divmod(bits.symbol(ac), 16)
        if size == 0 and run != 15:
            break
        k += run
        block[k] = bits.signed(size)
        k += 1
    return block
