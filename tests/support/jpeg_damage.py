"""Split a JPEG into markers and restart segments, damage it in known places, and join it again."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

Rng = np.random.Generator

DQT, SOF, DHT, SOS, DRI, EOI = 0xDB, 0xC0, 0xC4, 0xDA, 0xDD, 0xD9


@dataclass
class Parts:
    """`header`: marker and body of each segment up to the scan. `scan`: restart segments as stored in the file.

    `ends`: the bytes of the marker after each of them. `tail`: everything after the last marker.
    """

    header: list[tuple[int, bytes]]
    scan: list[bytes]
    ends: list[bytes]
    tail: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> Parts:
        header, at = [], 2
        while not header or header[-1][0] != SOS:
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            header.append((data[at + 1], data[at + 4 : end]))
            at = end
        pieces = re.split(rb"(\xff[\xd0-\xd9])", data[at:], flags=re.DOTALL)
        return cls(header, pieces[:-1:2], pieces[1::2], pieces[-1])

    def join(self) -> bytes:
        header = b"".join(bytes((0xFF, m)) + (len(body) + 2).to_bytes(2, "big") + body for m, body in self.header)
        scan = b"".join(a + b for a, b in zip(self.scan, self.ends, strict=True))
        return b"\xff\xd8" + header + scan + self.tail

    def number(self) -> None:
        """Renumber the restart markers."""
        self.ends = [*(bytes((0xFF, 0xD0 + i % 8)) for i in range(len(self.scan) - 1)), b"\xff\xd9"]

    def edit(self, marker: int, at: int | None, body: bytes, rng: Rng) -> None:
        """Write these bytes at a place, any if None, of the body of one segment of this kind, if there is one."""
        places = [i for i, (kind, own) in enumerate(self.header) if kind == marker and own]
        for place in rng.permutation(places)[:1]:
            own = self.header[place][1]
            start = int(rng.integers(len(own))) if at is None else at
            self.header[place] = marker, own[:start] + body + own[start + len(body) :]


def stuffed(data: bytes) -> bytes:
    return data.replace(b"\xff", b"\xff\0")


def _any(rng: Rng, parts: Parts) -> int:
    return int(rng.integers(len(parts.scan)))


def flip_bits(parts: Parts, rng: Rng) -> None:
    i = _any(rng, parts)
    segment = bytearray(parts.scan[i])
    for _ in range(rng.integers(1, 4) if segment else 0):
        segment[rng.integers(len(segment))] ^= 1 << rng.integers(8)
    parts.scan[i] = bytes(segment)


def random_codes(parts: Parts, rng: Rng) -> None:
    """Random bytes: codes that do not exist, runs past the end of a block, blocks of the longest codes."""
    i = _any(rng, parts)
    parts.scan[i] = stuffed(rng.bytes(max(1, int(len(parts.scan[i]) * rng.uniform(0.5, 3)))))


def other_bytes(parts: Parts, rng: Rng) -> None:
    """Some bytes lost, up to all that follow, or some more."""
    i = _any(rng, parts)
    plain = parts.scan[i].replace(b"\xff\0", b"\xff")
    at, lost = rng.integers(0, len(plain) + 1), rng.choice((0, rng.integers(1, 9), len(plain)))
    more = b"" if lost else rng.bytes(rng.integers(1, 9))
    parts.scan[i] = stuffed(plain[:at] + more + plain[at + lost :])


def unstuff(parts: Parts, rng: Rng) -> None:
    """Change the zero after an 0xFF byte: a marker in the middle of a segment."""
    places = [i for i, segment in enumerate(parts.scan) if b"\xff\0" in segment]
    code = int(rng.choice((0x01, 0x02, 0xC0, 0xC4, 0xD0, 0xD5, 0xD9, 0xDA, 0xDC, 0xFF)))
    for i in rng.permutation(places)[:1]:
        parts.scan[i] = parts.scan[i].replace(b"\xff\0", bytes((0xFF, code)), 1)


def garbage_before_marker(parts: Parts, rng: Rng) -> None:
    """Harmless: a decoder resumes at the marker."""
    parts.scan[_any(rng, parts)] += bytes(rng.integers(0, 255, rng.integers(1, 40), np.uint8))


def fill_bytes(parts: Parts, rng: Rng) -> None:
    """Legal: any number of 0xFF before a marker."""
    i = _any(rng, parts)
    parts.ends[i] = b"\xff" * int(rng.integers(1, 5)) + parts.ends[i]


def swap(parts: Parts, rng: Rng) -> None:
    i, j = _any(rng, parts), _any(rng, parts)
    parts.scan[i], parts.scan[j] = parts.scan[j], parts.scan[i]
    if rng.random() < 0.5:
        parts.ends[i], parts.ends[j] = parts.ends[j], parts.ends[i]


def duplicate(parts: Parts, rng: Rng) -> None:
    i = _any(rng, parts)
    parts.scan.insert(i, parts.scan[i])
    parts.ends.insert(i, parts.ends[i])
    if rng.random() < 0.5:
        parts.number()


def delete(parts: Parts, rng: Rng) -> None:
    i, n = _any(rng, parts), int(rng.choice((1, 1, 2, 8)))  # after eight the numbers match again
    del parts.scan[i : i + n], parts.ends[i : i + n]
    if rng.random() < 0.5 and parts.scan:
        parts.number()


def other_marker(parts: Parts, rng: Rng) -> None:
    parts.ends[_any(rng, parts)] = bytes((0xFF, int(rng.choice((0xD0 + rng.integers(8), rng.integers(1, 256))))))


def lose_marker(parts: Parts, rng: Rng) -> None:
    i = _any(rng, parts)
    parts.ends[i] = b""


def cut(parts: Parts, rng: Rng) -> None:
    i = _any(rng, parts)
    n = int(rng.integers(0, len(parts.scan[i]) + 1))
    parts.scan[i], parts.ends[i], parts.tail = parts.scan[i][:n], b"", b""
    del parts.scan[i + 1 :], parts.ends[i + 1 :]


def lose_end(parts: Parts, rng: Rng) -> None:
    parts.ends[-1] = parts.ends[-1][: rng.integers(0, 2)]
    parts.tail = b""


def bytes_behind(parts: Parts, rng: Rng) -> None:
    parts.tail += rng.choice((b"\0" * 9, b"\xff\xd9", b"\xff\xd8\xff\xe0\0\x10JFIF\0", b"\xff", rng.bytes(70)))


def other_interval(parts: Parts, rng: Rng) -> None:
    if rng.random() < 0.3:
        parts.header.insert(int(rng.integers(len(parts.header))), (DRI, b"\0\4"))
    parts.edit(DRI, 0, int(rng.choice((0, 1, 2, 3, 5, 8, 255, 65_535))).to_bytes(2, "big"), rng)


def other_size(parts: Parts, rng: Rng) -> None:
    at, size = int(rng.choice((1, 3))), int(rng.choice((0, 1, 5, 8, 17, 64, 255, 300, 3000, 65_500, 65_501, 65_535)))
    parts.edit(SOF, at, size.to_bytes(2, "big"), rng)


def other_header(parts: Parts, rng: Rng) -> None:
    """Any byte of any header segment: component numbers, sampling, table numbers, spectral selection, quantisers."""
    value = int(rng.choice((0, 1, 2, 3, 0x11, 0x12, 0x21, 0x22, 0x41, 0xFF, rng.integers(256))))
    parts.edit(int(rng.choice((DQT, SOF, SOF, SOS, SOS, 0xE0))), None, bytes([value]), rng)


def shuffle_header(parts: Parts, rng: Rng) -> None:
    """A header segment lost, doubled, moved, or given another marker."""
    i, kind = int(rng.integers(len(parts.header))), rng.integers(4)
    marker, body = parts.header[i]
    if kind != 1:
        del parts.header[i]
    if kind in (1, 2):
        parts.header.insert(int(rng.integers(len(parts.header) + 1)), (marker, body))
    elif kind == 3:
        others = (0xC1, 0xC2, 0xC8, 0xCC, 0xDC, 0xE0, 0xEE, 0xFE, rng.integers(1, 256))
        parts.header.insert(i, (int(rng.choice(others)), body))


def other_codes(parts: Parts, rng: Rng) -> None:
    """A Huffman table with other lengths and symbols, valid or not, with illegal categories too."""
    kind = rng.integers(3)
    if kind == 0:  # one length or symbol for another
        parts.edit(DHT, None, rng.bytes(1), rng)
    elif kind == 1:  # the same number of codes in other lengths
        a, b = (int(v) for v in rng.integers(1, 17, 2))
        for place in [i for i, (kind, _) in enumerate(parts.header) if kind == DHT][: int(rng.integers(1, 4))]:
            body = bytearray(parts.header[place][1])
            body[a], body[b] = body[b], body[a]
            parts.header[place] = DHT, bytes(body)
    else:  # codes of every length, the last one all ones if `full`
        full = int(rng.integers(2))
        parts.edit(DHT, 1, bytes([1] * 15 + [1 + full]) + rng.bytes(16 + full), rng)


SCAN = (
    *(flip_bits, flip_bits, flip_bits, random_codes, random_codes, other_bytes, other_bytes, unstuff, swap, duplicate),
    *(delete, other_marker, lose_marker, cut, lose_end, bytes_behind, garbage_before_marker, fill_bytes),
)
HEADER = (other_interval, other_size, other_header, shuffle_header, other_codes, other_codes)


def damage(data: bytes, rng: Rng) -> bytes:
    """One to three damages of any kind."""
    parts = Parts.of(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if parts.scan and parts.header:
            kinds = SCAN if rng.random() < 0.6 else HEADER
            kinds[rng.integers(len(kinds))](parts, rng)
    return parts.join()
