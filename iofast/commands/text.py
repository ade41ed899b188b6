"""What commands print: lines that no name in a file can break, and numbers as people read them."""

from __future__ import annotations

import sys

from iofast.errors import plain

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def say(*lines: object, on_stderr: bool = False) -> None:
    """Print each on a line of its own, with nothing in it that a terminal would obey."""
    for line in lines:
        print(plain(str(line)), file=sys.stderr if on_stderr else sys.stdout)


def size(bytes_: float) -> str:
    """A size with three digits and a decimal unit: 14.2 MB."""
    value, unit = float(bytes_), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """A time with what matters of it: 0.41 s, 12.3 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 image, 1,200 images."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
