"""`scan`: list the images of a folder (class folders, flat, or nested splits) or of a manifest file."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iofast.containers.container_suffixes import LMDB, OPENED, TAR, TFRECORD
from iofast.containers.manifest import WHOLE
from iofast.containers.tfrecord import is_named_so
from iofast.errors import OptionError, SourceError, SourceMissingError
from iofast.remote.urls import RemotePath, is_url
from iofast.source.arrays import Strings
from iofast.source.attached import attach, parse_sides
from iofast.source.classes import CLASS_FILE, check_distinct, order_classes
from iofast.source.listing import SPLIT_ORDER, Listing, few, ranges, split_rank
from iofast.source.manifest_file import SUFFIXES, read_manifest, read_metadata, usable
from iofast.source.options import SourceOptions
from iofast.source.suffixes import EXTENSIONS
from iofast.source.walk import Groups, LocalTree, Walk

if TYPE_CHECKING:
    from iofast.source.objects import ObjectTree

# Folders that are parts of a data set and no classes, in lower case: those of VOC, YOLO, Cityscapes and the like.
PART_FOLDERS = (
    *("image", "images", "img", "imgs", "jpegimages", "leftimg8bit", "annotations", "gtfine", "labels", "masks"),
    *("segmentationclass", "segmentationclassaug", "segmentationobject"),
)


_NUMBERS = re.compile("[0-9]+(?=-of-[0-9])|(?<=-of-)[0-9]+")  # in the name of a shard: train-00000-of-01024


@dataclass(slots=True)
class _Scan:
    """One scan of a folder, with its warnings so far. `beside`: the folder that may contain a file of classes."""

    tree: LocalTree | ObjectTree
    beside: Path
    options: SourceOptions
    walk: Walk = field(init=False)
    warnings: list[str] = field(init=False)

    def source(self) -> Listing:
        """The listing. Raises `SourceError`, `OptionError`."""
        root, options, sides = self.tree.root, self.options, parse_sides(self.options.fields)
        found = self._splits([*sides.values()])
        if not any(self.walk.folders.values()):  # beside other images, `.npy` files are features, masks or depths
            found = self._splits([*sides.values()], arrays=True)
        splits = {split: groups for split, groups in found.items() if _count(*groups.values())}
        if not splits:
            raise SourceError(f"no images in {root}: looked for {' '.join(EXTENSIONS)}, found {self._nothing()}")
        if empty := [split for split in found if split not in splits]:
            self.warnings.append(f"splits without images left out: {few(empty)}")
        if (described := self._described(splits)) is not None:
            return described
        if options.columns:
            raise OptionError(
                f"columns are a manifest's, found the folder {root} and the column {options.columns[0]!r}: name the "
                "suffixes of files beside images with fields="
            )
        classes = self._classes(splits)
        numbers = {"": -1} | {name: label for label, name in enumerate(classes or ())}
        parts = [(label, own[name]) for own in splits.values() for name, label in numbers.items() if name in own]
        paths = Strings.split(b"".join(images for _, own in parts for images in own))
        columns, attached = attach(paths, sides, self.walk.sides)
        return Listing(
            root=root,
            kind="flat" if classes is None else "classes",
            classes=None if classes is None else check_distinct(classes, root),
            splits=ranges((split, _count(*groups.values())) for split, groups in splits.items()),
            paths=paths,
            listed_labels=np.repeat(
                np.array([label for label, _ in parts], np.int32), [_count(own) for _, own in parts]
            ),
            watched=self.walk.watched(),
            class_order=options.class_order,
            columns=columns,
            objects=None if isinstance(self.tree, LocalTree) else self.tree.versions(paths, columns),
            warnings=(*self.warnings, *self.walk.warnings(), *attached),
            notes=tuple(self.walk.notes()),
        )

    def _nothing(self) -> str:
        """What a tree without images has, and how to open containers in it."""
        hint = ""
        for suffix, paths in self.walk.other.examples.items():
            folder, name = os.path.split(os.path.join(self.tree.root, paths[0]))
            if suffix in (*TAR, *TFRECORD):
                hint = f"; a pattern names shards: '{folder}/*{suffix}'"
            elif is_named_so(name.lower()):
                hint = f"; a pattern names shards: '{folder}/{_NUMBERS.sub('*', name)}'"
            elif suffix == LMDB:
                hint = f"; name the container itself: {folder}/{name}"
        return self.walk.found() + hint

    def _described(self, found: dict[str, Groups]) -> Listing | None:
        """The images with what metadata files say about them, None without such files. Raises `SourceError`."""
        names, splits = sorted(self.walk.metadata), [split for split in found if split != WHOLE]
        labelled = any(set(groups) - {""} for groups in found.values())
        is_local = isinstance(self.tree.root, Path) and not self.options.fields
        used = usable(self.beside, names, splits, self.options, labelled=labelled) if is_local else []
        if unused := [name for name in names if name not in used]:
            self.walk.lines.append(f"metadata files not read (pack one itself to use it as a list): {few(unused)}")
        if not used:
            return None
        below = tuple(f"{split}/" for split in splits) or ("",)
        images = b"".join(images for place, images in self.walk.folders.items() if f"{place}/".startswith(below))
        for name in (*used, *([CLASS_FILE] if self.options.class_order == "file" else [])):
            self.walk.watch(self.beside / name)
        source = read_metadata(self.beside, used, images, self.options, splits=bool(splits))
        warnings = (*source.warnings, *self.walk.warnings())
        return replace(source, watched=self.walk.watched(), warnings=warnings, notes=tuple(self.walk.notes()))

    def _splits(self, suffixes: Sequence[str], *, arrays: bool = False) -> dict[str, Groups]:
        """Walk the tree: the images of each split by class folder; `WHOLE` without splits."""
        self.walk, self.warnings = Walk(self.tree, suffixes, arrays), []
        top = self.walk.groups()
        splits = [name for name in top if name in SPLIT_ORDER]
        others = [name for name in top if name and name not in SPLIT_ORDER]
        if alike := [name for name in others if name.lower() in SPLIT_ORDER]:
            self.warnings.append(f"folders {few(alike)} taken as classes: splits are written in lower case")
        if not splits or _count(*(top[name] for name in others)):
            groups = self._groups("", top)
            self._check_mixed([name for name, images in groups.items() if _count(images)])
            return {WHOLE: groups}
        if others:
            self.warnings.append(f"folders without images beside the splits {few(splits)} left out: {few(others)}")
        if loose := _count(top[""]):
            self.warnings.append(f"images beside the splits {few(splits)} left out: {loose:,}")
        return {name: self._groups(name, self.walk.groups(name)) for name in sorted(splits, key=split_rank)}

    def _check_mixed(self, classes: list[str]) -> None:
        """Warn about a class folder with the name of a split, since it may be one. Raises `SourceError` for several."""
        splits = [name for name in classes if name in SPLIT_ORDER]
        others = [name for name in classes if name not in SPLIT_ORDER]
        if len(splits) > 1:
            raise SourceError(
                f"folders of images beside splits: expected only splits or only classes, found the splits "
                f"{few(splits)}, and {few(others)} ({self.tree.root}); move the others away, pack the folder of one "
                "split, or name paths and splits in a manifest (--split-column)"
            )
        if splits:
            self.warnings.append(
                f"folder {few(splits)} taken as a class, not as a split: images are in {few(others)} beside it, too"
            )

    def _groups(self, prefix: str, groups: Groups) -> Groups:
        """The images of one split by class folder, or all under "" without class folders."""
        loose, where = groups.pop(""), f"{prefix}/" if prefix else "the root"
        count = _count(loose)
        if _count(*groups.values()):
            if count:
                self.warnings.append(f"images in {where} beside class folders left out: {count:,}")
            return groups
        if groups and count:
            self.warnings.append(f"images in {where} taken as a flat folder: no image in subfolders {few(groups)}")
        return {"": loose} if count or not groups else groups

    def _classes(self, found: dict[str, Groups]) -> list[str] | None:
        """The class folders of all splits in order, None if all splits are flat."""
        names = {name for groups in found.values() for name in groups} - {""}
        if not names:
            if self.options.class_order == "file":
                raise SourceError(
                    f"class order 'file' needs class folders to match {CLASS_FILE}: {self.tree.root} has none"
                )
            return None
        if self.options.class_order == "file":
            self.walk.watch(self.beside / CLASS_FILE)
        ordered, warnings = order_classes(names, self.options.class_order, self.beside)
        self.warnings += warnings
        filled = {name for groups in found.values() for name, images in groups.items() if _count(images)}
        if parts := sorted(name for name in filled if name.lower() in PART_FOLDERS):
            self.warnings.append(
                f"folders {few(parts)} taken as classes, though such folders usually have the images and the masks "
                "of one data set: pack the folder of images alone, or a list of paths, labels and masks (--mask-column)"
            )
        if names - filled:
            self.warnings.append(
                f"class folders without images: {few(sorted(names - filled))} (their numbers are kept)"
            )
        first, groups = next(iter(found.items()))
        if first == "train" and "" not in groups and (unseen := names - set(groups)):
            self.warnings.append(f"classes that 'train' lacks: {few(sorted(unseen))}")
        return ordered


def _count(*groups: list[bytes]) -> int:
    """The number of images in groups."""
    return sum(images.count(0) for group in groups for images in group)


def scan(root: str | os.PathLike[str], options: SourceOptions | None = None) -> Listing:
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
    packed = "; unpack the archive first" if path.suffix.lower() in (".zip", ".rar", ".7z") else ""
    raise SourceError(f"source {path} is neither a folder nor a manifest ({', '.join(SUFFIXES)}){packed}")


def _scan_url(url: str, options: SourceOptions) -> Listing:
    from iofast.source.objects import ObjectTree, copies  # here: local sources need no object stores

    place = RemotePath.of(url)
    name = posixpath.basename(place.key)
    if name.lower().endswith(SUFFIXES):
        with copies(posixpath.dirname(str(place)), [name], optional=[CLASS_FILE]) as folder:
            return read_manifest(folder / name, options, posixpath.dirname(str(place)))
    _check_suffix(place)
    with copies(str(place), [], optional=[CLASS_FILE] if options.class_order == "file" else []) as folder:
        return _scan_tree(ObjectTree(str(place)), folder, options)


def _scan_tree(tree: LocalTree | ObjectTree, beside: Path, options: SourceOptions) -> Listing:
    return _Scan(tree, beside, options).source()


def _check_suffix(place: Path | RemotePath) -> None:
    """Raise `SourceError` for a container."""
    if os.path.splitext(str(place))[1].lower() in OPENED:
        reason = "copy it to this machine first" if isinstance(place, RemotePath) else "open_reader opens it"
        raise SourceError(
            f"source {place} is a container, expected a folder or a manifest ({', '.join(SUFFIXES)}): {reason}"
        )
