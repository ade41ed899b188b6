"""A folder of images, each with its caption beside it: `a.jpg` and `a.txt`, and possibly `a.json`.

Fields: the image, `txt`, and `meta.json`, the file `a.json` as it is (`json` is iofast's own). An image without a
caption is left out and counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from iofast.errors import SourceError
from iofast.packing import PackReport
from tools.recipes.listed import command, images_in, pack_listed


def main(argv: list[str] | None = None) -> int:
    return command(__doc__, pack_captions, argv)


def pack_captions(source: Path, target: Path, **options: Any) -> PackReport:
    """Print how many images have no caption. Raises `SourceError` if none has one."""
    paths = images_in(source)
    captioned = [path for path in paths if path.with_suffix(".txt").is_file()]
    if not captioned:
        raise SourceError(f"no image in {source} has a caption beside it: looked for {paths[0].with_suffix('.txt')}")
    suffixes = {"path": None, "txt": ".txt", "meta.json": ".json"}
    rows = []
    for path in captioned:
        files = {name: path if suffix is None else path.with_suffix(suffix) for name, suffix in suffixes.items()}
        rows.append({name: file.relative_to(source).as_posix() for name, file in files.items() if file.is_file()})
    columns = [name for name in ("txt", "meta.json") if any(name in row for row in rows)]
    if lost := len(paths) - len(captioned):
        print(f"{lost:,} of {len(paths):,} images have no caption: left out", file=sys.stderr)
    return pack_listed(rows, source, target, file_column=columns, **options)


if __name__ == "__main__":
    sys.exit(main())
