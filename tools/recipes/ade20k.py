"""A tree of images and masks, as ADE20K's scene parsing challenge has it.

    SOURCE/images/training/a.jpg, images/validation/b.jpg
    SOURCE/annotations/training/a.png, annotations/validation/b.png            (0 = nothing, then the classes)
    SOURCE/objectInfo150.txt, sceneCategories.txt                              (either may be missing)

Fields: the image, `seg.png` (the mask's file as it is), and `scene.txt` where sceneCategories.txt names it. The classes
of the mask, from the last column of objectInfo150.txt, stand in the manifest's recipe as `mask_classes`. Nothing is
resized.
"""

from __future__ import annotations

import sys
from pathlib import Path

from iofast import open_writer
from iofast.errors import SourceError
from tools.recipes.listed import image_record, images_in, parser

SPLITS = {"train": ("training", "train"), "val": ("validation", "val"), "test": ("testing", "test")}


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__, pixels=False).parse_args(argv)
    pack_masks(args.source, args.target, overwrite=args.overwrite)
    return 0


def pack_masks(source: Path, target: Path, *, overwrite: bool = False) -> None:
    """Splits in the order train, val, test. Raises `SourceError` where an image has no mask, or a mask no image."""
    scenes, recipe = _scenes(source / "sceneCategories.txt"), {"mask_classes": _names(source / "objectInfo150.txt")}
    folders = [
        (split, name)
        for split, names in SPLITS.items()
        for name in names
        if (source / "images" / name).is_dir() and (source / "annotations" / name).is_dir()
    ]
    if not folders:
        raise SourceError(f"{source} has no images/training with annotations/training, nor validation or test")
    with open_writer(target, recipe=recipe, overwrite=overwrite) as writer:
        for split, name in folders:
            images, masks = source / "images" / name, source / "annotations" / name
            paths = images_in(images)
            named = {path.relative_to(images).with_suffix("").as_posix(): path for path in paths}
            there = {path.relative_to(masks).with_suffix("").as_posix(): path for path in images_in(masks)}
            if odd := sorted(set(named) ^ set(there)):
                raise SourceError(f"{images} and {masks} do not fit together: only one has {odd[0]}")
            for key, path in named.items():
                fields = {**image_record(path.read_bytes()), "seg.png": there[key].read_bytes()}
                scene = {"scene.txt": scenes[path.stem]} if path.stem in scenes else {}
                said = {"path": path.relative_to(source).as_posix()}
                writer.write({**fields, **scene, "json": said}, split)


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
