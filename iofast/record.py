"""The record: a key and a mapping from field name to bytes. A container stores nothing else.

This module enforces the rules of docs/format.md for keys and fields.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iofast.errors import ContainerError

KEY_WIDTH = 8  # digits, enough for 10^8 records; `txn.get(b"00000042.jpg")` stays typeable
MAX_FIELD_NAME = 64  # an LMDB key has 511 bytes and a USTAR name 100; key + "." + field must fit both
MAX_PAYLOAD = (1 << 32) - 1  # bytes; an LMDB value and the index's u32 length both end here
LONGEST_SIDE = (1 << 21) - 1  # pixels; a row of the index has 21 bits for each side

ARRAY_FIELD = "image.npy"  # an image of any channels and bits
FIELD_OF_FORMAT = {"jpeg": "jpg", "png": "png", "webp": "webp", "npy": ARRAY_FIELD}  # image files that are stored
IMAGE_FIELDS = tuple(FIELD_OF_FORMAT.values())  # a record's image is the first of these, or raw pixels
RAW_FIELDS = ("rgb",)  # raw pixels, with width and height in `json`; the kernel numbers them from 1
LABEL_FIELD = "cls"
# of images, in the order in which `image_field` looks for them, and of the numbers in an index
KINDS = ("jpg", "png", "webp", *RAW_FIELDS, ARRAY_FIELD)
PICKLED = ("pkl", "pyd", "pickle", "pth")  # suffixes of fields that are never written: loading them runs code
JSON_FIELD = "json"
# words in field names that nearly always mean places in the image
_PLACES = frozenset(
    (
        *("box", "boxes", "bbox", "bboxes", "objects", "annotations", "instances"),
        *("point", "points", "keypoints", "landmarks", "polygon", "polygons", "contours"),
        *("mask", "masks", "seg", "segmentation", "semantic", "depth"),
    )
)
# members of `json` that iofast writes when it packs or converts
JSON_MEMBERS = frozenset(("path", "original_width", "original_height", "width", "height", "packed", "key"))

_FIELD = re.compile(r"[0-9a-z_-]+(\.[0-9a-z_-]+)*", re.ASCII)


def holds_places(field: str) -> bool:
    """Whether the name of a field means places in the image: `boxes.json`, `points.json`, `mask.npy`."""
    *words, suffix = re.split(r"[._-]", field)
    return suffix in ("json", "npy", "npz") and not _PLACES.isdisjoint(words)


@dataclass(frozen=True, slots=True)
class Record:
    """One sample: `key` is ASCII without dots or spaces, `fields` maps a field name to its payload."""

    key: str
    fields: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The index's data about a record, besides the places of its fields.

    `width` and `height` are in pixels, upright (after EXIF orientation), 0 = unknown. `orientation` is the EXIF
    orientation 1–8 that a decoder must still apply to the stored payload. `label` is −1 if there is none.
    """

    label: int = -1
    width: int = 0
    height: int = 0
    orientation: int = 1


def format_key(position: int, width: int = KEY_WIDTH) -> str:
    """The key of the record at `position` of the packing order: decimal, zero-padded, so that keys sort."""
    key = f"{position:0{width}d}"
    if position < 0 or len(key) > width:
        raise ContainerError(f"position {position} does not fit a key of {width} digits")
    return key


def key_width(count: int) -> int:
    """The digits of keys in a container of `count` records: 8, or as many as the last position needs."""
    return max(KEY_WIDTH, len(str(count - 1)))


@functools.lru_cache(maxsize=1024)
def check_field(name: str) -> str:
    """Return `name` if it is a legal field name, else raise `ContainerError`."""
    if len(name) > MAX_FIELD_NAME or not _FIELD.fullmatch(name) or name.startswith("__"):
        raise ContainerError(
            f"field name {name!r} is not up to {MAX_FIELD_NAME} lower-case characters 0-9 a-z _ - . (as in 'seg.png')"
        )
    return name


def is_stored(name: str) -> bool:
    """Whether a field of another program can be stored: its name is legal, and it is not a pickle."""
    try:
        return check_field(name).rpartition(".")[2] not in PICKLED
    except ContainerError:
        return False


def field_of(image_format: str) -> str:
    """The field for an image of a `kernel.Header.format`, even if no container of iofast stores such images."""
    return FIELD_OF_FORMAT.get(image_format, "tif" if image_format == "tiff" else image_format)


def raw_length(width: int, height: int) -> int:
    """Bytes of a payload `rgb` of `width` x `height` pixels."""
    return 3 * width * height


def image_field(fields: Mapping[str, object] | tuple[str, ...]) -> str | None:
    """The name of the field with the image: the first of jpg, png, webp, rgb, image.npy."""
    for name in KINDS:  # a loop, because this runs several times per record
        if name in fields:
            return name
    return None


def json_members(text: bytes | None) -> dict[str, Any]:
    """The members of the JSON object in a payload; none for any other payload."""
    try:
        value = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
