"""What recipes share: rows that name images become a manifest for `pack`, and encoded images get the right field."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iofast import pack
from iofast.errors import SourceError
from iofast.kernel import read_header
from iofast.packing.report import Report

IMAGES = (".jpg", ".jpeg", ".png", ".webp")
_FIELDS = {"jpeg": "jpg", "png": "png", "webp": "webp"}
Row = Mapping[str, Any]


def pack_listed(
    rows: Iterable[Row], source: Path, target: Path, classes: Sequence[str] | None = None, **options: Any
) -> Report:
    """`pack` the images that rows name by `path`, relative to `source`; see docs/pack.md for `label`, `split`, others.

    The values of `mask_column` and `file_column`, which are lists here, are relative to `source` too. With `classes`
    the labels are numbers of these names. The manifest stands in a temporary folder where `source` is called `data`, so
    that what is packed does not depend on where anything lies, and a killed run can be resumed.
    """
    with tempfile.TemporaryDirectory(prefix="iofast-recipe-") as folder:
        root = Path(folder)
        (root / "data").symlink_to(source.resolve(), target_is_directory=True)
        files = ("path", *options.get("mask_column", ()), *options.get("file_column", ()))
        with (root / "list.jsonl").open("w") as file:
            for row in rows:
                file.write(json.dumps({**row, **{name: f"data/{row[name]}" for name in files if name in row}}) + "\n")
        if classes is not None:
            (root / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
            options["class_order"] = "file"
        return pack(root / "list.jsonl", target, **options)


def parser(description: str | None, *, pixels: bool) -> argparse.ArgumentParser:
    """SOURCE and DST, and for recipes that go through `pack` what shapes its pixels."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("source", type=Path, metavar="SOURCE")
    made.add_argument("target", type=Path, metavar="DST", help="out.lmdb, out.tar or out.tfrecord")
    made.add_argument("--overwrite", action="store_true")
    if pixels:
        made.add_argument("--resize", type=int, metavar="N", help="short side in pixels; without it nothing is lost")
        made.add_argument("--quality", type=int, default=90)
        made.add_argument("--shuffle", type=int, metavar="SEED")
        made.add_argument("--workers", type=int, metavar="N")
    return made


def shape(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `pack` among a recipe's arguments."""
    return {name: getattr(args, name) for name in ("overwrite", "resize", "quality", "shuffle", "workers")}


def images_in(folder: Path) -> list[Path]:
    """The images below a folder, sorted. Raises `SourceError` where there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES)
    if not found:
        raise SourceError(f"no images in {folder}: looked for {' '.join(IMAGES)}")
    return found


def image_record(data: bytes) -> dict[str, bytes]:
    """An encoded image under the field of its real format, whatever its file is called."""
    found = read_header(data).format
    if found not in _FIELDS:
        raise SourceError(f"a {found} image is not stored as it is: convert it to PNG")
    return {_FIELDS[found]: data}
