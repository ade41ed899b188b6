"""Read the samples of a source: from files, from object stores, or from the records of a container."""

from __future__ import annotations

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iofast.errors import (
    DecodeError,
    IofastError,
    ObjectConflictError,
    ObjectMissingError,
    SourceError,
    StorageError,
    because,
)
from iofast.kernel.contract import MAX_BYTES
from iofast.packing.sample import Image, ReadSample
from iofast.record import (
    IMAGE_FIELDS,
    JSON_FIELD,
    JSON_MEMBERS,
    LABEL_FIELD,
    RAW_FIELDS,
    image_field,
    json_members,
    raw_length,
)
from iofast.remote.urls import is_url, join

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iofast.containers.base import Failures
    from iofast.remote.ahead import Ahead, ListedObject

MOST_AHEAD = 32 << 20  # bytes of a chunk's images that are read at once; chunks are made for 8 MiB
# images that no container of ours stores, but other programs' do; kernel.transcode reads them
OTHER_IMAGES = ("tif", "tiff", "bmp", "gif", "ppm", "pgm", "avif", "heic", "heif", "jxl")


class Origin(ABC):
    """Reads the samples of one source."""

    waiting: Callable[[], object] | None = None  # called now and then while `read` waits for an object store
    overlaps = False  # whether `begin` may be called for the next chunk, too, before the present one is read

    def begin(self, images: Sequence[Image]) -> None:  # noqa: B027 - files need no preparation
        """Prepare to read these, one after another. Raises `SourceError` if no sample can be read any more.

        Without images, forget earlier ones.
        """

    @abstractmethod
    def read(self, image: Image) -> ReadSample:
        """Read one sample. Raises `DecodeError`, `OSError`; `StorageError` if no sample can be read any more."""

    def where(self, image: Image) -> str:  # noqa: ARG002 - the path names a file
        """Where the sample lies, for the reason of a failure, if its path does not name it."""
        return ""

    def check(self) -> None:  # noqa: B027 - `read` checks each file
        """Raise `SourceError` if the source changed since it was listed."""


class FileOrigin(Origin):
    """Samples whose images are files below `root`, at absolute paths, or objects, if `root` or a path is a URL."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._ahead: Ahead | None = None
        self._numbers: dict[tuple[int, int], int] = {}  # (position, file) -> number of an object that is fetched ahead

    def begin(self, images: Sequence[Image]) -> None:
        """Begin to fetch the objects of these, in the order of `read`. See `Origin.begin`."""
        if self._ahead is not None and not images:
            self._ahead.close()
            self._numbers = {}
        objects = [
            (image.position, number, self._wanted(image, number))
            for image in images
            for number in range(len(image.versions))
            if is_url(self._path(image, number)) and (image.position, number) not in self._numbers
        ]
        objects = [each for each in objects if each[2].size <= MAX_BYTES]
        if not objects:
            return
        from iofast.remote.ahead import Ahead  # here: workers of files start without object stores

        self._ahead, self.overlaps = self._ahead or Ahead(MOST_AHEAD), True
        numbers = self._ahead.add(wanted for _, _, wanted in objects)
        self._numbers |= {(position, file): at for at, (position, file, _) in zip(numbers, objects, strict=True)}

    def read(self, image: Image) -> ReadSample:
        """See `Origin.read`. Raises `StorageError` if an object store fails."""
        data = self._read(image, 0)
        beside = {}
        for number, (field, path) in enumerate(image.files, 1):
            try:
                beside[field] = self._read(image, number, empty=True)
            except StorageError:
                raise
            except (DecodeError, OSError) as error:
                reason = because(error) if isinstance(error, OSError) else str(error)
                raise DecodeError(f"{field}: its file cannot be read ({path!r}: {reason})") from None
        return ReadSample(data, beside, image)

    def _path(self, image: Image, number: int) -> str:
        """The path or URL of the image (0), or of the file beside it with this number."""
        return join(self._root, image.files[number - 1][1] if number else image.path)

    def _read(self, image: Image, number: int, *, empty: bool = False) -> bytes:
        path = self._path(image, number)
        if not is_url(path):
            return read_file(os.fsencode(path), empty=empty)
        wanted = self._wanted(image, number)
        if wanted.size > MAX_BYTES:
            raise DecodeError("the object is larger than 1 GiB")
        try:
            data = self._fetched(image.position, number, wanted)
        except ObjectMissingError:
            raise DecodeError("the object does not exist") from None
        except ObjectConflictError:
            raise DecodeError("the object changed after it was listed") from None
        if not data and not empty:
            raise DecodeError("the object is empty")
        return data

    def _fetched(self, position: int, number: int, wanted: ListedObject) -> bytes:
        from iofast.remote import ahead, requests

        at = self._numbers.pop((position, number), None)
        if at is not None and self._ahead is not None:
            return self._ahead.take(at, self.waiting)
        return requests.run(ahead.fetch(wanted), self.waiting)

    def _wanted(self, image: Image, number: int) -> ListedObject:
        from iofast.remote.ahead import ListedObject

        return ListedObject(self._path(image, number), *image.versions[number])


class RecordOrigin(Origin):
    """Samples that are the records of the containers `sources`.

    `foreign` are options of `open_reader`; `fields`, `upright` and `state` are those of `ContainerRows`.
    """

    def __init__(
        self,
        sources: Sequence[str],
        foreign: Mapping[str, Any] | None,
        fields: Mapping[str, str],
        state: str,
        upright: Collection[str] = (),
    ) -> None:
        self._sources, self._foreign, self._fields, self._state = sources, foreign, fields, state
        self._name = ", ".join(sources)
        self._upright = frozenset(upright)
        self._reader: Any = None  # opened by each worker for itself, when it has work
        self._ahead: dict[int, dict[str, bytes] | DecodeError] = {}
        self._wanted: list[str] = []
        self._ours = False  # iofast wrote `json`: it contains the path, and else only members that packing writes anew

    def begin(self, images: Sequence[Image]) -> None:
        """Open the container, once, and read a whole chunk, unless it is larger than chunks are. See `Origin.begin`.

        Records of 38 kB take 310 to 560 us each one by one, 130 to 200 four at a time: finding them costs most.
        """
        self._open()
        self._ahead = {}
        if not images:
            return
        places = np.array([image.place for image in images], np.int64)
        with contextlib.suppress(Exception):  # `read` then reads each alone, and the faulty one fails
            if int(self._reader.columns(places).length.sum()) <= MOST_AHEAD:
                self._ahead = self._fetch(places)

    def read(self, image: Image) -> ReadSample:
        """See `Origin.read`. A payload that contradicts its checksum is a `DecodeError`."""
        self._open()
        fields = self._ahead.pop(image.place, None) or self._alone(image.place)
        if isinstance(fields, DecodeError):
            raise fields
        name = image_field(fields) or next((name for name in OTHER_IMAGES if name in fields), None)
        if name is None:
            raise DecodeError(f"the record has no image (its fields: {', '.join(sorted(fields)) or 'none'})")
        data = fields.pop(name)
        if name in RAW_FIELDS:
            data = self._as_ppm(name, data, image.place)
        members = json_members(fields[JSON_FIELD]) if self._ours and JSON_FIELD in fields else None
        row = image._replace(path=_path(members) or image.path)
        return ReadSample(data, self._beside(fields, image, members), row, self._upright)

    def where(self, image: Image) -> str:
        if self._reader is not None:
            with contextlib.suppress(IofastError, OSError):  # the name itself may be damaged
                return str(self._reader.name(image.place))
        return self._name

    def check(self) -> None:
        self._reader = None
        self._open()
        self._reader.close()

    def _open(self) -> None:
        if self._reader is not None:
            return
        from iofast.containers.targets import state_of
        from iofast.opening import open_sources  # here: workers of files start without the readers of containers

        try:
            reader = open_sources(self._sources, self._foreign, unite=True)
        except (IofastError, OSError) as error:
            raise SourceError(f"{self._name} cannot be read any more: {error}") from None
        if state_of(reader, self._sources[0]) != self._state:
            raise SourceError(f"{self._name} was changed while it was packed")
        self._reader, self._ours = reader, reader.has_paths
        wanted = {*IMAGE_FIELDS, *RAW_FIELDS, *OTHER_IMAGES, *self._fields, *((JSON_FIELD,) if self._ours else ())}
        self._wanted = [name for name in reader.manifest.fields if name in wanted]

    def _alone(self, place: int) -> dict[str, bytes] | DecodeError:
        """The fields of one record, or its error."""
        places = np.array([place], np.int64)
        try:
            if int(self._reader.columns(places).length[0]) > MAX_BYTES:
                return DecodeError("the image is larger than 1 GiB")
            return self._fetch(places)[place]
        except (IofastError, OSError) as error:
            return DecodeError(f"the record is damaged ({error})")

    def _fetch(self, places: NDArray[np.int64]) -> dict[int, dict[str, bytes] | DecodeError]:
        """The wanted fields of some records, or the error of a damaged record, by place."""
        failed: Failures = {}
        records = dict(enumerate(self._reader.all_values(places, self._wanted, failed=failed)))
        records |= {row: DecodeError(f"the record is damaged ({error})") for row, error in failed.items()}
        return {place: records[row] for row, place in enumerate(places.tolist())}

    def _as_ppm(self, name: str, data: bytes, place: int) -> bytes:
        """Raw pixels as a PPM file, which every decoder reads."""
        row = self._reader.columns(np.array([place], np.int64))
        width, height = int(row.width[0]), int(row.height[0])
        if len(data) != raw_length(width, height):
            raise DecodeError(f"the record has {len(data)} bytes of raw pixels ({width}×{height} as {name})")
        return b"P6\n%d %d\n255\n" % (width, height) + data

    def _beside(self, fields: Mapping[str, bytes], image: Image, members: Mapping[str, Any] | None) -> dict[str, bytes]:
        """The fields beside the image, by their names in the new container. `members`: those of our own `json`."""
        beside: dict[str, bytes] = {}
        for name, payload in fields.items():
            goal = self._fields.get(name)
            if goal is None or (name == LABEL_FIELD and image.label >= 0):
                continue
            if name == JSON_FIELD and members and not set(members) - JSON_MEMBERS:
                continue  # packing writes all of it anew
            if goal in beside:
                names = ", ".join(sorted(fields))
                raise DecodeError(f"two fields of the record would be {goal}: choose with fields ({names})")
            beside[goal] = payload
        return beside


def origin_of(setup: Mapping[str, Any]) -> Origin:
    """The origin that `PackWork.setup` describes."""
    records = setup["records"]
    return FileOrigin(setup["root"]) if records is None else RecordOrigin(**records)


def read_file(path: bytes, *, empty: bool = False) -> bytes:
    """The bytes of a regular file of at most `MAX_BYTES`, and at least one unless `empty`.

    Raises `DecodeError`, also if the file changes meanwhile, and `OSError`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO would block forever
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DecodeError("not a regular file")
        if not (status.st_size > 0 or empty) or status.st_size > MAX_BYTES:
            raise DecodeError("the file is empty" if status.st_size == 0 else "the file is larger than 1 GiB")
        data = os.read(fd, status.st_size + 1)
        while len(data) <= status.st_size and (more := os.read(fd, status.st_size + 1 - len(data))):  # FUSE reads less
            data += more
        after = os.fstat(fd)
        if (len(data), after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise DecodeError(
                f"the file changed while it was read ({status.st_size} bytes before, {after.st_size} after)"
            )
        return data
    finally:
        os.close(fd)


def _path(members: Mapping[str, Any] | None) -> str | None:
    """The path in a `json` of ours, None without one that can be stored."""
    path = (members or {}).get("path")
    try:
        return path if isinstance(path, str) and path.encode() else None
    except UnicodeEncodeError:  # half a surrogate pair
        return None
