"""Which files are tables with images: Arrow as `datasets` saves it, and Parquet as on the Hugging Face Hub."""

import json
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from iofast.containers.container_suffixes import ARROW, PARQUET
from iofast.containers.manifest import WHOLE, check_split_name
from iofast.errors import ContainerError, SourceError, because, unreadable
from iofast.source.listing import SPLIT_ORDER, split_rank
from iofast.source.suffixes import EXTENSIONS
from iofast.source.table import check_file, opened

DATASET, SPLITS = "state.json", "dataset_dict.json"  # what `save_to_disk` writes beside the tables of a data set
DATA = "data"  # the Hub's folder of Parquet files
MAX_STATE = 16 << 20  # bytes of such a file

_OF_THE_HUB = re.compile(r"(\w+?(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}")  # split, number, count
_KEYWORD = re.compile(rf"({'|'.join(SPLIT_ORDER)})(?![a-z0-9])")
_IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp")  # binary columns of these names are images


class TableFile(NamedTuple):
    """A table and its split."""

    path: str
    split: str = WHOLE


def find_tables(folder: Path) -> list[TableFile] | None:
    """The tables of a folder that `save_to_disk` has written, or of a Hub repository; None for any other folder.

    Raises `ContainerError` for a folder of `save_to_disk` that cannot be read.
    """
    if (folder / SPLITS).is_file():
        names = _listed(folder / SPLITS, _parsed(folder / SPLITS), "splits")
        return [file for name in names for file in _saved(folder / _name(folder, name), _name(folder, name))]
    if (folder / DATASET).is_file():
        return _saved(folder, None)
    found = _parquet_in(folder)
    if found == [] and (folder / DATA).is_dir():
        found = _parquet_in(folder / DATA)
    if not found or find_spec("pyarrow") is None or not has_images(found[0]):
        return None
    return in_order(found)


def in_order(paths: Sequence[str]) -> list[TableFile]:
    """Give files their splits, by the Hub's rules for names, and sort them by split."""
    files = [TableFile(path, _split_of(Path(os.path.abspath(path)))) for path in paths]
    return sorted(files, key=lambda file: split_rank(file.split))


def has_images(path: str) -> bool:
    """Whether a Parquet file has a column of images; a list of image files has paths instead.

    Raises `SourceError` if that cannot be read.
    """
    try:
        check_file(path)
        with opened(path) as file:
            return any(is_image(each) for each in file.schema_arrow)
    except OSError as error:
        raise SourceError(f"{path} is not a Parquet file that can be read: {because(error)}") from None


def is_image(column: Any) -> bool:
    """Whether a column (an Arrow field) has images, by its type and name."""
    return has_bytes(column.type) or (is_binary(column.type) and column.name.lower() in _IMAGES)


def has_bytes(kind: Any) -> bool:
    """Whether values of an Arrow type are structs with a member `bytes`, as images of `datasets` are."""
    members = [kind.field(number) for number in range(kind.num_fields)]
    return str(kind).startswith("struct<") and any(each.name == "bytes" and is_binary(each.type) for each in members)


def is_binary(kind: Any) -> bool:
    """Whether values of an Arrow type are bytes of any length."""
    return str(kind) in ("binary", "large_binary")


def is_text(kind: Any) -> bool:
    """Whether values of an Arrow type are text."""
    return str(kind) in ("string", "large_string")


def _saved(folder: Path, split: str | None) -> list[TableFile]:
    """The tables that the `state.json` of a folder lists, in order."""
    state = folder / DATASET
    found = _parsed(state)
    if found.get("_indices_files") or found.get("_indices_data_files"):
        raise ContainerError(f"{state}: its rows are a selection of others; save it again with a later `datasets`")
    listed = _listed(state, found, "_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    own = split or found.get("_split") or WHOLE
    files = [TableFile(os.fspath(folder / _name(state, name)), _name(state, own)) for name in names]
    if wrong := [file.path for file in files if not file.path.endswith(ARROW)]:
        raise ContainerError(f"{state} lists {wrong[0]!r:.200}, which is no {ARROW} file")
    return files


def _listed(path: Path, found: dict[str, Any], member: str) -> list[Any]:
    listed = found.get(member)
    if not isinstance(listed, list) or not listed:
        raise ContainerError(f"{path}: {member!r} is no list with entries")
    return listed


def _parsed(path: Path) -> dict[str, Any]:
    try:
        check_file(path)
        with path.open("rb") as file:
            parsed = json.loads(file.read(MAX_STATE))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{path} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ContainerError(f"{path} is no JSON object")
    return parsed


def _name(where: Path, name: object) -> str:
    """Check the name of a split or of a file beside `where`."""
    if not isinstance(name, str) or not name or name != os.path.basename(name) or name in (".", "..") or "\0" in name:
        raise ContainerError(f"{where} has the impossible name {name!r:.80}")
    return name


def _parquet_in(folder: Path) -> list[str] | None:
    """The Parquet files of a folder and of folders named as splits, sorted; None if it has images beside them."""
    found, splits = list[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix in EXTENSIONS:  # one is enough: folders of images may be large
                return None
            if suffix == PARQUET:
                found.append(entry.path)
            elif entry.name in SPLIT_ORDER and entry.is_dir():
                splits.append(entry.path)
    below = [path for split in splits for path in _parquet_in(Path(split)) or ()] if not found else []
    return sorted(found + below)


def _split_of(path: Path) -> str:
    named = _OF_THE_HUB.match(path.name) or _KEYWORD.match(path.name)
    split = named[1] if named else path.parent.name if path.parent.name in SPLIT_ORDER else WHOLE
    try:
        check_split_name(split)
    except ContainerError:
        return WHOLE
    return split
