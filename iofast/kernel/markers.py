"""Segments of a JPEG that are read without decoding it: the colour profile, the end."""

from collections.abc import Iterator

END = b"\xff\xd9"  # the end-of-image marker

_APP2, _SCAN = 0xE2, 0xDA
_BARE = (0x00, 0x01, *range(0xD0, 0xD8))  # markers without a length
_PROFILE = b"ICC_PROFILE\0"
_PART = 65_519  # bytes of a profile in one segment


def profile(data: bytes) -> bytes:
    """Return the colour profile of a JPEG, joined from its segments; b"" if it has none or a segment is missing."""
    bodies = (data[start:end] for marker, start, end in _segments(data) if marker == _APP2)
    parts = sorted(body for body in bodies if body[:12] == _PROFILE)
    if not parts or len(parts[0]) < 14 or len(parts) != parts[0][13]:
        return b""
    return b"".join(part[14:] for part in parts)


def with_profile(data: bytes, profile: bytes) -> bytes:
    """Insert a profile behind the first segment (JFIF) of a JPEG without one. Raises `ValueError` above 16 MB."""
    parts = [profile[at : at + _PART] for at in range(0, len(profile), _PART)]
    at = 4 + int.from_bytes(data[4:6], "big")
    segments = [
        b"\xff\xe2" + (len(part) + 16).to_bytes(2, "big") + _PROFILE + bytes((number, len(parts))) + part
        for number, part in enumerate(parts, 1)
    ]
    return b"".join((data[:at], *segments, data[at:]))


def has_end(data: bytes) -> bool:
    """Whether a JPEG has an end-of-image marker behind its header. Thumbnails in the header have their own."""
    return data.rfind(END, header_size(data)) >= 0


def header_size(data: bytes) -> int:
    """Bytes of a JPEG up to the end of the last whole segment before the first scan."""
    return max((end for _, _, end in _segments(data)), default=2)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker of each whole segment before the first scan, and where its body begins and ends."""
    at = 2
    while at + 4 <= len(data):
        marker, size = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if data[at] != 0xFF or marker == 0xFF:  # garbage between segments, or a fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in (_SCAN, END[1]) or size < 2:
            return
        else:
            if at + 2 + size <= len(data):
                yield marker, at + 4, at + 2 + size
            at += 2 + size
