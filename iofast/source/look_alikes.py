"""Names that differ only in case, in Unicode's composition, or in spaces around them."""

from __future__ import annotations

import itertools
import os
import unicodedata

from iofast.source.listing import printable

_LOOKS = 100_000  # names of a folder that are compared with a missing one


def alike(name: str) -> str:
    """Return the form that names have in common if they look alike."""
    return unicodedata.normalize("NFC", name).strip().casefold()


def instead_of(path: bytes) -> str:
    """`; found a/B.jpg` for a missing file, if a file looks alike, or differs in slashes or in its suffix; else ""."""
    place = ""
    for part in os.fsdecode(path).replace("\\", "/").split("/"):
        if part and not os.path.lexists(f"{place}{part}"):
            part = _like(part, place)
            if not part:
                return ""
        place += f"{part}/"
    found = place.rstrip("/")
    return f"; found {printable(found)!a}" if os.path.isfile(found) else ""


def _like(name: str, folder: str) -> str:
    """A name in the folder that looks like `name`, or else one that does so without its suffix; "" if there is none."""
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, _LOOKS))
    except OSError:
        return ""
    same = [each for each in names if alike(each) == alike(name)]
    stems = {alike(name), alike(os.path.splitext(name)[0])}
    return next(iter(same or [each for each in names if alike(os.path.splitext(each)[0]) in stems]), "")
