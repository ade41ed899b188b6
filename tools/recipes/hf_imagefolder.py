"""Hugging Face's imagefolder: images with a metadata file beside them, or in class folders, with or without splits.

    SOURCE/metadata.csv (or .jsonl, .parquet), SOURCE/*.jpg
    SOURCE/train/metadata.csv, SOURCE/test/metadata.csv, …                     (splits)
    SOURCE/train/cat/*.jpg, …                                          (class folders, which `pack` itself reads)

A row's `file_name` is relative to its metadata file. `label` is the label, in numbers or names; every other column
becomes a field: `text` the field `text.txt`, `objects` the field `objects.json`. Its boxes (`bbox`, as [x, y, width,
height]) are scaled with the images.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iofast import pack
from iofast.errors import SourceError
from iofast.packing import PackReport
from tools.recipes.listed import Row, command, pack_listed

NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
SPLITS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "test": "test"}


def main(argv: list[str] | None = None) -> int:
    return command(__doc__, pack_imagefolder, argv)


def pack_imagefolder(source: Path, target: Path, **options: Any) -> PackReport:
    """Raises `SourceError` for a row without `file_name`, and the errors of `pack`."""
    folders = [folder for folder in SPLITS if _metadata(source / folder) is not None]
    if not folders and _metadata(source) is None:
        return pack(source, target, **options)
    rows = _numbers([row for name in folders or [""] for row in _rows(source, name)])
    if any(isinstance(row.get("objects"), dict) and "bbox" in row["objects"] for row in rows):
        options |= {"boxes": "objects.json", "box_format": "xywh"}
    return pack_listed(rows, source, target, **options)


def _metadata(folder: Path) -> Path | None:
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def _rows(source: Path, folder: str) -> Iterator[Row]:
    file = _metadata(source / folder)
    assert file is not None  # the folder has metadata
    for row in _read(file):
        if not row.get("file_name"):
            raise SourceError(f"{file} has a row without file_name")
        path = (Path(folder) / row["file_name"]).as_posix()
        fields = {name: value for name, value in row.items() if name != "file_name" and value is not None}
        yield {"path": path, **({"split": SPLITS[folder]} if folder else {}), **fields}


def _numbers(rows: list[Row]) -> list[Row]:
    """Labels as numbers if all are: a CSV file's labels are text."""
    labels = [row["label"] for row in rows if "label" in row]
    if all(isinstance(label, int) or str(label).isdigit() for label in labels):
        return [row | {"label": int(row["label"])} if "label" in row else row for row in rows]  # type: ignore[operator]
    return rows


def _read(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".csv":
        with file.open(newline="", encoding="utf-8") as opened:
            yield from csv.DictReader(opened)
    elif file.suffix == ".jsonl":
        yield from (json.loads(line) for line in file.read_text().splitlines() if line.strip())
    else:
        import pyarrow.parquet  # needed for such a file only

        yield from pyarrow.parquet.read_table(file).to_pylist()


if __name__ == "__main__":
    sys.exit(main())
