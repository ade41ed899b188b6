"""The options of a source, which are options of packing, too. Every start of the command line imports this module."""

from collections.abc import Sequence
from dataclasses import dataclass

from iofast.option import CLASS_ORDERS, check_choice, flag


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a source is read. Raises `OptionError` for an unknown `class_order`.

    `class_order`: `lexicographic` numbers class folders as torchvision's ImageFolder does, `natural` puts 9 before 10,
    `file` takes the order of `classes.txt` in the root (beside a manifest), one class per line. None as a column means
    the usual names (docs/pack.md). Names are a list or one text with commas.
    """

    class_order: str = flag("lexicographic", "lexicographic (the default), natural or file", "ORDER")
    fields: str | Sequence[str] = flag(
        (),
        "files beside a.jpg that belong to it: seg.png,txt for a.seg.png and a.txt; of a container, its fields",
        "SUFFIXES",
    )
    path_column: str | None = flag(None, "the manifest's column of paths", "NAME")
    label_column: str | None = flag(None, "the manifest's column of labels", "NAME")
    split_column: str | None = flag(None, "the manifest's column of splits", "NAME")
    mask_column: str | Sequence[str] = flag((), "the manifest's column of mask files, which follow the image", "NAME")
    file_column: str | Sequence[str] = flag((), "the manifest's column of other files, stored as they are", "NAME")

    def __post_init__(self) -> None:
        check_choice("class_order", self.class_order, CLASS_ORDERS)

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        single = (self.path_column, self.label_column, self.split_column)
        return [*filter(None, single), *names_of(self.mask_column), *names_of(self.file_column)]


def names_of(value: str | Sequence[str]) -> tuple[str, ...]:
    """Names from a list, or from one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(part.strip() for part in parts if part.strip())
