"""Labels of a list or a table: class numbers, or names that become classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import MAX_CLASS_NAME, MAX_CLASSES
from iofast.errors import SourceError
from iofast.source.classes import CLASS_FILE, order_classes, read_class_file
from iofast.source.listing import printable
from iofast.source.parquet import BYTES, JSON
from iofast.source.table import ColumnText, printable_column

LABEL_COLUMNS = ("label", "class", "target", "category")  # in any case

_MOST_LABELS = 1 << 22  # different ones that are looked at, before they are taken for numbers or refused
_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]{0,9}))(?:\.0*)?")  # pandas writes 2 as 2.0 beside gaps; 007 is a name
_LIKE_LABELS = re.compile("label|class|target|categor", re.IGNORECASE)

Fail = Callable[[int, str], NoReturn]  # raises an error about a row


def unused(columns: Iterable[str], option: str) -> list[str]:
    """A warning about columns that may be labels, in a list or table without any other; `option` chooses one."""
    names = ", ".join(printable_column(name) for name in columns if _LIKE_LABELS.search(name))
    return [f"no labels: {names} may be labels, and {option} takes one as such"] if names else []


def read_labels(
    cells: ColumnText, class_order: str, path: Path, fail: Fail
) -> tuple[NDArray[np.int32], tuple[str, ...] | None, list[str]]:
    """Labels by row, class names (None if the labels are numbers without names), warnings.

    `path` is the list, beside which a file of classes may lie. Raises `SourceError`.
    """
    given: set[bytes] = set()
    for _, values in _values(cells, fail):
        given.update(values)
        if len(given) > _MOST_LABELS:
            break
    absent = {value for value in given if _is_absent(value)}
    given -= absent
    if all(map(_WHOLE.fullmatch, given)):
        return _numbered(cells, class_order, path, fail)
    names, warnings = order_classes([name.decode() for name in given], class_order, path.parent)
    if absent - {b""}:
        warnings.append("labels 'nan' taken for missing ones")
    if len(names) > MAX_CLASSES or max(map(len, names)) > MAX_CLASS_NAME:
        raise SourceError(
            f"{path}: expected at most {MAX_CLASSES} classes with names of up to {MAX_CLASS_NAME} characters, "
            f"found {len(names)} of up to {max(map(len, names))}: is it the label?"
        )
    numbers = {name.encode(): number for number, name in enumerate(names)} | dict.fromkeys(absent, -1)
    labels = np.empty(len(cells), np.int32)
    for rows, values in _values(cells, fail):
        labels[rows] = [numbers[value] for value in values]
    return labels, tuple(names), warnings


def _values(cells: ColumnText, fail: Fail) -> Iterator[tuple[slice, list[bytes]]]:
    """Slices of rows, and their labels as text. Raises `SourceError` unless each is text or an integer."""
    strings, kinds = cells.strings, cells.kinds
    for rows in strings.steps():
        values = [value.strip() for value in strings.of(rows)]
        for row, kind in enumerate(kinds[rows].tolist()):
            if kind == JSON:
                values[row] = values[row].removesuffix(b".0")
            if kind == BYTES or (kind == JSON and not _WHOLE.fullmatch(values[row])):
                fail(rows.start + row, "the label is neither text nor an integer")
        yield rows, values


def _is_absent(value: bytes) -> bool:
    return not value or value.lower() == b"nan"


def _numbered(
    cells: ColumnText, class_order: str, path: Path, fail: Fail
) -> tuple[NDArray[np.int32], tuple[str, ...] | None, list[str]]:
    classes = read_class_file(path.parent / CLASS_FILE) if class_order == "file" else None
    most = len(classes) - 1 if classes else (1 << 31) - 1
    labels = np.empty(len(cells), np.int32)
    for rows, values in _values(cells, fail):
        numbers = {value: -1 if _is_absent(value) else _number(value) for value in set(values)}
        for value, number in numbers.items():
            if not -1 <= number <= most:
                words = f"the label must be a class number 0 to {most}, or -1 for none, found {printable(value)}"
                fail(rows.start + values.index(value), words)
        labels[rows] = [numbers[value] for value in values]
    return labels, classes, []


def _number(value: bytes) -> int:
    """The number in a label, below -1 if it is none."""
    whole = _WHOLE.fullmatch(value)
    return int(whole[1]) if whole else -2
