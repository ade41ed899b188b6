"""Labels of a list or a table: class numbers, or names that become classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import MAX_CLASS_NAME, MAX_CLASSES
from iofast.errors import SourceError
from iofast.source.classes import CLASS_FILE, order_classes, read_class_file
from iofast.source.listing import printable
from iofast.source.table import BYTES, JSON, ColumnValues, printable_column

LABEL_COLUMNS = ("label", "class", "target", "category")  # in any case

_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]{0,9}))(?:\.0*)?")  # pandas writes 2 as 2.0 beside gaps; 007 is a name
_LIKE_LABELS = re.compile("label|class|target|categor", re.IGNORECASE)

Labels = tuple[NDArray[np.int32], tuple[str, ...] | None, list[str]]  # by row, names of classes, warnings


def unused(columns: Iterable[str], option: str) -> list[str]:
    """A warning about columns that may be labels, in a list or table without any other; `option` chooses one."""
    names = ", ".join(printable_column(name) for name in columns if _LIKE_LABELS.search(name))
    return [f"no labels: {names} may be labels, and {option} takes one as such"] if names else []


def read_labels(cells: ColumnValues, class_order: str, path: Path, fail: Callable[[int, str], NoReturn]) -> Labels:
    """Labels by row, class names (None if the labels are numbers without names), warnings.

    `path` is the list, beside which a file of classes may lie; `fail` raises an error about a row. Raises
    `SourceError`.
    """
    values, known = [], dict[bytes, bytes]()  # equal texts once: a list of 10^8 rows has few classes
    for row, (value, kind) in enumerate(cells):
        text = value.strip().removesuffix(b".0") if kind == JSON else value.strip()
        if kind == BYTES or (kind == JSON and not _WHOLE.fullmatch(text)):
            fail(row, "the label is neither text nor an integer")
        values.append(known.setdefault(text, text))
    given = set(known)
    absent = {value for value in given if not value or value.lower() == b"nan"}
    numbers, names, warnings = dict.fromkeys(absent, -1), None, list[str]()
    if all(map(_WHOLE.fullmatch, given - absent)):
        names = read_class_file(path.parent / CLASS_FILE) if class_order == "file" else None
        most = len(names) - 1 if names else (1 << 31) - 1
        for value in given - absent:
            numbers[value] = int(value.partition(b".")[0])
            if not -1 <= numbers[value] <= most:
                words = f"the label must be a class number 0 to {most}, or -1 for none, found {printable(value)}"
                fail(values.index(value), words)
    else:
        ordered, warnings = order_classes([name.decode() for name in given - absent], class_order, path.parent)
        names, longest = tuple(ordered), max(map(len, ordered))
        if absent - {b""}:
            warnings.append("labels 'nan' taken for missing ones")
        if len(names) > MAX_CLASSES or longest > MAX_CLASS_NAME:
            raise SourceError(
                f"{path}: expected at most {MAX_CLASSES} classes with names of up to {MAX_CLASS_NAME} characters, "
                f"found {len(names)} of up to {longest}: is it the label?"
            )
        numbers |= {name.encode(): number for number, name in enumerate(names)}
    return np.array([numbers[value] for value in values], np.int32), names, warnings
