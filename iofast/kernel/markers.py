"""What is wanted of a JPEG's markers without decoding it: the restart interval, the colour profile, the end."""

from __future__ import annotations

from collections.abc import Iterator

_DRI, _APP2 = 0xDD, 0xE2
_SCAN, _END = 0xDA, 0xD9
_BARE = (0x00, 0x01, *range(0xD0, 0xD8))  # markers without a length


_PROFILE = b"ICC_PROFILE\0"
_PART = 65_519  # bytes of a profile in one segment


def restart_interval(data: bytes) -> int:
    """MCUs per restart interval, 0 = no restart markers: as the JPEG `data` says before its first scan."""
    interval = 0
    for marker, body, _ in _segments(data):
        if marker == _DRI and len(body) >= 2:
            interval = int.from_bytes(body[:2], "big")
    return interval


def profile(data: bytes) -> bytes:
    """The colour profile of a JPEG, put together from its segments; empty where there is none, or a part is missing."""
    parts = sorted(bytes(body) for marker, body, _ in _segments(data) if marker == _APP2 and body[:12] == _PROFILE)
    if not parts or len(parts[0]) < 14 or len(parts) != parts[0][13]:
        return b""
    return b"".join(part[14:] for part in parts)


def with_profile(data: bytes, profile: bytes) -> bytes:
    """A JPEG that has no profile with this one, behind its first segment (JFIF). Raises `ValueError` above 16 MB."""
    parts = [profile[at : at + _PART] for at in range(0, len(profile), _PART)]
    at = 4 + int.from_bytes(data[4:6], "big")
    head = ((len(part) + 16).to_bytes(2, "big") + _PROFILE + bytes((n, len(parts))) for n, part in enumerate(parts, 1))
    return b"".join(
        (data[:at], *(b"\xff\xe2" + each + part for each, part in zip(head, parts, strict=True)), data[at:])
    )


def has_end(data: bytes) -> bool:
    """Whether a JPEG has an end-of-image marker: behind its header, for a thumbnail in it has one too."""
    header = max((end for _, _, end in _segments(data)), default=2)
    return data.rfind(bytes((0xFF, _END)), header) >= 0


def _segments(data: bytes) -> Iterator[tuple[int, memoryview, int]]:
    """Marker and body of each whole segment before the first scan, and where it ends."""
    view, at = memoryview(data), 2
    while at + 4 <= len(data):
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at] != 0xFF or marker == 0xFF:  # garbage between segments, or a fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in (_SCAN, _END) or size < 2:
            return
        else:
            if at + 2 + size <= len(data):
                yield marker, view[at + 4 : at + 2 + size], at + 2 + size
            at += 2 + size
