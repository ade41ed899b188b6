"""Index files in the user's cache folder: arrays behind a sealed JSON header, mapped by every rank.

Layout, little-endian: 16 bytes magic, u64 length of the header, the header (JSON with its own CRC32C; `arrays` maps a
name to [dtype, count, offset, CRC32C]), then the arrays, each at a multiple of 64. Nothing in it is trusted. `load`
checks places and checksums (25 ms for ImageNet's 80 MB, once per process); callers validate the values and rebuild an
invalid index.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from iofast import owned
from iofast.containers.any_bytes import stored_stamps
from iofast.containers.index import ABSENT
from iofast.containers.manifest import CLASS_ORDERS, WHOLE, Manifest, Shard
from iofast.containers.sealed import MAX_BYTES, check_seal, seal, unseal
from iofast.errors import ContainerError, because, unreadable
from iofast.kernel import crc32c
from iofast.remote.urls import is_url
from iofast.source.text_files import check_file

_log = logging.getLogger("iofast")

MAGIC = b"iofast-cache\0\0\0\4"  # the last byte is the version; an older or newer one is built again
# Two changes of a folder or file within this time may leave the same time stamp (2 s on FAT, 4 ms on ext4). An index
# that was built so soon after a change may have missed another one.
SETTLED = 2_000_000_000  # ns

_UNCACHED = "the index is not kept, so the next start builds it again"
_ALIGN = 64
_NAMES = {  # dtype -> first or last part of the names of its arrays, as in file.0 and keys.bounds
    "|u1": ("orientation", "format", "blob", "states"),
    "<i4": ("label", "labels", "width", "height"),
    "<u4": ("file", "crc"),
    "<i8": ("times", "stamps", "starts", "order"),
    "<u8": ("offset", "length", "size", "bounds"),
}
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}

Arrays = dict[str, NDArray[Any]]
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
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
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
            store(file, *parts(index))
        except (OSError, ContainerError) as error:  # a full or read-only disk, or a header beyond its limit
            why = because(error) if isinstance(error, OSError) else error
            _log.warning("%s: %s cannot be written: %s", _UNCACHED, file, why)
            return index
        stored = loaded(file)
        return index if stored is None else stored


def store(file: Path, members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an index file: temporary name, fsync, rename. Raises `OSError`; then nothing is left."""
    little = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    header = _header(members, little)
    with owned.writing(file, 0o600) as out:
        out.write(MAGIC + len(header).to_bytes(8, "little") + header)
        for array in little.values():
            out.write(bytes(-out.tell() % _ALIGN))
            out.write(array.data)


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


def load(file: Path, *, checked: bool = True) -> tuple[dict[str, Any], Arrays]:
    """Map an index file: its members and its arrays, which stay valid when the file is replaced.

    Without `checked` no checksum is computed, so that a process reads only the rows of a large listing that it needs.
    Raises `OSError` for a missing file, `ContainerError` if its bytes contradict the layout.
    """
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size < len(MAGIC) + 8:
            raise ContainerError(f"{file} is no index: it has {size} bytes")
        mapped = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
    start = len(MAGIC) + 8
    length = int.from_bytes(mapped[len(MAGIC) : start], "little")
    if mapped[: len(MAGIC)] != MAGIC or length > min(size - start, MAX_BYTES):
        raise ContainerError(f"{file} is no index of this version")
    header = mapped[start : start + length]
    check_seal(header)
    members = unseal(header)
    try:
        arrays = {name: _array(mapped, size, place, checked) for name, place in members.pop("arrays").items()}
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ContainerError(f"{file}: the descriptions of its arrays are invalid: {error!r:.80}") from None
    for name, array in arrays.items():
        if array.dtype != _dtype(name, array.dtype):
            raise ContainerError(f"{file}: {name} is of {array.dtype}, expected {_dtype(name, array.dtype)}")
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


def _header(members: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The header. The offsets of the arrays depend on its length, so they have a fixed number of digits."""
    places = {
        name: [array.dtype.str, f"{array.size:16d}", " " * 16, f"{crc32c(array.data) if array.size else 0:08x}"]
        for name, array in arrays.items()
    }
    offset = len(MAGIC) + 8 + len(seal({**members, "arrays": places}))
    for name, array in arrays.items():
        offset += -offset % _ALIGN
        places[name][2] = f"{offset:16d}"
        offset += array.nbytes
    return seal({**members, "arrays": places})


def _array(mapped: mmap.mmap, size: int, place: list[str], checked: bool) -> NDArray[Any]:
    dtype, count, offset = place[0], int(place[1]), int(place[2])
    if dtype not in _NAMES or count < 0 or not 0 <= offset <= size - count * np.dtype(dtype).itemsize:
        raise ContainerError(f"an array of {count} {dtype} at {offset} lies outside an index of {size} bytes")
    array = np.frombuffer(mapped, dtype, count, offset) if count else np.zeros(0, dtype)
    if checked and (crc32c(array.data) if count else 0) != int(place[3], 16):
        raise ContainerError(f"an array of {count} {dtype} at {offset} is damaged: its CRC32C differs")
    return array
