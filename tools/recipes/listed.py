"""Shared by the recipes: rows that name images become a manifest for `pack`, and encoded images get the right field."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iofast.commands.pack import summary
from iofast.errors import IofastError, OptionError, SourceError
from iofast.kernel import read_header
from iofast.machine import cores
from iofast.packing import PackOptions, PackReport
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import Bar
from iofast.packing.run import run
from iofast.source.classes import CLASS_FILE

_LIST = "iofast-list.jsonl"
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
_FIELDS = {"jpeg": "jpg", "png": "png", "webp": "webp"}
Row = Mapping[str, Any]


def pack_listed(
    rows: Iterable[Row], source: Path, target: Path, classes: Sequence[str] | None = None, **options: Any
) -> PackReport:
    """`pack` the images that rows name by `path`, relative to `source`; see docs/pack.md for `label`, `split`, others.

    The values of `mask_column` and `file_column`, which are lists here, are relative to `source` too. With `classes`
    the labels are numbers of these names. The manifest is in a temporary folder with links to the files of `source`, so
    that the result does not depend on paths, and a killed run can be resumed.
    """
    with tempfile.TemporaryDirectory(prefix="iofast-recipe-") as folder:
        root, linked = Path(folder), {_LIST} if classes is None else {_LIST, CLASS_FILE}
        files = ("path", *options.get("mask_column", ()), *options.get("file_column", ()))
        with (root / _LIST).open("w") as file:
            for row in rows:
                for top in {_top(row[name], source) for name in files if name in row} - linked:
                    (root / top).symlink_to((source / top).resolve())
                    linked.add(top)
                file.write(json.dumps(row) + "\n")
        if classes is not None:
            (root / CLASS_FILE).write_text("".join(f"{name}\n" for name in classes))
            options["class_order"] = "file"
        packing = PackOptions(**options)
        with WorkerPool(cores() if packing.workers is None else packing.workers) as pool:
            return run(root / _LIST, target, packing, Bar("recipe"), pool)


def _top(path: str, source: Path) -> str:
    """The first part of a path in `source`. Raises `SourceError` if the path leads out of it."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts:
        raise SourceError(f"{path!r} is not a path of a file in {source}")
    return parts[0]


def read_json(file: Path) -> Any:
    """The value of a JSON file. Raises `SourceError` with its name."""
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise SourceError(f"{file} is not JSON: {error}") from None


def command(doc: str | None, pack: Callable[..., PackReport], argv: list[str] | None) -> int:
    """The whole command of a recipe without further options."""
    args = parser(doc, pixels=True).parse_args(argv)
    return finish(lambda: pack(args.source, args.target, **pack_options(args)))


def finish(make: Callable[[], PackReport | str]) -> int:
    """Run a recipe: print a summary, or one line for an error. Return the exit status."""
    try:
        made = make()
    except KeyboardInterrupt:
        print("interrupted: the same command resumes a recipe that goes through pack", file=sys.stderr)
        return 130
    except (IofastError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    except (LookupError, AttributeError, ValueError, TypeError, tarfile.TarError) as error:
        if os.environ.get("IOFAST_DEBUG"):
            raise
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"error: the files do not fit this recipe ({words}); IOFAST_DEBUG=1 shows where", file=sys.stderr)
        return 1
    print(made if isinstance(made, str) else "\n".join(summary(made)))
    return 0 if isinstance(made, str) else made.status


def parser(description: str | None, *, pixels: bool) -> argparse.ArgumentParser:
    """The options SOURCE and DST, and for recipes that go through `pack` some options of it."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("source", type=Path, metavar="SOURCE")
    made.add_argument("target", type=Path, metavar="DST", help="out.lmdb, out.tar or out.tfrecord")
    made.add_argument("--overwrite", action="store_true")
    if pixels:
        made.add_argument(
            "--resize", type=int, metavar="N", help="short side in pixels (default: keep files as they are)"
        )
        made.add_argument("--quality", type=int, help="of JPEGs that are resized (default 90)")
        made.add_argument("--shuffle", type=int, metavar="SEED")
        made.add_argument("--workers", type=int, metavar="N")
        made.add_argument("--max-errors", metavar="N", help="a number or a share (default 1%% or 10)")
    return made


def pack_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `pack` among a recipe's arguments."""
    names = ("overwrite", "resize", "quality", "shuffle", "workers", "max_errors")
    return {name: getattr(args, name) for name in names}


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
        raise SourceError(f"cannot store a {found} image as it is: convert it to PNG")
    return {_FIELDS[found]: data}
