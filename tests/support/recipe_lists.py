"""The recipes of docs/transforms.md, as a reader copies them."""

import re
from typing import Any

from places import ROOT

from iofast import transforms as T

_BEGIN = "flip, imagenet = "  # of the block


def text() -> str:
    """The block of Python with the recipes."""
    page = (ROOT / "docs" / "transforms.md").read_text()
    (block,) = [each for each in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if each.startswith(_BEGIN)]
    return block


def listed(program: str) -> dict[str, Any]:
    """Name -> list of transforms, or views."""
    names: dict[str, Any] = {"T": T}
    exec(program, names)
    whole = T.RandomResizedCrop, T.Resize, T.RandomResize, T.RandomShortestSize, T.ScaleJitter, T.RandomCrop
    return {
        name: own
        for name, own in names.items()
        if isinstance(own, T.Views) or (isinstance(own, list) and isinstance(own[0], whole))
    }
