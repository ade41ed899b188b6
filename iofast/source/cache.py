"""Index files in the user's cache folder: columns files (`containers.columns_file`), mapped by every rank.

Nothing in them is trusted. `load` checks places and checksums (25 ms for ImageNet's 80 MB, once per process); callers
validate the values and rebuild an invalid index.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.containers import columns_file
from iofast.containers.any_bytes import stored_stamps
from iofast.containers.columns import ABSENT
from iofast.containers.columns_file import Arrays
from iofast.containers.manifest import CLASS_ORDERS, WHOLE, Manifest, Shard
from iofast.errors import ContainerError, because, unreadable
from iofast.remote.urls import is_url
from iofast.source.text_files import check_file

_log = logging.getLogger("iofast")

VERSION = 5  # of cached indexes: an older or newer one is built again
# Two changes of a folder or file within this time may leave the same time stamp (2 s on FAT, 4 ms on ext4). An index
# that was built so soon after a change may have missed another one.
SETTLED = 2_000_000_000  # ns

_UNCACHED = "the index is not kept, so the next start builds it again"

_NAMES = {  # dtype -> first or last part of the names of its arrays, as in file.0 and keys.bounds
    "|u1": ("orientation", "format", "blob", "states"),
    "<i4": ("label", "labels", "width", "height"),
    "<u4": ("file", "crc"),
    "<i8": ("times", "stamps", "starts", "order"),
    "<u8": ("offset", "length", "size", "bounds"),
}
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}

Index = TypeVar("Index")


def cache_file(*words: bytes) -> Path | None:
    """The index file of the data set that `words` identify, None without a cache folder."""
    folder = owned.cache_folder()
    if folder is None:
        return None
    digest = hashlib.sha256(b"".join(len(word).to_bytes(8, "little") + word for word in words))
    return folder / f"{digest.hexdigest()[:32]}.index"


def stamps(paths: Sequence[str]) -> NDArray[np.int64]:
    """Size (bytes) and last change (ns) of each file, int64 (N, 2). Raises `SourceError` for a missing file.

    An object has a number of its version in place of the time.
    """
    stored = [path for path in paths if is_url(path)]
    found = dict(zip(stored, stored_stamps(stored), strict=True)) if stored else {}
    rows = []
    for path in paths:
        if path in found:
            rows.append(found[path])
            continue
        try:
            check_file(path)
            status = os.stat(path)
        except OSError as error:
            raise unreadable(path, error) from None
        rows.append((status.st_size, status.st_mtime_ns))
    return np.array(rows, np.int64).reshape(-1, 2)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Wait until no other process builds this index; False if the file system cannot lock or write."""
    with contextlib.ExitStack() as stack:
        locked = False
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(file.with_suffix(".lock"), flags, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            locked = True
        yield locked


def is_settled(changed: NDArray[np.int64], scanned: tuple[int, int]) -> bool:
    """Whether none of these changes is so close to a scan (begin and end in ns) that the scan may have missed one."""
    began, ended = scanned
    return not bool(((changed > began - SETTLED) & (changed < ended + SETTLED)).any())


def cached(
    file: Path | None,
    valid: Callable[[Path], Index | None],
    build: Callable[[], Index],
    parts: Callable[[Index], tuple[dict[str, object], Arrays]],
    loaded: Callable[[Path], Index | None],
) -> Index:
    """The index in `file` if it is `valid`, else a new one, whose `parts` are stored and `loaded` again.

    Several processes may call this at once: one builds the index, the others wait. An unusable cache costs time and a
    warning, never an error.
    """
    if file is None:
        _log.warning("%s: no folder, or another user may write to it", _UNCACHED)
        return build()
    index = valid(file)
    if index is not None:
        return index
    with locked(file):
        index = valid(file)
        if index is not None:
            return index
        index = build()
        try:
            members, arrays = parts(index)
            columns_file.store(file, {**members, "cache": VERSION}, arrays)
        except (OSError, ContainerError) as error:  # a full or read-only disk, or a header beyond its limit
            why = because(error) if isinstance(error, OSError) else error
            _log.warning("%s: %s cannot be written: %s", _UNCACHED, file, why)
            return index
        stored = loaded(file)
        return index if stored is None else stored


def outdate(file: Path) -> None:
    """Make the next opening build this index again. Readers that have it open keep it."""
    with contextlib.suppress(OSError):
        os.utime(file, ns=(0, 0))


def is_outdated(file: Path) -> bool:
    """Whether `outdate` was called since the index was written."""
    try:
        return file.stat().st_mtime_ns == 0
    except OSError:
        return True


def load(file: Path) -> tuple[dict[str, Any], Arrays]:
    """Map an index file, checked by `columns_file.load`. Raises `ContainerError` also for columns of another type."""
    members, arrays = columns_file.load(file)
    for name, array in arrays.items():
        if array.dtype != _dtype(name, array.dtype):
            raise ContainerError(f"{file}: {name} is of {array.dtype}, expected {_dtype(name, array.dtype)}")
    if members.pop("cache", None) != VERSION:
        raise ContainerError(f"{file} is no index of this version")
    return members, arrays


def _dtype(name: str, unknown: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of an array of this name; `unknown` for a name that no index has."""
    parts = name.split(".")
    return np.dtype(_DTYPES.get(parts[0]) or _DTYPES.get(parts[-1]) or unknown)


def check_members(
    count: int,
    fingerprint: str,
    *,
    fields: Sequence[str] = (),
    splits: Sequence[tuple[str, int, int]] = (),
    classes: Sequence[str] | None = None,
    class_order: str = CLASS_ORDERS[0],
) -> None:
    """Raise `ContainerError` or `TypeError` for members that no manifest can have."""
    for name, start, stop in splits:
        if not 0 <= start <= stop <= count:
            raise ContainerError(f"split {name} is from {start} to {stop} of {count} records")
    ranges = {name: ((start, stop),) for name, start, stop in splits if stop > start} or {WHOLE: ((0, count),)}
    own, names = tuple(fields), None if classes is None else tuple(classes)
    Manifest(count, own, ranges, fingerprint, (Shard("", count, 0),), names, class_order)


def check_strings(blob: NDArray[Any], bounds: NDArray[Any]) -> None:
    """Raise `ContainerError` unless the strings of an index, each followed by one byte, lie in the blob in order."""
    within = len(bounds) > 0 and int(bounds.max()) <= len(blob)  # unsigned: 2**63 would become negative below
    if not within or bounds[0] != 0 or (np.diff(bounds.astype(np.int64)) < 1).any():
        raise ContainerError(f"{len(bounds)} bounds do not rise within a blob of {len(blob)} bytes")


def check_columns(arrays: Mapping[str, NDArray[Any]], files: int) -> None:
    """Raise `ContainerError` for impossible values; columns `file…` have numbers below `files`, or `ABSENT`."""
    for name, array in arrays.items():
        least, most = array.min(initial=0), array.max(initial=0)
        kind = name.partition(".")[0]
        wrong = kind in ("width", "height", "size") and (least < 0 or most > 1 << 62)
        wrong |= kind == "label" and least < -1
        wrong |= kind == "orientation" and bool((array - 1 > 7).any())
        wrong |= kind == "file" and bool(((array >= files) & (array != ABSENT)).any())
        if wrong:
            raise ContainerError(f"column {name} has values from {least} to {most}")
