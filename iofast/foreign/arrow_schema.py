"""The meaning of a table's columns: images, labels, texts, and what goes into the field `json`."""

import json
import re
from typing import Any, Literal, NamedTuple

from iofast.containers.manifest import MAX_FIELDS
from iofast.errors import ContainerError, OptionError
from iofast.foreign.table_files import has_bytes, is_binary, is_image, is_text
from iofast.source.labels import LABEL_COLUMNS, numbers_and_names, unused
from iofast.source.listing import few

LABEL_NAMES = (*LABEL_COLUMNS, "y", "cls", "labels", "fine_label")


class Leaf(NamedTuple):
    """A column of values that each have a place in the file, and become a field. `member`: of a struct, or empty."""

    name: str
    kind: Literal["image", "text", "bytes"]
    column: str
    member: str = ""


class TableSchema(NamedTuple):
    """What becomes of the columns of a table.

    `label` has class indices, `classes` their names, or the column `names` has them in each row; or `label` has text
    (`is_text`). Each of `leaves` becomes a field, and `others` members of the field `json`; `left_out` are sentences.
    """

    label: str | None
    names: str | None
    is_text: bool
    classes: tuple[str, ...] | None
    leaves: tuple[Leaf, ...]
    others: tuple[str, ...]
    left_out: tuple[str, ...]


def meaning(schema: Any, shown: str, label: str | None) -> TableSchema:
    """The meaning of an Arrow schema; `label` is the user's choice. Raises `ContainerError`, `OptionError`."""
    if len(set(schema.names)) < len(schema.names) or not 0 < len(schema.names) <= MAX_FIELDS:
        found = f"found {len(schema.names)}, or two of one name"
        raise ContainerError(f"{shown} must have 1 to {MAX_FIELDS} columns, {found}")
    classes = _classes(schema)
    numbers, texts = _label_columns(schema)
    if label is not None and label not in (*numbers, *texts):
        there = few((*numbers, *texts), 20) or "none"
        raise OptionError(f"{shown}: names label={label}: expected a column of text or whole numbers, found {there}")
    names = None
    if label is None:  # numbers with names of classes, else those with a usual name, else text with one
        named = [name for name in numbers if name in classes]
        usual = [name for name in named or numbers if name.lower() in LABEL_NAMES]
        label = next(iter(usual or named or [name for name in texts if name.lower() in LABEL_NAMES]), None)
    if label is None:
        label, names = numbers_and_names(numbers, texts) or (None, None)
    leaves, others, left_out = list[Leaf](), list[str](), list[str]()
    for column in schema:
        if column.name == label:
            continue
        if found_leaves := _leaves(column):
            leaves += found_leaves
        elif _has_binary(column.type):  # bytes that JSON cannot have
            left_out.append(f"column {column.name!r} ({column.type}) is left out: bytes within other values")
        else:
            others.append(column.name)
    if not leaves and not others:
        raise ContainerError(f"{shown}: no column can be read, only {', '.join(schema.names):.200}")
    if label is None:
        left_out += unused((*numbers, *texts), "--names label=COLUMN")
        like = [each for each in schema if each.name.lower() in LABEL_NAMES and not has_bytes(each.type)]  # no mask
        unfit = [f"column {each.name!r} ({each.type})" for each in like]
        left_out += [f"no labels: expected text or whole numbers, found {few(unfit, 4)}"] if unfit else []
    leaves.sort(key=lambda leaf: leaf.kind != "image")  # stable: the first image is the record's
    rest = tuple(leaves), tuple(others), tuple(left_out)
    return TableSchema(label, names, label in texts, classes.get(label or ""), *rest)


def _leaves(column: Any) -> list[Leaf]:
    """The values of an Arrow field that have places; empty if it has none."""
    name, kind = column.name, column.type
    if has_bytes(kind):
        path = kind.get_field_index("path")
        is_named = path >= 0 and str(kind.field(path).type) == "string"
        image = Leaf(name, "image", name, "bytes")
        return [image, Leaf(f"{name}_path", "text", name, "path")] if is_named else [image]
    if is_binary(kind):
        return [Leaf(name, "image" if is_image(column) else "bytes", name)]
    return [Leaf(name, "text", name)] if is_text(kind) else []


def _has_binary(kind: Any) -> bool:
    """Whether values of an Arrow type are or contain bytes."""
    if str(kind).startswith("dictionary"):
        return _has_binary(kind.value_type)
    within = [kind.field(number).type for number in range(kind.num_fields)]
    return is_binary(kind) or str(kind).startswith("fixed_size_binary") or any(map(_has_binary, within))


def _classes(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, as `datasets` stores them in the schema's metadata."""
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: each for name, each in told.items() if isinstance(each, dict) and each["_type"] == "ClassLabel"}
        return {name: tuple(map(str, each["names"])) for name, each in found.items() if each.get("names")}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}  # written by another program


def _label_columns(schema: Any) -> tuple[list[str], list[str]]:
    """The columns of whole numbers, and those of text, perhaps by a dictionary."""
    numbers = [each.name for each in schema if re.fullmatch("u?int[0-9]+", str(each.type))]
    kinds = ((each.name, each.type) for each in schema)
    texts = [name for name, kind in kinds if is_text(kind.value_type if str(kind).startswith("dictionary") else kind)]
    return numbers, texts
