"""Options for files of other programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from iofast.errors import ContainerError, OptionError
from iofast.record import JSON_FIELD, LABEL_FIELD, check_field

ROLES = ("image", "label", "path")  # parts of every record; any other name is a field
IMAGES = ("jpg", "png", "webp", "rgb")


@dataclass(frozen=True, slots=True)
class ForeignOptions:
    """The meaning of files of another program that differ from the usual conventions (docs/format.md).

    `names` maps `image`, `label`, `path` or a field of the records to its name in the files, that of a TFRecord feature
    or of a tar member without its key: `{"image": "foto", "seg.png": "mask/encoded"}`. In tar shards the label may also
    be a member of a JSON field: `{"label": "json/category"}`.

    `label_base` is the number of the first class: 1 if 0 means background, as in ImageNet's converters. Raises
    `OptionError` for other values.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    label_base: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.names, Mapping) or not all(
            isinstance(word, str) and word for pair in self.names.items() for word in pair
        ):
            raise OptionError(f"names must be a mapping of names to names, found {self.names!r:.80}")
        object.__setattr__(self, "names", dict(self.names))
        for name in self.fields:
            if name in (*IMAGES, LABEL_FIELD, JSON_FIELD):
                raise OptionError(f"names: expected {', '.join(ROLES)} or a further field, found {name!r}")
            try:
                check_field(name)
            except ContainerError as error:
                raise OptionError(f"names: {error}") from None
        if self.label_base not in (0, 1):
            raise OptionError(f"label_base must be 0 or 1, found {self.label_base!r}")

    @property
    def fields(self) -> dict[str, str]:
        """The names of further fields."""
        return {name: theirs for name, theirs in sorted(self.names.items()) if name not in ROLES}

    @classmethod
    def of(cls, given: Self | Mapping[str, Any] | None) -> Self:
        """Make options from options, a mapping of their names, or None."""
        if isinstance(given, cls):
            return given
        known = ["names", "label_base"]
        if given is not None and not (isinstance(given, Mapping) and set(given) <= set(known)):
            raise OptionError(f"foreign must be ForeignOptions, or a mapping with {', '.join(known)}, found {given!r}")
        return cls(**(given or {}))

    def identity(self) -> bytes:
        """Bytes that differ for different options; they are part of a cached index's name."""
        return repr((sorted(self.names.items()), self.label_base)).encode()
