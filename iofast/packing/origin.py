"""Where the bytes of a sample come from: files, or a record of a container. The one place that reads them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from iofast.errors import DecodeError, IofastError, SourceError, because
from iofast.kernel.contract import MAX_BYTES
from iofast.packing.sample import Image
from iofast.record import IMAGE_FIELDS, JSON_FIELD, JSON_MEMBERS, LABEL_FIELD, RAW_FIELDS, image_field

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iofast.containers.base import Failures

MOST_AHEAD = 32 << 20  # bytes of a chunk's images that are read at once; chunks are made for 8 MiB
# images that no container of ours stores, but other programs' do; kernel.transcode reads them
OTHER_IMAGES = ("tif", "tiff", "bmp", "gif", "ppm", "pgm", "avif", "heic", "heif")


class ReadSample(NamedTuple):
    """What was read of a sample: the image file, the fields beside it, and its row, with the path that it came from.

    `upright`: fields beside it that belong to upright pixels already.
    """

    data: bytes
    beside: dict[str, bytes]
    image: Image
    upright: Collection[str] = ()


class Origin(Protocol):
    """Reads the samples of one source."""

    def begin(self, images: Sequence[Image]) -> None:
        """Before these are read, one after another. Raises `SourceError` where no sample can be read any more."""

    def read(self, image: Image) -> ReadSample:
        """The bytes of one sample. Raises `DecodeError`, `OSError`."""

    def blame(self, image: Image, reason: str) -> str:
        """The reason of a failure, with the place of what failed where its path does not tell that."""

    def check(self) -> None:
        """Raise `SourceError` where what was read is not what was listed."""


class FileOrigin:
    """Samples whose images are files below `root`, or at absolute paths."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)

    def begin(self, images: Sequence[Image]) -> None:
        """Nothing: files are read one by one."""

    def read(self, image: Image) -> ReadSample:
        """See `Origin.read`."""
        data = read_file(os.path.join(self._root, os.fsencode(image.path)))
        return ReadSample(data, read_attached(self._root, image), image)

    def blame(self, image: Image, reason: str) -> str:  # noqa: ARG002 - the path says it
        """See `Origin.blame`."""
        return reason

    def check(self) -> None:
        """Nothing: each file was looked at when it was read. See `Origin.check`."""


class RecordOrigin:
    """Samples that are the records of the container `source`.

    `foreign` are options of `open_reader`; `fields`, `upright` and `state` are what the listing found (`Held`).
    """

    def __init__(
        self,
        source: str,
        foreign: Mapping[str, Any] | None,
        fields: Mapping[str, str],
        state: str,
        upright: Collection[str] = (),
    ) -> None:
        self._source, self._foreign, self._fields, self._state = source, foreign, fields, state
        self._upright = frozenset(upright)
        self._reader: Any = None  # opened by each worker for itself, when it has work
        self._ahead: dict[int, dict[str, bytes] | DecodeError] = {}
        self._wanted: list[str] = []
        self._ours = False  # what `json` says is ours: the path, and nothing that packing does not write anew

    def begin(self, images: Sequence[Image]) -> None:
        """Open the container, once, and read all of a chunk, unless it is larger than chunks are. See `Origin.begin`.

        Records of 38 kB take 310 to 560 us each one by one, 130 to 200 four at a time: it is looking up that costs.
        """
        self._open()
        self._ahead = {}
        if not images:
            return
        places = np.array([image.place for image in images], np.int64)
        with contextlib.suppress(Exception):  # then each is read alone, and the one that is to blame says so
            if int(self._reader.columns(places).length.sum()) <= MOST_AHEAD:
                self._ahead = self._fetch(places)

    def read(self, image: Image) -> ReadSample:
        """See `Origin.read`. A payload that contradicts its checksum is a `DecodeError`."""
        self._open()
        fields = self._ahead.pop(image.place, None)
        if fields is None:
            fields = self._alone(image.place)
        if isinstance(fields, DecodeError):
            raise fields
        name = _image_of(fields)
        if name is None:
            raise DecodeError(f"the record has no image (its fields: {', '.join(sorted(fields)) or 'none'})")
        data = fields.pop(name)
        if name in RAW_FIELDS:
            data = self._opaque(name, data, image.place)
        path = self._path(fields.get(JSON_FIELD))
        told = image if path is None else image._replace(path=path)
        return ReadSample(data, self._beside(fields, image), told, self._upright)

    def blame(self, image: Image, reason: str) -> str:
        """See `Origin.blame`."""
        name = self._source
        if self._reader is not None:
            with contextlib.suppress(IofastError, OSError):  # damaged where the name stands
                name = self._reader.name(image.place)
        place = "" if name in reason else f"in {name}"
        path = self._path_at(image.place)
        said = ", ".join(filter(None, (place, f"from {path}" if path else "")))
        return f"{reason} ({said})" if said else reason

    def check(self) -> None:
        """See `Origin.check`."""
        self._reader = None
        self._open()
        self._reader.close()

    def _open(self) -> None:
        if self._reader is not None:
            return
        from iofast.containers.identity import says_path, state_of
        from iofast.opening import open_reader  # here: workers start without what reads containers

        try:
            reader = open_reader(self._source, self._foreign)
        except (IofastError, OSError) as error:
            raise SourceError(f"{self._source} cannot be read any more: {error}") from None
        if state_of(reader, self._source) != self._state:
            raise SourceError(f"{self._source} was changed while it was packed")
        self._reader, self._ours = reader, says_path(reader)
        images = (*IMAGE_FIELDS, *RAW_FIELDS, *OTHER_IMAGES)
        wanted = {*images, *self._fields, *((JSON_FIELD,) if self._ours else ())}
        self._wanted = [name for name in reader.manifest.fields if name in wanted]

    def _alone(self, place: int) -> dict[str, bytes] | DecodeError:
        """The fields of one record, or what is wrong with it."""
        asked = np.array([place], np.int64)
        try:
            if int(self._reader.columns(asked).length[0]) > MAX_BYTES:
                return DecodeError("the image is larger than 1 GiB")
            return self._fetch(asked)[place]
        except (IofastError, OSError) as error:
            return DecodeError(f"the record is damaged ({error})")

    def _fetch(self, places: NDArray[np.int64]) -> dict[int, dict[str, bytes] | DecodeError]:
        """The fields of some records that are asked for, or what is wrong with one."""
        found: list[dict[str, bytes] | DecodeError] = [{} for _ in range(len(places))]
        for name in self._wanted:
            failed: Failures = {}
            for row, value in enumerate(self._reader.values(places, name, failed=failed)):
                fields = found[row]
                if row in failed:
                    found[row] = DecodeError(f"the record is damaged ({failed[row]})")
                elif value is not None and isinstance(fields, dict):
                    fields[name] = value
        return dict(zip(places.tolist(), found, strict=True))

    def _opaque(self, name: str, data: bytes, place: int) -> bytes:
        """Raw pixels as a file of pixels that every decoder reads."""
        from iofast.kernel import raw

        row = self._reader.columns(np.array([place], np.int64))
        width, height, kind = int(row.width[0]), int(row.height[0]), 1 + RAW_FIELDS.index(name)
        if len(data) != raw.length(kind, width, height):
            raise DecodeError(f"the record has {len(data)} bytes of raw pixels ({width}×{height} as {name})")
        return b"P6\n%d %d\n255\n" % (width, height) + raw.unpack(data, kind, width, height).tobytes()

    def _path_at(self, place: int) -> str | None:
        """The path of a record that could not be read whole."""
        if self._reader is None or not self._ours or JSON_FIELD not in self._reader.manifest.fields:
            return None
        with contextlib.suppress(IofastError, OSError):
            return self._path(self._reader.values(np.array([place], np.int64), JSON_FIELD, failed={})[0])
        return None

    def _path(self, text: bytes | None) -> str | None:
        """The path that packing, or a reader of ours, wrote into `json`; None where the key is all that is known."""
        if not self._ours or text is None:
            return None
        path = _members(text).get("path")
        try:
            return path if isinstance(path, str) and path and path.encode() else None
        except UnicodeEncodeError:  # half a surrogate pair
            return None

    def _beside(self, fields: Mapping[str, bytes], image: Image) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, payload in fields.items():
            goal = self._fields.get(name)
            if goal is None or (name == LABEL_FIELD and image.label >= 0):
                continue
            if name == JSON_FIELD and self._ours and (said := _members(payload)) and not set(said) - JSON_MEMBERS:
                continue  # nothing that packing does not write anew
            if goal in found:
                there = ", ".join(sorted(fields))
                raise DecodeError(f"two fields of the record would be {goal}: choose with fields ({there})")
            found[goal] = payload
        return found


def _image_of(fields: Mapping[str, bytes]) -> str | None:
    return image_field(fields) or next((name for name in OTHER_IMAGES if name in fields), None)


def origin_of(setup: Mapping[str, Any]) -> Origin:
    """What reads the samples of a run, from what every worker is told."""
    records = setup["records"]
    return FileOrigin(setup["root"]) if records is None else RecordOrigin(**records)


def read_attached(root: bytes, image: Image) -> dict[str, bytes]:
    """The files of a sample beside its image, by field. Raises `DecodeError`, which names field and file."""
    found = {}
    for field, path in image.files:
        try:
            found[field] = read_file(os.path.join(root, os.fsencode(path)), empty=True)
        except (DecodeError, OSError) as error:
            reason = because(error) if isinstance(error, OSError) else str(error)
            raise DecodeError(f"{field}: its file cannot be read ({path!r}: {reason})") from None
    return found


def read_file(path: bytes, *, empty: bool = False) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`, empty only on request. Raises `DecodeError`, `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # or a FIFO would hold the worker for ever
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DecodeError("not a regular file")
        if not (status.st_size > 0 or empty) or status.st_size > MAX_BYTES:
            raise DecodeError("the file is empty" if status.st_size == 0 else "the file is larger than 1 GiB")
        data = os.read(fd, status.st_size + 1)
        while len(data) <= status.st_size and (more := os.read(fd, status.st_size + 1 - len(data))):  # as FUSE may give
            data += more
        after = os.fstat(fd)
        if (len(data), after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise DecodeError(
                f"the file changed while it was read ({status.st_size} bytes before, {after.st_size} after)"
            )
        return data
    finally:
        os.close(fd)


def _members(text: bytes) -> dict[str, Any]:
    """The members of a JSON object; none where it is anything else."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
