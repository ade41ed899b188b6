"""The TFRecord container: a `tf.train.Example` per record, named as ImageNet's (docs/format.md section 6)."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping

from iofast.containers.manifest import Description
from iofast.containers.shard_reader import ShardReader
from iofast.containers.shard_writer import EncodedRecord, ShardWriter
from iofast.containers.shards import stem_with
from iofast.containers.tfrecord_example import encode as encode_example
from iofast.containers.tfrecord_framing import FOOT, HEAD, foot, head
from iofast.errors import OptionError
from iofast.record import ARRAY_FIELD, IMAGE_FIELDS, JSON_FIELD, ImageInfo, image_field

LABEL_BASE = "label_base"  # member of the recipe: 1 if 0 means background, as in ImageNet converters

# x.tfrecord, x-00000-of-00008.tfrecord; ImageNet's train-00000-of-01024; TensorFlow Datasets' x.tfrecord-00000-of-00008
_NAMES = re.compile(r".+(\.tfrecords?|\.tfrecords?-\d+-of-\d+|-\d{5,}-of-\d{5,})(\.gz|\.gzip|\.zlib|\.z)?", re.ASCII)
_FORMATS = {"jpg": b"JPEG", "png": b"PNG", "webp": b"WEBP", ARRAY_FIELD: b"NPY"}
_COLOURS: dict[str, bytes | int] = {"image/channels": 3, "image/colorspace": b"RGB"}  # of what a decoder makes
_OWN = "iofast/"
_KEY = _OWN + "key"
_KEY_FIELD = _OWN + "field/key"  # a field called `key`
_MAX_JSON = 1 << 20  # bytes of a `json` that is searched for a path


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
        self._classes, self._base = description.classes, _label_base(description)
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
        example = encode_example(features)
        offsets = {field: HEAD + example.places[feature] for field, feature in zip(fields, names, strict=True)}
        length = HEAD + example.length + FOOT
        return EncodedRecord([head(example.length), *example.pieces, foot(example.crc)], length, offsets)

    def _name(self, split: str, number: int, total: int) -> str:
        return f"{stem_with(self.stem, split)}-{number:05d}-of-{total:05d}{self.suffix}"

    def _shape(self) -> list[object]:
        classes = None if self._classes is None else list(self._classes)
        return [*super()._shape(), classes, self._base]


class TfrecordReader(ShardReader):
    """Random access to a set of TFRecord shards that iofast wrote; see `ShardReader`. No Example is parsed."""

    container = "tfrecord"
    writer = TfrecordWriter


def _label_base(description: Description) -> int:
    base = (description.recipe or {}).get(LABEL_BASE, 0)
    if base not in (0, 1) or not isinstance(base, int):
        raise OptionError(f"the recipe's {LABEL_BASE} must be 0 or 1, found {base!r}")
    return base


def _filename(text: bytes | None) -> bytes:
    """The last part of `path` in a record's `json`; empty if there is none."""
    if text is None or len(text) > _MAX_JSON or b'"path"' not in text:
        return b""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return b""
    path = members.get("path") if isinstance(members, dict) else None
    return path.rpartition("/")[2].encode(errors="backslashreplace") if isinstance(path, str) else b""
