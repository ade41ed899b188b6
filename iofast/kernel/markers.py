"""The one thing that is wanted of a JPEG's markers and that Pillow skips: the restart interval."""

from __future__ import annotations

_DRI = 0xDD
_SCAN, _END = 0xDA, 0xD9
_BARE = (0x00, 0x01, *range(0xD0, 0xD8))  # markers without a length


def restart_interval(data: bytes) -> int:
    """MCUs per restart interval, 0 = no restart markers: as the JPEG `data` says before its first scan."""
    at, interval = 2, 0
    while at + 4 <= len(data):
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at] != 0xFF or marker == 0xFF:  # garbage between segments, or a fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in (_SCAN, _END) or size < 2:
            break
        else:
            if marker == _DRI and size >= 4 and at + 2 + size <= len(data):
                interval = int.from_bytes(data[at + 4 : at + 6], "big")
            at += 2 + size
    return interval
