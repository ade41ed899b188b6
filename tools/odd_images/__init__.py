"""Awkward and broken images, each with the expected result of packing: a test packs them, a page in docs lists them.

python -m tools.odd_images FOLDER           writes the files
python -m tools.odd_images --table FILE     writes docs/odd-images.md
"""

import os
from functools import lru_cache
from pathlib import Path

from tools.odd_images import broken, jpegs, other_formats, profiles
from tools.odd_images.scene import Odd

GROUPS = {
    "Orientation": jpegs.orientations,
    "Colour spaces of JPEGs": jpegs.colour_spaces,
    "Colour profiles": profiles.profiled,
    "Codings": jpegs.codings,
    "Sizes": jpegs.sizes,
    "Depth, palette, transparency": other_formats.depths,
    "Other formats": other_formats.formats,
    "Names": other_formats.names,
    "Damaged JPEGs": broken.damaged,
    "Damage in other formats": broken.damaged_others,
    "Hostile headers": broken.hostile,
    "No images": broken.strangers,
}


@lru_cache(1)
def groups() -> dict[str, tuple[Odd, ...]]:
    """Every odd image, by kind."""
    return {name: tuple(make()) for name, make in GROUPS.items()}


def every() -> tuple[Odd, ...]:
    """All of them."""
    return tuple(odd for group in groups().values() for odd in group)


def write(folder: Path) -> None:
    """Create `folder` and the files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for odd in every():
        path = os.path.join(os.fsencode(folder), odd.name)
        if odd.link == "pipe":
            os.mkfifo(path)
        elif odd.link:
            os.symlink(b"nowhere", path)
        else:
            with open(path, "wb") as file:
                file.write(odd.data)
