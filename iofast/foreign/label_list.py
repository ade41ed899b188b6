"""Read a text file of lines `key label`, the labels of an LMDB of plain images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from iofast.containers.manifest import MAX_CLASS_NAME, MAX_CLASSES
from iofast.errors import OptionError, SourceError, unreadable
from iofast.source.text_files import lines

MAX_BYTES = 4 << 30  # ImageNet's list has 50 MB


class LabelList(NamedTuple):
    """Labels by key, and class names if the file contains names instead of numbers."""

    labels: dict[bytes, int]
    classes: tuple[str, ...] | None


def read_label_list(path: str, base: int) -> LabelList:
    """Read such a file: the last word of a line is the label, the rest the key; empty lines are ignored.

    If all labels are whole numbers, they are class numbers, counted from `base`. Otherwise they are class names,
    numbered in lexicographic order. Raises `SourceError` naming file and line, `OptionError` for names with a `base`.
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise SourceError(f"{path} has more than {MAX_BYTES} bytes: is it the list of labels?")
        text = b"".join(lines(Path(path)))
    except OSError as error:
        raise unreadable(f"the list of labels {path}", error) from None
    except UnicodeError:
        raise SourceError(f"the list of labels {path} cannot be read: its text is damaged") from None
    words: dict[bytes, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.strip().rsplit(maxsplit=1)
        if not parts:
            continue
        if len(parts) != 2:
            raise SourceError(f"{path} line {number} is not `key label`: {line!r:.80}")
        if words.setdefault(*parts) != parts[1]:
            raise SourceError(f"{path} line {number} gives {parts[0]!r:.80} another label than a line before it")
    if not words:
        raise SourceError(f"{path} has no lines `key label`")
    if all(word.isdigit() and len(word) <= 9 for word in words.values()):
        labels = {key: int(word) - base for key, word in words.items()}
        if min(labels.values()) < 0:
            raise SourceError(f"{path} has the label 0, expected {base} (the label base) or more")
        return LabelList(labels, None)
    if base:
        raise OptionError(f"{path} has class names, not numbers, so none of them counts from {base} (labels-from)")
    return _named(path, words)


def _named(path: str, words: dict[bytes, bytes]) -> LabelList:
    try:
        classes: Sequence[str] = sorted({word.decode() for word in words.values()})
    except UnicodeDecodeError:
        raise SourceError(f"{path} has class names that are not UTF-8") from None
    if len(classes) > MAX_CLASSES or max(map(len, classes)) > MAX_CLASS_NAME:
        raise SourceError(f"{path} has {len(classes)} class names, or one too long: is it the list of labels?")
    numbers = {name.encode(): number for number, name in enumerate(classes)}
    return LabelList({key: numbers[word] for key, word in words.items()}, tuple(classes))
