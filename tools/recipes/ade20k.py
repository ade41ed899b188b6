"""A tree of images and masks, as ADE20K's scene parsing challenge has it.

    SOURCE/images/training/a.jpg, images/validation/b.jpg
    SOURCE/annotations/training/a.png, annotations/validation/b.png            (0 = nothing, then the classes)
    SOURCE/objectInfo150.txt, sceneCategories.txt                              (either may be missing)

Fields: the image, `seg.png` (its mask), and `scene.txt` where sceneCategories.txt names it. The classes of the mask,
from the last column of objectInfo150.txt, stand in the manifest's recipe as `mask_classes`. Without --resize images and
masks stay as they are, byte for byte; with it masks follow their images by the nearest pixel.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from iofast.errors import SourceError
from iofast.packing.report import PackReport
from tools.recipes.listed import command, images_in, pack_listed

SPLITS = {"train": ("training", "train"), "val": ("validation", "val"), "test": ("testing", "test")}


def main(argv: list[str] | None = None) -> int:
    return command(__doc__, pack_masks, argv)


def pack_masks(source: Path, target: Path, **options: Any) -> PackReport:
    """Pack train, val, test in this order. Raises `SourceError` for an image without mask, or a mask without image."""
    scenes, notes = _scenes(source / "sceneCategories.txt"), {"mask_classes": _names(source / "objectInfo150.txt")}
    folders = [
        (split, name)
        for split, names in SPLITS.items()
        for name in names
        if (source / "images" / name).is_dir() and (source / "annotations" / name).is_dir()
    ]
    if not folders:
        raise SourceError(f"{source} has no images/training with annotations/training, nor validation or test")
    rows = []
    for split, name in folders:
        images, masks = source / "images" / name, source / "annotations" / name
        named = {path.relative_to(images).with_suffix("").as_posix(): path for path in images_in(images)}
        there = {path.relative_to(masks).with_suffix("").as_posix(): path for path in images_in(masks)}
        if odd := sorted(set(named) ^ set(there)):
            raise SourceError(f"{images} and {masks} do not match: only one has {odd[0]}")
        for key, path in named.items():
            files = {"path": path.relative_to(source).as_posix(), "seg.png": there[key].relative_to(source).as_posix()}
            scene = {"scene.txt": scenes[path.stem]} if path.stem in scenes else {}
            rows.append({**files, "split": split, **scene})
    return pack_listed(rows, source, target, mask_column=["seg.png"], notes=notes, **options)


def _scenes(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines() if file.is_file() else []
    return dict(line.split(maxsplit=1) for line in lines if line.strip())  # type: ignore[arg-type]


def _names(file: Path) -> list[str] | None:
    """The last column of a table with a header; its separator is a tab."""
    if not file.is_file():
        return None
    return [line.split("\t")[-1].strip() for line in file.read_text().splitlines()[1:] if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
