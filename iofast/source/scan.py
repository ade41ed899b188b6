"""`scan`: list the images of a folder (class folders, flat, or nested splits) or of a manifest file."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from iofast.containers.container_suffixes import OPENED, TAR, TFRECORD
from iofast.containers.manifest import WHOLE
from iofast.errors import OptionError, SourceError, SourceMissingError
from iofast.remote.urls import RemotePath, is_url
from iofast.source.arrays import Strings
from iofast.source.attached import attach, parse_sides
from iofast.source.classes import CLASS_FILE, check_distinct, order_classes
from iofast.source.listing import SPLIT_ORDER, Source, SourceOptions, few, ranges, split_rank
from iofast.source.manifest_file import SUFFIXES, read_manifest
from iofast.source.metadata import Metadata, usable
from iofast.source.suffixes import EXTENSIONS
from iofast.source.walk import Ancestors, Folder, FoundImages, LocalTree, SourceTree, Walk

# Folders that are parts of a data set and no classes, in lower case: those of VOC, YOLO, Cityscapes and the like.
PART_FOLDERS = (
    *("image", "images", "img", "imgs", "jpegimages", "leftimg8bit", "annotations", "gtfine", "labels", "masks"),
    *("segmentationclass", "segmentationclassaug", "segmentationobject"),
)


class SplitImages(NamedTuple):
    """One split: its images by class folder; those of a flat folder have the class ""."""

    split: str
    groups: dict[str, FoundImages]

    @property
    def total(self) -> int:
        return sum(images.total for images in self.groups.values())


@dataclass(slots=True)
class _Scan:
    """One scan of a folder, with its warnings so far. `beside`: the folder that may contain a file of classes."""

    root: Path | str
    beside: Path
    options: SourceOptions
    walk: Walk
    warnings: list[str] = field(default_factory=list)


def scan(root: str | os.PathLike[str], options: SourceOptions | None = None) -> Source:
    """List the images of a folder or of a manifest file (.csv, .tsv, .jsonl, .parquet). Raises `SourceError`.

    Subfolders are splits if all that have images are named train, val, valid, validation or test. Each split, or else
    the folder itself, has class folders, or is flat: images without classes. No image is decoded. `root` may be a URL:
    a prefix in an object store counts as a folder. Then `StorageError` may be raised, too.
    """
    options = options or SourceOptions()
    if is_url(root):
        return _scan_url(os.fspath(root), options)
    path = Path(os.path.abspath(root))
    if path.is_dir():
        return _scan_tree(LocalTree(path), path, options)
    _check_suffix(path)
    if not path.exists():
        raise SourceMissingError(f"source not found: {path}")
    if path.suffix.lower() in SUFFIXES:
        return read_manifest(path, options)
    raise SourceError(f"source {path} is neither a folder nor a manifest ({', '.join(SUFFIXES)})")


def _scan_url(url: str, options: SourceOptions) -> Source:
    from iofast.source.objects import ObjectTree, copies  # here: local sources need no object stores

    place = RemotePath.of(url)
    name = posixpath.basename(place.key)
    if name.lower().endswith(SUFFIXES):
        with copies(posixpath.dirname(str(place)), [name], optional=[CLASS_FILE]) as folder:
            return read_manifest(folder / name, options, posixpath.dirname(str(place)))
    _check_suffix(place)
    with copies(str(place), [], optional=[CLASS_FILE] if options.class_order == "file" else []) as folder:
        return _scan_tree(ObjectTree(str(place)), folder, options)


def _check_suffix(place: Path | RemotePath) -> None:
    """Raise `SourceError` for a container."""
    if os.path.splitext(str(place))[1].lower() in OPENED:
        reason = "copy it to this machine first" if isinstance(place, RemotePath) else "open_reader opens it"
        raise SourceError(
            f"source {place} is a container, expected a folder or a manifest ({', '.join(SUFFIXES)}): {reason}"
        )


def _scan_tree(tree: SourceTree, beside: Path, options: SourceOptions) -> Source:
    root = tree.root
    sides = parse_sides(options.fields)
    suffixes = [side.suffix for side in sides]
    scan = _Scan(root, beside, options, Walk(tree, sides={suffix: {} for suffix in suffixes}))
    splits = list(_splits(scan))
    if not any(part.total for part in splits):  # beside other images, `.npy` files are features, masks or depths
        scan = _Scan(root, beside, options, Walk(tree, arrays=True, sides={suffix: {} for suffix in suffixes}))
        splits = list(_splits(scan))
    parts = [part for part in splits if part.total]
    if not parts:
        shards = next((suffix for suffix in (TAR, *TFRECORD) if suffix in scan.walk.unusual.other), None)
        hint = "" if shards is None else f"; a pattern names shards: '{root}/*{shards}'"
        raise SourceError(f"no images in {root}: looked for {' '.join(EXTENSIONS)}, found {scan.walk.found()}{hint}")
    if len(parts) < len(splits):
        scan.warnings.append(f"splits without images left out: {few(part.split for part in splits if not part.total)}")
    if (described := _described(scan, parts)) is not None:
        return described
    if options.mask_columns or options.file_columns:
        raise OptionError(
            f"mask and file columns are a manifest's, found the folder {root}: name suffixes with fields="
        )
    if column := options.path_column or options.label_column or options.split_column:
        raise OptionError(f"columns are a manifest's, found the folder {root} and the column {column!r}")
    classes = _classes(scan, parts)
    numbers = {"": -1} | {name: label for label, name in enumerate(classes or ())}
    groups = [(label, part.groups[name]) for part in parts for name, label in numbers.items() if name in part.groups]
    paths = Strings.split(b"".join(images.blob for _, images in groups))
    labels = np.array([label for label, _ in groups], np.int32)
    columns, attached = attach(paths, sides, scan.walk.sides)
    return Source(
        root=root,
        kind="flat" if classes is None else "classes",
        classes=None if classes is None else check_distinct(classes, root),
        splits=ranges((part.split, part.total) for part in parts),
        paths=paths,
        listed_labels=np.repeat(labels, [images.total for _, images in groups]),
        watched=scan.walk.watched(),
        class_order=options.class_order,
        columns=columns,
        objects=tree.versions(paths, columns),
        warnings=(*scan.warnings, *scan.walk.warnings(), *attached),
        notes=tuple(scan.walk.notes()),
    )


def _described(scan: _Scan, parts: list[SplitImages]) -> Source | None:
    """The images with what metadata files say about them, None without such files. Raises `SourceError`."""
    names = sorted(scan.walk.metadata)
    splits = [part.split for part in parts if part.split != WHOLE]
    labelled = any(set(part.groups) - {""} for part in parts)
    is_local = isinstance(scan.root, Path) and not scan.options.fields
    used = usable(scan.beside, names, splits, scan.options, labelled=labelled) if is_local else []
    if unused := [name for name in names if name not in used]:
        scan.walk.lines.append(f"metadata files not read (pack one itself to use it as a list): {few(unused)}")
    if not used:
        return None
    walk = Walk(scan.walk.tree, arrays=scan.walk.arrays, lines=scan.walk.lines)  # again: folders are no classes here
    images = b"".join(walk.images(place, ()).blob for place in splits or [""])
    for name in ("", *used, *([CLASS_FILE] if scan.options.class_order == "file" else [])):
        walk.watch(scan.beside / name)
    source = Metadata(scan.beside, used, images, bool(splits)).read(scan.options)
    warnings = (*source.warnings, *walk.warnings())
    return replace(source, watched=walk.watched(), warnings=warnings, notes=tuple(walk.notes()))


def _splits(scan: _Scan) -> Iterator[SplitImages]:
    top = _listed(scan, "", ())
    splits = [name for name in top.folders if name in SPLIT_ORDER]
    others = [name for name in top.folders if name not in SPLIT_ORDER]
    if alike := [name for name in others if name.lower() in SPLIT_ORDER]:
        scan.warnings.append(f"folders {few(alike)} taken as classes: splits are written in lower case")
    beside = {name: scan.walk.images(name, top.ancestors) for name in others} if splits else {}
    if not splits or any(images.total for images in beside.values()):
        groups = _groups(scan, "", top, beside)
        _check_mixed(scan, [name for name, images in groups.items() if images.total])
        yield SplitImages(WHOLE, groups)
        return
    if beside:
        scan.warnings.append(f"folders without images beside the splits {few(splits)} left out: {few(beside)}")
    if top.images:
        scan.warnings.append(f"images beside the splits {few(splits)} left out: {len(top.images):,}")
    for name in sorted(splits, key=split_rank):
        yield SplitImages(name, _groups(scan, name, _listed(scan, name, top.ancestors), {}))


def _check_mixed(scan: _Scan, classes: list[str]) -> None:
    """Warn about a class folder with the name of a split, since it may be one. Raises `SourceError` for several."""
    splits = [name for name in classes if name in SPLIT_ORDER]
    others = [name for name in classes if name not in SPLIT_ORDER]
    if len(splits) > 1:
        raise SourceError(
            f"folders of images beside splits: expected only splits or only classes, found the splits {few(splits)}, "
            f"and {few(others)} ({scan.root}); move the others away, pack the folder of one split, or name paths and "
            "splits in a manifest (--split-column)"
        )
    if splits:
        scan.warnings.append(
            f"folder {few(splits)} taken as a class, not as a split: images are in {few(others)} beside it, too"
        )


def _listed(scan: _Scan, prefix: str, ancestors: Ancestors) -> Folder:
    folder = scan.walk.folder(prefix, ancestors)
    if folder is None:
        raise SourceError(f"{os.path.join(scan.root, prefix)} is a link to a folder above it")
    return folder


def _groups(scan: _Scan, prefix: str, folder: Folder, known: dict[str, FoundImages]) -> dict[str, FoundImages]:
    """The images of one split by class folder, or all under "" without class folders. `known` need no listing."""
    loose = FoundImages.of(prefix, folder.images)
    groups = {
        name: known[name]
        if name in known
        else scan.walk.images(f"{prefix}/{name}" if prefix else name, folder.ancestors)
        for name in folder.folders
    }
    where = f"{prefix}/" if prefix else "the root"
    if any(images.total for images in groups.values()):
        if loose.total:
            scan.warnings.append(f"images in {where} beside class folders left out: {loose.total:,}")
        return groups
    if groups and loose.total:
        scan.warnings.append(f"images in {where} taken as a flat folder: no image in subfolders {few(groups)}")
    return {"": loose} if loose.total or not groups else groups


def _classes(scan: _Scan, parts: list[SplitImages]) -> list[str] | None:
    """The class folders of all splits in order, None if all splits are flat."""
    names = {name for part in parts for name in part.groups} - {""}
    if not names:
        if scan.options.class_order == "file":
            raise SourceError(f"class order 'file' needs class folders to match {CLASS_FILE}: {scan.root} has none")
        return None
    if scan.options.class_order == "file":
        scan.walk.watch(scan.beside / CLASS_FILE)
    ordered, warnings = order_classes(names, scan.options.class_order, scan.beside)
    scan.warnings += warnings
    filled = {name for part in parts for name, images in part.groups.items() if images.total}
    if parts_of_it := sorted(name for name in filled if name.lower() in PART_FOLDERS):
        scan.warnings.append(
            f"folders {few(parts_of_it)} taken as classes, though such folders usually have the images and the masks "
            "of one data set: pack the folder of images alone, or a list of paths, labels and masks (--mask-column)"
        )
    if names - filled:
        scan.warnings.append(f"class folders without images: {few(sorted(names - filled))} (their numbers are kept)")
    if parts[0].split == "train" and "" not in parts[0].groups and (unseen := names - set(parts[0].groups)):
        scan.warnings.append(f"classes that 'train' lacks: {few(sorted(unseen))}")
    return ordered
