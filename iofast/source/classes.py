"""Number the classes, and find names that differ only in case, in Unicode's composition, or in spaces around them."""

import itertools
import os
import re
import unicodedata
from collections.abc import Collection, Iterable
from pathlib import Path

from iofast.errors import SourceError, unreadable
from iofast.source.listing import few, printable
from iofast.source.table import lines

CLASS_FILE = "classes.txt"
_LOOKS = 100_000  # names of a folder that are compared with a missing one


def natural_key(name: str) -> list[str | int]:
    """Sort key under which "9" comes before "10": runs of digits count as numbers."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]


def order_classes(names: Collection[str], class_order: str, root: Path) -> tuple[list[str], list[str]]:
    """Return `names` in the given order, and warnings. Raises `SourceError`.

    With the order `file`, `classes.txt` in `root` must list all of `names`, and may list others.
    """
    lexicographic, warnings = sorted(names), list[str]()
    ordered = lexicographic
    natural = sorted(lexicographic, key=lambda name: (natural_key(name), name))
    if class_order == "file":
        ordered, warnings = _order_of_file(names, root / CLASS_FILE)
    elif natural != lexicographic:
        pairs = enumerate(zip(lexicographic, natural, strict=True))
        at, (one, other) = next(each for each in pairs if each[1][0] != each[1][1])
        usual = ", in which models trained with ImageFolder expect them" if class_order == "lexicographic" else ""
        warnings.append(
            f"lexicographic and natural class order differ: class {at} is {printable(one)!r} or {printable(other)!r}; "
            f"the {class_order} order is used{usual}"
        )
        ordered = natural if class_order == "natural" else lexicographic
    return ordered, warnings + look_alikes(ordered)


def look_alikes(names: Iterable[str]) -> list[str]:
    """A warning about different classes whose names look alike, if there are any."""
    seen: dict[str, str] = {}
    pairs = [(seen[alike(name)], name) for name in names if seen.setdefault(alike(name), name) != name]
    more = f" and {len(pairs) - 1:,} more pairs" if len(pairs) > 1 else ""
    # with escapes because they may print the same
    return [f"classes that look alike are different classes: {one!a} and {two!a}{more}" for one, two in pairs[:1]]


def check_distinct(names: Collection[str], root: Path | str) -> tuple[str, ...]:
    """Class names as stored text. Raises `SourceError` if two become equal."""
    texts = tuple(printable(name) for name in names)
    if len(set(texts)) < len(texts):
        twice = next(name for name in texts if texts.count(name) > 1)
        raise SourceError(f"two class folders in {root} both become {twice!r} as text")
    return texts


def read_class_file(path: Path) -> tuple[str, ...]:
    """The classes of a text file, one per line; blank lines at the end are ignored. Raises `SourceError`."""
    try:
        names = b"".join(lines(path)).decode().rstrip().splitlines()
    except OSError as error:
        raise unreadable(f"class order 'file' needs a class per line in {path}, which", error) from None
    except UnicodeError:
        raise SourceError(f"class order 'file' needs {path}, one class per line: its text is damaged") from None
    first: dict[str, int] = {}
    for number, name in enumerate(map(str.strip, names), 1):
        if not name:
            raise SourceError(f"{path}, line {number}: empty, expected a class")
        if first.setdefault(name, number) != number:
            raise SourceError(f"{path}, line {number}: class {name!r} again, as in line {first[name]}")
    if not first:
        raise SourceError(f"{path} names no class")
    return tuple(first)


def _order_of_file(names: Collection[str], path: Path) -> tuple[list[str], list[str]]:
    ordered = list(read_class_file(path))
    if absent := sorted(set(names) - set(ordered)):
        like = [f"; it has {name!a} for {absent[0]!a}" for name in ordered if alike(name) == alike(absent[0])]
        raise SourceError(f"{path} does not match the classes: it lacks {few(absent)}{''.join(like)}")
    surplus = sorted(set(ordered) - set(names))
    warnings = [f"classes of {path.name} without images: {few(surplus)} (their numbers are kept)"] if surplus else []
    return ordered, warnings


def alike(name: str) -> str:
    """Return the form that names have in common if they look alike."""
    return unicodedata.normalize("NFC", name).strip().casefold()


def instead_of(path: bytes) -> str:
    """`; found a/B.jpg` for a missing file, if a file looks alike, or differs in slashes or in its suffix; else ""."""
    place, parts = "", os.fsdecode(path).replace("\\", "/").split("/")
    for number, part in enumerate(parts, 1):
        if part and not os.path.lexists(f"{place}{part}"):
            part = _like(part, place, is_folder=number < len(parts))
            if not part:
                return ""
        place += f"{part}/"
    found = place.rstrip("/")
    return f"; found {printable(found)!a}" if os.path.isfile(found) else ""


def _like(name: str, folder: str, *, is_folder: bool) -> str:
    """A name in the folder that looks like `name`, or else one that does so without its suffix; "" if there is none."""
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(each.name for each in itertools.islice(entries, _LOOKS) if each.is_dir() == is_folder)
    except OSError:
        return ""
    same = [each for each in names if alike(each) == alike(name)]
    stems = {alike(name), alike(os.path.splitext(name)[0])}
    return next(iter(same or [each for each in names if alike(os.path.splitext(each)[0]) in stems]), "")
