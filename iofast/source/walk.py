"""Walk a tree of images in torchvision's order, and count the files that are left out.

The order inside a class is that of `sorted(os.walk(folder, followlinks=True))` with sorted file names: folders by their
whole path as text, so that `b-c` comes before `b/d`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iofast.errors import SourceError
from iofast.source.arrays import Strings
from iofast.source.image_files import beginning
from iofast.source.listing import Watched, few
from iofast.source.suffixes import DECODED, EXTENSIONS, Files, formats

if TYPE_CHECKING:
    from iofast.source.objects import ObjectTree

# Made by systems, not by people, in lower case: thumbnails, resource forks and deleted files under the images' names.
IGNORED_FOLDERS = frozenset(
    (
        *("__macosx", "network trash folder", "temporary items", "thevolumesettingsfolder"),  # macOS, its ZIP files
        *("$recycle.bin", "recycler", "system volume information", "found.000", "lost+found"),  # Windows, ext4
        *("@eadir", "@tmp", "@sharebin", "@sharesnap", "#recycle", "#snapshot"),  # Synology
        *("@recycle", "@recently-snapshot", "@transcode", "~snapshot"),  # QNAP, NetApp
    )
)

Groups = dict[str, list[bytes]]  # folder -> images in and below it, by folder; each path is followed by a NUL

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # see `source.manifest_file`


@dataclass(frozen=True, slots=True)
class LocalTree:
    """Folders and files below a folder of this machine, by paths relative to it; `objects.ObjectTree` is another."""

    root: Path

    def status(self, prefix: str) -> tuple[tuple[int, int], int]:
        """What identifies a folder, and its time of change in ns. Raises `OSError`."""
        status = os.stat(os.path.join(self.root, prefix))
        return (status.st_dev, status.st_ino), status.st_mtime_ns

    def entries(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Names in a folder, and which are folders. Raises `OSError`."""
        with os.scandir(os.path.join(self.root, prefix)) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                except OSError:  # a link to nothing readable counts as a file, as in os.walk
                    is_folder = False
                yield entry.name, is_folder

    def beginning(self, path: str, length: int) -> bytes | None:
        """The first bytes of a file, None if it cannot be read."""
        return beginning(os.fsencode(os.path.join(self.root, path)), length)


@dataclass(slots=True)
class Walk:
    """A walk of a whole tree: the images of each folder, and counts of the files that are left out.

    Raises `SourceError` for a folder that cannot be listed.
    """

    tree: LocalTree | ObjectTree
    suffixes: InitVar[Sequence[str]] = ()  # of files beside images
    arrays: bool = False  # whether `.npy` files may be images
    folders: dict[str, bytes] = field(default_factory=dict)  # by path, in torchvision's order: images, see `Groups`
    sides: dict[str, dict[str, str]] = field(init=False)  # suffix -> path before it -> suffix as written
    hidden: int = 0  # images whose name begins with a dot
    known: Files = field(default_factory=Files)  # by suffix: images by their first bytes
    unsupported: Files = field(default_factory=Files)  # by format: images that are not decoded
    other: Files = field(default_factory=Files)  # by suffix: no images
    loops: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # folders
    metadata: list[str] = field(default_factory=list)  # files of these names
    lines: list[str] = field(default_factory=list)  # further notes
    mtimes: dict[str, int] = field(default_factory=dict)  # folder or file -> mtime in ns, before it was read

    def __post_init__(self, suffixes: Sequence[str]) -> None:
        self.sides = {suffix: {} for suffix in suffixes}
        pending: list[tuple[str, tuple[object, ...]]] = [("", ())]  # folder, and what identifies each one above it
        while pending:
            place, above = pending.pop()
            try:
                identity, changed = self.tree.status(place)
                if identity in above:
                    self.loops.append(place)
                    self.folders[place] = b""
                    continue
                self.mtimes[place] = changed
                images, folders, others = self._sort_out(place, self.tree.entries(place))
            except OSError as error:
                where = os.path.join(self.tree.root, place)
                raise SourceError(f"cannot list folder {where}: {error.strerror or error}") from None
            images += self._known(sorted(others))
            self.folders[place] = os.fsencode("".join(f"{path}\0" for path in sorted(images)))
            pending += [(folder, (*above, identity)) for folder in sorted(folders, reverse=True)]
        self.folders = dict(sorted(self.folders.items()))

    def groups(self, prefix: str = "") -> Groups:
        """The images of the folder at `prefix`, by its subfolders; those in none of them under ""."""
        before, found = f"{prefix}/" if prefix else "", Groups({"": [self.folders[prefix]]})
        for place, images in self.folders.items():
            if place != prefix and place.startswith(before):
                found.setdefault(place[len(before) :].partition("/")[0], []).append(images)
        return found

    def watch(self, path: Path) -> None:
        """Add a file of the root, which may be missing, to those that decide the listing."""
        name = os.path.relpath(path, self.tree.root)
        self.mtimes[name] = path.stat().st_mtime_ns if path.exists() else 0

    def watched(self) -> Watched:
        """Every folder that was listed, and every file given to `watch`."""
        paths = Strings.gather(map(os.fsencode, self.mtimes))
        return Watched(paths, np.array(list(self.mtimes.values()), np.int64))

    def warnings(self) -> list[str]:
        """A line for each kind of left-out images that the user may want."""
        lines = []
        if self.loops:
            lines.append(f"links to a folder above them skipped: {few(sorted(self.loops))}")
        if self.unsupported:
            lines.append(f"images left out, of formats that are not supported (convert them first): {self.unsupported}")
        return lines

    def notes(self) -> list[str]:
        """A line for each other kind; captions and boxes beside images are usual, and no reason for a warning."""
        lines = []
        if self.hidden:
            lines.append(f"hidden image files skipped (names that begin with a dot): {self.hidden:,}")
        if self.ignored:
            lines.append(f"hidden folders and those of the system skipped: {few(sorted(self.ignored))}")
        lines += self.lines
        if self.known:
            lines.append(f"images with unusual names, known by their first bytes: {self.known}")
        if self.other:
            lines.append(f"files that are no images left out: {self.other}")
        return lines

    def found(self) -> str:
        """The contents of a tree without images, for the error message."""
        folders = len(self.mtimes) - 1
        parts = (
            (self.other, f"files that are no images: {self.other}"),
            (self.unsupported, f"images of formats that are not supported: {self.unsupported}"),
            (self.hidden, f"{self.hidden:,} hidden images"),
            (folders, f"{folders:,} subfolders"),
        )
        return " and ".join(text for count, text in parts if count) or "an empty folder"

    def _sort_out(self, prefix: str, entries: Iterable[tuple[str, bool]]) -> tuple[list[str], list[str], list[str]]:
        """Paths of images by their suffix, of folders, and of other files, none of them hidden."""
        images, folders, others = list[str](), list[str](), list[str]()
        for name, is_folder in entries:
            path = f"{prefix}/{name}" if prefix else name
            if is_folder:
                is_ignored = name[0] == "." or name.lower() in IGNORED_FOLDERS
                (self.ignored if is_ignored else folders).append(path)
            elif (end := self._side(name)) is not None:
                self.sides[end][path[: -len(end)]] = path[-len(end) :]
            elif name[0] == ".":
                self.hidden += name.lower().endswith(EXTENSIONS)
            elif name.lower().endswith(EXTENSIONS):
                images.append(path)
            else:
                (self.metadata if name in METADATA else others).append(path)
        return images, folders, others

    def _known(self, paths: Sequence[str]) -> list[str]:
        """Those of the files that are images by their first bytes; the others are counted."""
        images = []
        for path, format in zip(paths, formats(paths, self.tree.beginning, arrays=self.arrays), strict=True):
            suffix = os.path.splitext(path)[1].lower() or "without a suffix"
            if format in DECODED:
                images.append(path)
                if format != "npy":
                    self.known.add(suffix, path)
            elif format:
                self.unsupported.add(format, path)
            else:
                self.other.add(suffix, path)
        return images

    def _side(self, name: str) -> str | None:
        """The longest suffix of `sides` in a file's name, with at least one character before it."""
        ends = [end for end in self.sides if name.lower().endswith(end.lower()) and len(name) > len(end)]
        return max(ends, key=len, default=None)
