"""A plain folder as a target: `[split]/[class]/name.jpg`, other fields beside it, original paths where safe."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iofast import owned
from iofast.containers.manifest import WHOLE
from iofast.containers.publish import Target
from iofast.errors import ContainerError, TargetError
from iofast.record import JSON_FIELD, LABEL_FIELD, RAW_FIELDS, TOLD, ImageInfo, format_key, image_field

CLASS_FILE = "classes.txt"
MAX_NAME = 255  # bytes of one component: what file systems take
MAX_PATH = 2048  # bytes of a path below the folder
MAX_DEPTH = 32

_CHANGED = ("encoded", "resized")  # of `packed`: the stored bytes are no longer the file's
_SUFFIXES = {"jpg": (".jpg", ".jpeg", ".jpe", ".jfif"), "png": (".png",), "webp": (".webp",)}
_FORMATS = ("bmp", "gif", "tif", "ppm", "avif")  # images that are no image of a container


class FolderTarget(Target):
    """The place of a folder that is being made. An empty folder may stand there; nothing is ever overwritten."""

    def check_free(self) -> None:
        """Raise `TargetError` if something stands in its place."""
        if not os.path.lexists(self.path):
            return
        if self.path.is_symlink() or not self.path.is_dir() or os.listdir(self.path):
            raise TargetError(f"{self.path} exists already: a folder is only made anew, never written into")


class Shape(NamedTuple):
    """What a folder's layout depends on beside the records."""

    classes: tuple[str, ...] | None
    splits: tuple[str, ...]
    fields: tuple[str, ...]
    key_width: int


class FolderWriter:
    """Writes records as files into the new folder `root`. Errors: `ContainerError`, `OSError`.

    A record's original path is kept where it is safe and leads to the record's split and class; else the path stands
    below these two, and a name that is taken gets the key. Nothing is followed that is not made here: `root` is new,
    and every component of a path is checked.
    """

    def __init__(self, root: Path, shape: Shape) -> None:
        self._root, self._classes, self._width = root, shape.classes, shape.key_width
        self._splits = [] if list(shape.splits) == [WHOLE] else list(shape.splits)
        raw = ", ".join(name for name in RAW_FIELDS if name in shape.fields)
        if raw:
            raise ContainerError(
                f"raw pixels (field {raw}) have no file format, so no folder can hold them: pack as png"
            )
        for name in self._classes or ():
            if not _is_safe(name):
                raise ContainerError(f"the class {name!r:.80} cannot be the name of a folder")
        root.mkdir()
        self._made = {root}

    def write(self, position: int, fields: Mapping[str, bytes], info: ImageInfo, split: str) -> None:
        """Write the files of one record."""
        key = format_key(position, max(self._width, len(str(position))))
        image = image_field(fields) or next((name for name in _FORMATS if name in fields), None)
        prefix = ([split] if self._splits else []) + self._class(info.label)
        said = _said(fields.get(JSON_FIELD))
        parts = _placed(prefix, _components(said.get("path")), key)
        name = _with_suffix(parts[-1], image, said)
        folder = self._root.joinpath(*parts[:-1])
        side = {each: payload for each, payload in fields.items() if each not in (image, LABEL_FIELD, JSON_FIELD)}
        if not said or set(said) - TOLD:
            side |= {JSON_FIELD: fields[JSON_FIELD]} if JSON_FIELD in fields else {}
        if image is None and not side:
            side = dict(fields)
        for attempt in (name, f"{key}{os.path.splitext(name)[1]}"):
            stem = os.path.splitext(attempt)[0] if image is not None else attempt
            wanted = {f"{stem}.{each}": payload for each, payload in side.items()}
            wanted |= {} if image is None else {attempt: fields[image]}
            where = folder if attempt == name else self._root.joinpath(*prefix)
            if self._store(where, wanted):
                return
        raise ContainerError(f"record {key}: {folder / name} and the name made of its key are both taken")

    def finish(self) -> None:
        """Make everything durable."""
        classes = list(self._classes or ())
        for name in classes:  # also those without images: their numbers are kept
            self._root.joinpath(*self._splits[:1], name).mkdir(parents=True, exist_ok=True)
        if classes and classes != sorted(classes):
            (self._root / CLASS_FILE).write_text("".join(f"{name}\n" for name in classes), "utf-8")
        os.sync()  # an fsync of each file takes a journal commit, 4 ms on a disk: an hour for a million
        owned.sync(self._root)

    def _class(self, label: int) -> list[str]:
        if label < 0:
            return []
        if self._classes is None:
            return [f"{label:05d}"]  # padded, so that the order of the names is that of the numbers
        if label >= len(self._classes):
            raise ContainerError(f"label {label}, but there are {len(self._classes)} classes")
        return [self._classes[label]]

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


def _said(text: bytes | None) -> dict[str, Any]:
    try:
        members = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}


def _is_safe(name: str) -> bool:
    """Whether a component is the plain name of a file; what is not printable (NUL, surrogates, line ends) is none."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(name.encode()) <= MAX_NAME


def _components(path: object) -> list[str]:
    """The components of an original path; none where it is absolute, leads upwards, or no file system would take it."""
    if not isinstance(path, str) or len(path) > MAX_PATH:
        return []
    parts = path.split("/")
    return parts if len(parts) <= MAX_DEPTH and all(map(_is_safe, parts)) else []


def _placed(prefix: list[str], parts: list[str], key: str) -> list[str]:
    """Where a record goes: its path, below what of split and class the path does not begin with."""
    if not parts:
        return [*prefix, key]
    for known in range(len(prefix), 0, -1):
        if parts[:known] == prefix[-known:] and len(parts) > known:
            return prefix[:-known] + parts
    return prefix + parts


def _with_suffix(name: str, image: str | None, said: Mapping[str, Any]) -> str:
    """The file's name: the original one, unless it has no suffix, or that of a format that the bytes no longer have."""
    if image is None:
        return os.path.splitext(name)[0] or name
    suffix = os.path.splitext(name)[1].lower()
    if not suffix or (said.get("packed") in _CHANGED and suffix not in _SUFFIXES.get(image, (f".{image}",))):
        return f"{name}.{image}"
    return name
