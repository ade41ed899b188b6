"""A plain folder as a target: `[split]/[class]/name.jpg`, other fields beside it, original paths where safe."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iofast import owned
from iofast.containers.manifest import WHOLE, Description, Manifest, Shard
from iofast.containers.publish import Target
from iofast.containers.writer import Finished, Section, Writer
from iofast.errors import ContainerError, TargetError
from iofast.record import (
    ARRAY_FIELD,
    JSON_FIELD,
    JSON_MEMBERS,
    LABEL_FIELD,
    RAW_FIELDS,
    ImageInfo,
    image_field,
    json_members,
)

CLASS_FILE = "classes.txt"
MAX_NAME = 255  # bytes of one component, the limit of file systems
MAX_PATH = 2048  # bytes of a path below the folder
MAX_DEPTH = 32

_CHANGED = ("encoded", "resized")  # values of `packed`: the stored bytes differ from the file's
_SUFFIXES = {"jpg": (".jpg", ".jpeg", ".jpe", ".jfif"), "png": (".png",), "webp": (".webp",), ARRAY_FIELD: (".npy",)}
_FORMATS = ("bmp", "gif", "tif", "ppm", "avif")  # images in other fields


class FolderTarget(Target):
    """The place of a new folder. It may be an empty folder; nothing is ever overwritten."""

    def check_free(self) -> None:
        """Raise `TargetError` if something is in its place."""
        if not os.path.lexists(self.path):
            return
        if self.path.is_symlink() or not self.path.is_dir() or os.listdir(self.path):
            raise TargetError(f"{self.path} exists already: expected a new or empty folder")


class FolderWriter(Writer):
    """Writes records as files into a new folder. An interrupted run starts anew.

    A record keeps its original path if that is safe and begins with the record's split and class; otherwise the path is
    put below these two. A record whose name is taken is named by its key. No foreign link can be followed: `root` is
    new, and every component of a path is checked.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, description: Description, key_width: int) -> None:
        super().__init__(folder, name, description, key_width)
        self._root = self.folder / name
        for each in description.classes or ():
            if not _is_safe(each):
                raise ContainerError(f"the class {each!r:.80} cannot be the name of a folder")
        self._made: set[Path] = set()
        self._splits: list[str] = []  # in their order; none in a set without splits

    def resume(self, sections: Iterable[Section]) -> list[Section]:
        """All sections: nothing of an earlier run is kept, because a folder is durable as a whole."""
        with self._errors():
            shutil.rmtree(self._root, ignore_errors=True)
            self._root.mkdir()
        self._made = {self._root}
        return list(sections)

    def _begin(self, section: Section) -> None:
        if section.split not in (WHOLE, *self._splits):
            self._splits.append(section.split)

    def _finish(self, done: Sequence[Finished]) -> Manifest:
        """Make everything durable. No reader of the folder finds the manifest."""
        classes = list(self.description.classes or ())
        for name in classes:  # also classes without images, so that all numbers stay
            self._root.joinpath(*self._splits[:1], name).mkdir(parents=True, exist_ok=True)
        if classes and classes != sorted(classes):
            (self._root / CLASS_FILE).write_text("".join(f"{name}\n" for name in classes), "utf-8")
        os.sync()  # an fsync of each file takes a journal commit, 4 ms on a disk: an hour for a million
        owned.sync(self._root)
        return self._manifest(done, (Shard(self.name, sum(each.count for each in done), 0),))

    def _append(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> Mapping[str, int]:
        image = image_field(fields) or next((name for name in _FORMATS if name in fields), None)
        if image in RAW_FIELDS:
            raise ContainerError(f"record {key}: raw pixels ({image}) have no file format: pack as png")
        prefix = self._splits[-1:] + self._class(info.label)
        members = json_members(fields.get(JSON_FIELD))
        parts = _path(prefix, _components(members.get("path")), key)
        name = _with_suffix(parts[-1], image, members)
        folder = self._root.joinpath(*parts[:-1])
        side = {each: payload for each, payload in fields.items() if each not in (image, LABEL_FIELD, JSON_FIELD)}
        if not members or set(members) - JSON_MEMBERS:
            side |= {JSON_FIELD: fields[JSON_FIELD]} if JSON_FIELD in fields else {}
        if image is None and not side:
            side = dict(fields)
        for attempt in (name, f"{key}{os.path.splitext(name)[1]}"):
            stem = os.path.splitext(attempt)[0] if image is not None else attempt
            wanted = {f"{stem}.{each}": payload for each, payload in side.items()}
            wanted |= {} if image is None else {attempt: fields[image]}
            where = folder if attempt == name else self._root.joinpath(*prefix)
            if self._store(where, wanted):
                return {}
        raise ContainerError(f"record {key}: {folder / name} and the name made of its key are both taken")

    def _class(self, label: int) -> list[str]:
        if label < 0:
            return []
        if self.description.classes is None:
            return [f"{label:05d}"]  # padded, so that the order of the names is that of the numbers
        return [self.description.classes[label]]

    def _store(self, folder: Path, files: Mapping[str, bytes]) -> bool:
        """Write these files; False, with none of them there, where a name is taken or too long."""
        if any(len(os.fsencode(name)) > MAX_NAME for name in files):
            return False
        made: list[Path] = []
        try:
            if folder not in self._made:
                folder.mkdir(parents=True, exist_ok=True)
                self._made.add(folder)
            for name, payload in files.items():
                path = folder / name
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
                made.append(path)
                with os.fdopen(fd, "wb") as file:
                    file.write(payload)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            for path in made:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        return True


def _is_safe(name: str) -> bool:
    """Whether a component is a plain, printable file name: no NUL, surrogates or line ends."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(name.encode()) <= MAX_NAME


def _components(path: object) -> list[str]:
    """The components of an original path; none if it is absolute, leads upwards, or is too long for file systems."""
    if not isinstance(path, str) or len(path) > MAX_PATH:
        return []
    parts = path.split("/")
    return parts if len(parts) <= MAX_DEPTH and all(map(_is_safe, parts)) else []


def _path(prefix: list[str], parts: list[str], key: str) -> list[str]:
    """The components of a record's new path: split and class, unless the original path begins with them."""
    if not parts:
        return [*prefix, key]
    for known in range(len(prefix), 0, -1):
        if parts[:known] == prefix[-known:] and len(parts) > known:
            return prefix[:-known] + parts
    return prefix + parts


def _with_suffix(name: str, image: str | None, members: Mapping[str, Any]) -> str:
    """The original file name; with a new suffix if it has none, or if the bytes have another format now."""
    if image is None:
        return os.path.splitext(name)[0] or name
    suffix = os.path.splitext(name)[1].lower()
    fitting = _SUFFIXES.get(image, (f".{image}",))
    if not suffix or (members.get("packed") in _CHANGED and suffix not in fitting):
        return f"{name}{fitting[0]}"
    return name
