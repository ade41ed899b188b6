"""Files beside the image of a sample: in folders found by their names, in manifests named by columns."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from iofast.errors import ContainerError, OptionError
from iofast.record import IMAGE_FIELDS, JSON_FIELD, LABEL_FIELD, RAW_FIELDS, check_field
from iofast.source.arrays import Strings
from iofast.source.listing import FILE, MISSING, Column, few
from iofast.source.options import names_of

_IMAGES = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif", "webp", "ppm", "pgm")
_OWN = {JSON_FIELD: "meta.json", **dict.fromkeys(_IMAGES, "mask.png")}  # packing itself writes these plain names
_TAKEN = (*IMAGE_FIELDS, *RAW_FIELDS, JSON_FIELD, LABEL_FIELD)


def parse_sides(fields: str | Sequence[str]) -> dict[str, str]:
    """Parse the option `fields`: `txt`, `seg.png`, `_mask.gif`, `json=boxes.json` (a suffix, then the field's name).

    Returns the suffix of each field: the files `<stem><suffix>` beside images `<stem>.jpg`. One that begins with a
    letter or digit gets a dot before it. Raises `OptionError`.
    """
    sides: dict[str, str] = {}
    for text in names_of(fields):
        suffix, _, named = text.partition("=")
        if not suffix or "/" in suffix:
            raise OptionError(f"fields must be suffixes of files such as seg.png or txt, found {text!r}")
        field = field_name(named, text) if named else side_field(plain_suffix(suffix), text)
        if field in sides:
            raise OptionError(f"fields: {text!r} would become the field {field!r}, as one before it")
        sides[field] = ("." if suffix[0].isalnum() else "") + suffix
    return sides


def plain_suffix(suffix: str) -> str:
    """A suffix without leading dots and the like, as a field name."""
    return suffix.lstrip("._- ").lower()


def side_field(plain: str, text: str) -> str:
    """The field for files beside an image whose plain suffix is `plain`. Raises `OptionError` as `field_name` does."""
    return field_name(_OWN.get(plain, plain), text)


def field_name(wanted: str, text: str) -> str:
    """The field for files with the suffix `wanted`; image files become `.png`, since masks are stored as PNG.

    Raises `OptionError`, which quotes `text`, for names that are not allowed.
    """
    name = wanted.lower()
    stem, _, kind = name.rpartition(".")
    if stem and kind in _IMAGES:
        name = f"{stem}.png"
    try:
        check_field(name)
    except ContainerError as error:
        raise OptionError(f"fields: {text!r}: {error}") from None
    if name in _TAKEN:
        label = "; labels come from class folders or a manifest" if name == LABEL_FIELD else ""
        raise OptionError(f"fields: {text!r} would become the field {name!r}, which packing writes itself{label}")
    return name


def attach(
    paths: Strings, sides: Mapping[str, str], found: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[Column, ...], list[str]]:
    """Return warnings and, for each of `sides` (see `parse_sides`), a column with each image's file.

    `found` maps a suffix to its files: path without the suffix to the suffix as written.
    """
    columns, warnings = [], []
    stems = [os.path.splitext(os.fsdecode(path))[0] for path in paths]
    for field, suffix in sides.items():
        files = found[suffix]
        written = [files.get(stem) for stem in stems]
        if missing := written.count(None):
            warnings.append(f"images without a file {suffix!r}: {missing:,} of {len(stems):,}")
        if lone := set(files).difference(stems):
            warnings.append(f"files {suffix!r} without an image left out: {len(lone):,} ({few(sorted(lone), 3)})")
        names = ("" if end is None else stem + end for stem, end in zip(stems, written, strict=True))
        states = np.array([MISSING if end is None else FILE for end in written], np.uint8)
        columns.append(Column(field, Strings.gather(map(os.fsencode, names)), states))
    return tuple(columns), warnings
