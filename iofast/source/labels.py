"""Labels of a list or a table: class numbers, or names that become classes."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from iofast.containers.manifest import MAX_CLASS_NAME, MAX_CLASSES
from iofast.errors import SourceError
from iofast.source.classes import CLASS_FILE, look_alikes, order_classes, read_class_file
from iofast.source.listing import printable
from iofast.source.table import BYTES, JSON, printable_column

LABEL_COLUMNS = ("label", "class", "target", "category")  # in any case

_MOST = (1 << 31) - 1  # the largest class number
_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]{0,9}))(?:\.0*)?")  # pandas writes 2 as 2.0 beside gaps; 007 is a name
_LIKE_LABELS = re.compile("label|class|target|categor", re.IGNORECASE)
_NUMBERS = re.compile("(label|class|target|category)[ _-]?(id|idx|index)", re.IGNORECASE)
_NAMES = re.compile("(label|class|target|category)[ _-]?(name|text)", re.IGNORECASE)

Cells = Iterable[tuple[bytes, int]]  # value and kind of each row, as of `ColumnValues`
Labels = tuple[NDArray[np.int32], tuple[str, ...] | None, list[str]]  # by row, names of classes, warnings


def unused(columns: Iterable[str], option: str) -> list[str]:
    """A warning about columns that may be labels, in a list or table without any other; `option` chooses one."""
    names = ", ".join(printable_column(name) for name in columns if _LIKE_LABELS.search(name))
    return [f"no labels: {names} may be labels, and {option} takes one as such"] if names else []


def numbers_and_names(numbers: Iterable[str], texts: Iterable[str]) -> tuple[str, str] | None:
    """The columns of class numbers and of their names, such as `class_id` and `label_name`, if there is one of each."""
    own = [name for name in numbers if _NUMBERS.fullmatch(name)]
    names = [name for name in texts if _NAMES.fullmatch(name)]
    return (own[0], names[0]) if len(own) == len(names) == 1 else None


def are_numbers(cells: Cells) -> bool:
    """Whether every cell is a class number, -1, or empty."""
    for value, kind in cells:
        found = None if kind == BYTES else _WHOLE.fullmatch(value.strip())
        if value.strip() and (found is None or not -1 <= int(found[1]) <= _MOST):
            return False
    return True


def class_names(labels: NDArray[np.int32], cells: Cells, column: str) -> tuple[tuple[str, ...] | None, list[str]]:
    """Names of the classes, by label, from the names in each row.

    None, with a warning, unless each class has one name and each name one class.

    `column` is that of the names.
    """
    found, numbers = dict[int, str](), dict[str, int]()
    unfit = f"the names in {printable_column(column)} are not those of the classes: "
    for label, (value, _) in zip(labels.tolist(), cells, strict=True):
        if label < 0 or not (name := printable(value.strip())):
            continue
        if found.setdefault(label, name) != name:
            return None, [f"{unfit}class {label} is {found[label]!r} and {name!r}"]
        if numbers.setdefault(name, label) != label:
            return None, [f"{unfit}classes {numbers[name]} and {label} are both {name!r}"]
    count = int(labels.max(initial=-1)) + 1
    if len(found) < count:
        return None, [f"{unfit}class {next(label for label in range(count) if label not in found)} has none"]
    if count > MAX_CLASSES or max(map(len, numbers), default=0) > MAX_CLASS_NAME:
        return None, [f"{unfit}there are more than {MAX_CLASSES}, or one has more than {MAX_CLASS_NAME} characters"]
    return tuple(found[label] for label in range(count)) or None, look_alikes(found.values())


def read_labels(
    cells: Cells,
    class_order: str,
    path: Path,
    fail: Callable[[int, str], NoReturn],
    names: tuple[str, ...] | None = None,
) -> Labels:
    """Labels by row, class names (None if the labels are numbers without names), warnings.

    `path` is the list, beside which a file of classes may lie; `fail` raises an error about a row. `names` are those of
    classes with numbers, if they are known. Raises `SourceError`.
    """
    values, known = [], dict[bytes, bytes]()  # equal texts once: a list of 10^8 rows has few classes
    for row, (value, kind) in enumerate(cells):
        text = value.strip().removesuffix(b".0") if kind == JSON else value.strip()
        if kind == BYTES or (kind == JSON and not _WHOLE.fullmatch(text)):
            found = "bytes" if kind == BYTES else text.decode(errors="replace")
            fail(row, f"the label must be text or an integer, found {found:.80}")
        values.append(known.setdefault(text, text))
    given = set(known)
    absent = {value for value in given if not value or value.lower() == b"nan"}
    numbers, warnings = dict.fromkeys(absent, -1), list[str]()
    if all(map(_WHOLE.fullmatch, given - absent)):
        names = read_class_file(path.parent / CLASS_FILE) if class_order == "file" else names
        most = len(names) - 1 if names else _MOST
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
