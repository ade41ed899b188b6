"""List the images to pack, in packing order: from a folder, a manifest, a container or an object store."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast.containers import located
from iofast.containers.base import Reader
from iofast.containers.columns import ABSENT
from iofast.containers.joined import containers_of
from iofast.containers.manifest import MAX_FIELDS
from iofast.containers.publish import Target
from iofast.containers.targets import require_elsewhere, state_of
from iofast.errors import OptionError, SourceError, SourceMissingError
from iofast.opening import is_container, not_foreign, open_sources
from iofast.packing.options import PackOptions
from iofast.packing.origin import OTHER_IMAGES
from iofast.packing.report import read_lines
from iofast.packing.splits import divide
from iofast.record import IMAGE_FIELDS, JSON_FIELD, LABEL_FIELD, PICKLED, RAW_FIELDS, is_stored
from iofast.remote.urls import is_url, require_text
from iofast.source import SourceOptions
from iofast.source.arrays import Strings, StringsWriter, steps
from iofast.source.attached import parse_sides, plain_suffix, side_field
from iofast.source.listing import ContainerRows, Listing, Watched, few, printable, ranges, split_rank
from iofast.source.scan import scan


def listed(sources: Sequence[str], options: PackOptions, target: Target) -> Listing:
    """The images in packing order. Raises `SourceError`, `ContainerError`, `OptionError`, `StorageError`.

    Several sources are one after another in each split, as records, with classes united by their names.
    """
    source = sources[0]
    require_text(source)
    if len(sources) > 1 or (not is_url(source) and is_container(source)):
        images = _records(sources, options, target)
    elif options.foreign is not None:
        raise not_foreign(source)
    else:
        images = scan(source, options)
    shares = options.shares()
    if shares is not None:
        images = divide(images, shares, options.split_seed or 0)
    images = images if options.shuffle is None else images.shuffled(options.shuffle)
    return images if options.only is None else _only(images, Path(options.only))


def _only(images: Listing, file: Path) -> Listing:
    """The images in a list of failed ones. Raises `SourceError` if none of them is in the source."""
    if not file.exists():
        raise SourceMissingError(f"the list {file} does not exist")
    wanted = {str(line["path"]) for line in read_lines(file) if "path" in line}
    found = images.only(wanted)
    if not len(found):
        raise SourceError(f"none of the {len(wanted):,} images in the list {file} is in {images.root}")
    if not (missing := len(wanted) - len(found)):
        return found
    return replace(found, warnings=(*found.warnings, f"{missing:,} images of {file} are no longer in {images.root}"))


def _records(sources: Sequence[str], options: PackOptions, target: Target) -> Listing:
    """The records of containers; their keys are the paths."""
    with open_sources(sources, options.foreign, unite=True) as reader:
        for each, source in containers_of(reader, sources[0]):
            require_elsewhere(each, source, target)
        _check_options(reader, ", ".join(sources), options)
        keys, labels, sizes = _columns(reader)
        fields = _fields(reader, options, unlabelled=bool((labels < 0).any()))
        splits, order = _splits(reader)
        return Listing(
            root=Path(os.path.abspath(sources[0])),
            kind="records",
            classes=reader.manifest.classes,
            splits=splits,
            paths=keys,
            listed_labels=labels,
            watched=Watched(Strings.gather(()), np.zeros(0, np.int64)),
            class_order=reader.manifest.class_order,
            order=order,
            container=ContainerRows(fields, _upright(reader, fields), state_of(reader, sources[0]), sizes),
            warnings=warnings_of(reader),
        )


def warnings_of(reader: Reader) -> tuple[str, ...]:
    """What is in no packed record, in words."""
    lines = []
    for name in reader.manifest.fields:
        if not is_stored(name):
            number = sum(_having(reader, name, part) for part in located.steps(0, len(reader)))
            pickled = name.rpartition(".")[2] in PICKLED
            why = "is pickled data, which is never stored or loaded" if pickled else "is not a legal name"
            lines.append(f"field {name!r} of {number:,} records {why}: left out")
    return (*reader.left_out, *lines)


def _having(reader: Reader, name: str, indices: NDArray[np.int64]) -> int:
    """How many of these records have the field."""
    try:
        return int((reader.locate(indices, name).file != ABSENT).sum())
    except KeyError:  # in no file
        return sum(value is not None for value in reader.values(indices, name))


def _check_options(reader: Reader, name: str, options: PackOptions) -> None:
    """Raise `SourceError` for an empty container, `OptionError` for options that do not apply to it."""
    manifest = reader.manifest
    if not len(reader):
        raise SourceError(f"{name} contains no record")
    if options.columns:
        raise OptionError(f"columns are a manifest's, found the container {name} and the column {options.columns[0]!r}")
    if options.class_order not in ("lexicographic", manifest.class_order):
        raise OptionError(
            f"class_order {options.class_order} is for folders and manifests: the classes of {name} have numbers "
            "already"
        )
    raw = [field for field in RAW_FIELDS if field in manifest.fields]
    if raw and options.recipe().format == "keep":
        raise OptionError(f"{name} contains raw pixels ({raw[0]}), which cannot be kept: choose another format")


def _columns(reader: Reader) -> tuple[Strings, NDArray[np.int32], NDArray[np.uint64]]:
    """Keys of all records, their labels (int32), and the bytes of their images (uint64)."""
    keys, labels, sizes = StringsWriter(), np.empty(len(reader), np.int32), np.empty(len(reader), np.uint64)
    for rows in steps(len(reader)):
        part = reader.columns(np.arange(rows.start, rows.stop, dtype=np.int64))
        labels[rows], sizes[rows] = part.label, part.length
        for key in reader.keys(part):
            keys.add(os.fsencode(printable(key)))
    return keys.finish(), labels, sizes


def _fields(reader: Reader, options: SourceOptions, *, unlabelled: bool) -> dict[str, str]:
    """Map fields of the records to the fields that they become: those that `--fields` names, or all."""
    there = reader.manifest.fields
    sides = parse_sides(options.fields)
    if sides:
        named = {plain_suffix(suffix): field for field, suffix in sides.items()}
        if missing := [name for name in named if name not in there]:
            raise OptionError(f"fields: {missing[0]!r} is not a field of the records, which have {few(there, 20)}")
        return named
    images = [name for name in (*IMAGE_FIELDS, *RAW_FIELDS, *OTHER_IMAGES) if name in there]
    # In records that have the first of these, it is the image, and the others are masks beside it.
    beside = [name for name in there if is_stored(name) and name not in (*images[:1], *RAW_FIELDS, LABEL_FIELD)]
    fields = {name: side_field(name, name) for name in beside}
    if fields.get(JSON_FIELD) in there:
        free = (f"meta{number}.json" for number in range(2, MAX_FIELDS + 3))
        fields[JSON_FIELD] = next(name for name in free if name not in there)
    if LABEL_FIELD in there and unlabelled and not reader.is_ours and "cls.txt" not in there:
        fields[LABEL_FIELD] = "cls.txt"  # for records whose label is a name, or several, instead of a class index
    return fields


def _upright(reader: Reader, fields: Mapping[str, str]) -> tuple[str, ...]:
    """Fields, by their new names, that an earlier packing has turned upright: masks, and its boxes and keypoints."""
    recipes: list[Mapping[str, Any]] = [each.manifest.recipe for each, _ in containers_of(reader)]
    if not reader.is_ours or not all("format" in each for each in recipes):  # not packed
        return ()
    moved = set.intersection(*({each.get("boxes"), each.get("keypoints")} for each in recipes))
    return tuple(goal for name, goal in fields.items() if name.endswith(".png") or name in moved)


def _splits(reader: Reader) -> tuple[tuple[tuple[str, int, int], ...], NDArray[np.int64] | None]:
    """Split ranges in packing order, and the record at each position if that order differs from the container's."""
    splits = reader.manifest.splits
    names = sorted(splits, key=split_rank)
    sizes = {name: sum(stop - start for start, stop in splits[name]) for name in names}
    spans = [span for name in names for span in splits[name]]
    found = ranges((name, size) for name, size in sizes.items() if size)
    if spans == sorted(spans):
        return found, None
    return found, np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
