"""The TFRecord container: a `tf.train.Example` per record, named as ImageNet's (docs/format.md section 6).

The framing of any TFRecord file: length, checksum of the length, data, checksum of the data; nothing else is in the
file. The length has its own checksum, so a walk over a file reads 12 bytes per record and recognises a record that was
cut off.
"""

import functools
import os
import re
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from iofast.containers.file_bytes import FileBytes, retried
from iofast.containers.manifest import Description
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shard_writer import EncodedRecord, ShardWriter
from iofast.containers.shards import stem_with
from iofast.containers.tfrecord_example import encode as encode_example
from iofast.errors import ContainerError, OptionError
from iofast.kernel import crc32c
from iofast.record import ARRAY_FIELD, IMAGE_FIELDS, JSON_FIELD, ImageInfo, image_field, json_members

LABEL_BASE = "label_base"  # member of the recipe: 1 if 0 means background, as in ImageNet converters

# x.tfrecord, x-00000-of-00008.tfrecord; ImageNet's train-00000-of-01024; TensorFlow Datasets' x.tfrecord-00000-of-00008
_NAMES = re.compile(r".+(\.tfrecords?|\.tfrecords?-\d+-of-\d+|-\d{5,}-of-\d{5,})(\.gz|\.gzip|\.zlib|\.z)?", re.ASCII)
_FORMATS = {"jpg": b"JPEG", "png": b"PNG", "webp": b"WEBP", ARRAY_FIELD: b"NPY"}
_COLOURS: dict[str, bytes | int] = {"image/channels": 3, "image/colorspace": b"RGB"}  # of what a decoder makes
_OWN = "iofast/"
_KEY = _OWN + "key"
_KEY_FIELD = _OWN + "field/key"  # a field called `key`
_MAX_JSON = 1 << 20  # bytes of a `json` that is searched for a path
HEAD = 12  # u64 length, u32 masked CRC32C of these 8 bytes
FOOT = 4  # u32 masked CRC32C of the data
MAX_DATA = (1 << 31) - 1  # bytes of one record: no protobuf library reads a longer message
_LENGTH = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_DELTA = 0xA282EAD8
_ZLIB = {b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"}


@functools.lru_cache(maxsize=256)  # most records have the same fields
def _features_of(fields: tuple[str, ...], image: str | None) -> tuple[str, ...]:
    """The name of the feature for each field of a record with this image field."""
    encoded = image if image in IMAGE_FIELDS else None
    special = {encoded: "image/encoded", "key": _KEY_FIELD}
    return tuple([special.get(field) or _OWN + field for field in fields])


def is_named_so(name: str) -> bool:
    """Whether a file of this name (in lower case) is a TFRecord, perhaps a compressed one, which readers refuse."""
    return _NAMES.fullmatch(name) is not None


class TfrecordWriter(ShardWriter):
    """Writes a set of TFRecord shards; see `ShardWriter`. Every record contains its class name, and the label base.

    A record must fit one protobuf message, 2 GiB. Raises `OptionError` for another label base than 0 or 1.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, description: Description, key_width: int) -> None:
        base = (description.recipe or {}).get(LABEL_BASE, 0)
        if base not in (0, 1) or not isinstance(base, int):
            raise OptionError(f"the recipe's {LABEL_BASE} must be 0 or 1, found {base!r}")
        self._classes, self._base = description.classes, base
        super().__init__(folder, name, description, key_width)

    def encode(self, key: str, fields: Mapping[str, bytes], info: ImageInfo) -> EncodedRecord:
        image = image_field(fields)
        names = _features_of(tuple(fields), image)
        features: dict[str, bytes | int] = dict(zip(names, fields.values(), strict=True))
        features[_KEY] = key.encode()
        if image in IMAGE_FIELDS:
            features |= {"image/format": _FORMATS[image]} | ({} if image == ARRAY_FIELD else _COLOURS)
        if image is not None and info.width and info.height:
            features |= {"image/width": info.width, "image/height": info.height}
        if info.label >= 0:
            features["image/class/label"] = info.label + self._base
            if self._classes is not None and info.label < len(self._classes):
                features["image/class/text"] = self._classes[info.label].encode(errors="backslashreplace")
        filename = _filename(fields.get(JSON_FIELD))
        if filename:
            features["image/filename"] = filename
        pieces, crc, places = encode_example(features)
        length = sum(map(len, pieces))
        offsets = {field: HEAD + places[feature] for field, feature in zip(fields, names, strict=True)}
        return EncodedRecord([head(length), *pieces, foot(crc)], HEAD + length + FOOT, offsets)

    def _name(self, split: str, number: int, total: int) -> str:
        return f"{stem_with(self.stem, split)}-{number:05d}-of-{total:05d}{self.suffix}"

    def _shape(self) -> list[object]:
        classes = None if self._classes is None else list(self._classes)
        return [*super()._shape(), classes, self._base]


class TfrecordReader(ShardReader):
    """Random access to a set of TFRecord shards that iofast wrote; see `ShardReader`. No Example is parsed."""

    container = "tfrecord"
    writer = TfrecordWriter


def _filename(text: bytes | None) -> bytes:
    """The last part of `path` in a record's `json`; empty if there is none."""
    if text is None or len(text) > _MAX_JSON or b'"path"' not in text:
        return b""
    path = json_members(text).get("path")
    return path.rpartition("/")[2].encode(errors="backslashreplace") if isinstance(path, str) else b""


class Framing(NamedTuple):
    """The place of one record's data in a file, without the framing."""

    offset: int  # of the data's first byte
    length: int  # bytes of data

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self.offset + self.length + FOOT


def mask(crc: int) -> int:
    """The checksum as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """The plain CRC32C of a stored one."""
    rotated = (masked - _DELTA) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def head(length: int) -> bytes:
    """The 12 bytes before the data. Raises `ContainerError` for more data than protobuf libraries read."""
    if length > MAX_DATA:
        raise ContainerError(f"a TFRecord of {length} bytes is longer than protobuf allows, {MAX_DATA}")
    packed = _LENGTH.pack(length)
    return packed + _U32.pack(mask(crc32c(packed)))


def foot(crc: int) -> bytes:
    """The 4 bytes after data with this (plain) CRC32C."""
    return _U32.pack(mask(crc))


def read_frame(data: FileBytes, offset: int) -> Framing:
    """The record at `offset`: its length is compared with its checksum and with the file; no data is read.

    Raises `ContainerError` that names file and offset.
    """
    rest = len(data) - offset
    if rest < HEAD:
        raise ContainerError(f"{data.path} ends within a record at offset {offset}: {rest} of {HEAD} bytes of its head")
    start = data[offset : offset + HEAD]
    length = _LENGTH.unpack_from(start)[0]
    if _U32.unpack_from(start, 8)[0] != mask(crc32c(start[:8])):
        compressed = compression(start) if offset == 0 else None
        if compressed is not None:
            raise ContainerError(
                f"{data.path} is compressed as a whole with {compressed}, so no record of it can be found: unpack it"
            )
        raise ContainerError(f"{data.path} is damaged at offset {offset}: the CRC32C of a record's length differs")
    if length > MAX_DATA:
        raise ContainerError(f"{data.path}: the record at offset {offset} has {length} bytes, more than {MAX_DATA}")
    if length > rest - HEAD - FOOT:
        expected = f"expected {length + HEAD + FOOT} bytes, found {rest}"
        raise ContainerError(f"{data.path} ends within the record at offset {offset}: {expected}")
    return Framing(offset + HEAD, length)


def read_data(data: FileBytes, frame: Framing) -> bytes:
    """The data of a record, checked. Raises `ContainerError` that names file and offset."""
    return retried(data, partial(_read_data, data, frame))


def _read_data(data: FileBytes, frame: Framing) -> bytes:
    both = data[frame.offset : frame.end]
    content = both[: frame.length]
    if _U32.unpack_from(both, frame.length)[0] != mask(crc32c(content)):
        at = frame.offset - HEAD
        raise ContainerError(f"{data.path} is damaged in the record at offset {at}: the CRC32C of its data differs")
    return content


def frames(data: FileBytes, offset: int = 0) -> Iterator[Framing]:
    """All records from `offset` to the end of the file. Raises like `read_frame` for an incomplete record."""
    while offset < len(data):
        frame = retried(data, partial(read_frame, data, offset))
        yield frame
        offset = frame.end


def compression(start: bytes) -> str | None:
    """The compression of a file that begins with these bytes, or None."""
    if start.startswith(b"\x1f\x8b"):
        return "GZIP"
    return "ZLIB" if start[:2] in _ZLIB else None
