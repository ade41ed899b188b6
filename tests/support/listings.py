"""Folders of empty files, and what a listing has of them."""

import os
from collections.abc import Iterable
from pathlib import Path

from iofast.source.listing import Listing


def make(root: Path, paths: Iterable[str | bytes]) -> Path:
    for path in paths:
        file = root / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


def paths(source: Listing) -> list[str]:
    return [os.fsdecode(source.path(index)) for index in range(len(source))]


def numbers(source: Listing) -> list[int]:
    return [source.label(index) for index in range(len(source))]
