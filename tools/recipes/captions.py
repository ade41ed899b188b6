"""A folder of images, each with its caption beside it: `a.jpg` and `a.txt`, and `a.json` where there is more to say.

Fields: the image, `txt`, and `meta.json`, the file `a.json` as it is (`json` is iofast's own). An image without a
caption is left out and counted. Nothing is resized.
"""

from __future__ import annotations

import sys
from pathlib import Path

from iofast import open_writer
from iofast.errors import SourceError
from tools.recipes.listed import image_record, images_in, parser


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__, pixels=False).parse_args(argv)
    packed, left_out = pack_captions(args.source, args.target, overwrite=args.overwrite)
    print(f"{packed} images with captions, {left_out} without left out")
    return 0


def pack_captions(source: Path, target: Path, *, overwrite: bool = False) -> tuple[int, int]:
    """How many images were packed, and how many had no caption. Raises `SourceError` where none has one."""
    paths = images_in(source)
    captioned = [path for path in paths if path.with_suffix(".txt").is_file()]
    if not captioned:
        raise SourceError(f"no image in {source} has a caption beside it: looked for {paths[0].with_suffix('.txt')}")
    with open_writer(target, overwrite=overwrite) as writer:
        for path in captioned:
            fields = {**image_record(path.read_bytes()), "txt": path.with_suffix(".txt").read_bytes()}
            meta = path.with_suffix(".json")
            more = {"meta.json": meta.read_bytes()} if meta.is_file() else {}
            writer.write({**fields, **more, "json": {"path": path.relative_to(source).as_posix()}})
    return len(captioned), len(paths) - len(captioned)


if __name__ == "__main__":
    sys.exit(main())
