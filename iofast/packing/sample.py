"""Make the record of one sample from its bytes in the source."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from iofast import kernel
from iofast.errors import DecodeError, OptionError
from iofast.kernel import markers
from iofast.kernel.mask import transcode_mask
from iofast.option import check_choice
from iofast.packing.messages import PackedRecord
from iofast.places import BOX_FORMATS, Geometry, move
from iofast.record import RAW_FIELDS, ImageInfo, holds_places

if TYPE_CHECKING:
    from iofast.source.listing import Column

MAX_UNZIPPED = 1 << 28  # bytes of a gzipped image; a few hundred kilobytes can claim any number
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_JPEG = b"\xff\xd8\xff"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class SampleRecipe:
    """Every option that shapes a sample.

    `min_size` (pixels of the short side) and `max_aspect` (long side over short) leave images out, by their upright
    size in the source. `boxes` and `keypoints` name the fields whose JSON contains them; boxes are in `box_format`.
    `upright`: masks, boxes and keypoints belong to upright images, not to the pixels as they are stored.
    `mask_fill`: the value of a mask in the padding of its image.
    """

    image: kernel.TranscodeRecipe
    min_size: int | None = None
    max_aspect: float | None = None
    boxes: str | None = None
    box_format: str = "xyxy"
    keypoints: str | None = None
    upright: bool = False
    mask_fill: int = 0

    def __post_init__(self) -> None:
        if self.min_size is not None and (type(self.min_size) is not int or self.min_size < 1):
            raise OptionError(f"min_size must be a number of pixels, 1 or more, found {self.min_size!r}")
        if self.max_aspect is not None and not self.max_aspect >= 1:
            raise OptionError(f"max_aspect must be 1 (squares only) or more, found {self.max_aspect!r}")
        check_choice("box_format", self.box_format, BOX_FORMATS)
        if not 0 <= self.mask_fill <= 65_535:
            raise OptionError(f"mask_fill must be 0 to 65535, found {self.mask_fill}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The recipe from its members, as `asdict` gives them."""
        return cls(**{**settings, "image": kernel.TranscodeRecipe(**settings["image"])})

    def check_fields(self, fields: Sequence[str], columns: Sequence[Column]) -> list[str]:
        """Return warnings for fields that should follow the image but do not. Raises `OptionError` if one cannot."""
        for name, field in (("boxes", self.boxes), ("keypoints", self.keypoints)):
            if field is not None and field not in fields:
                raise OptionError(f"{name} {field!r} is no field: found {', '.join(fields) or 'none beside the image'}")
        if self.upright and not fields:
            raise OptionError(
                "upright_annotations is for masks, boxes and keypoints: there is no field beside the image"
            )
        for column in columns:
            if column.field.endswith(".png") and self._leaves_behind(column):
                raise OptionError(
                    f"the column of {column.field} holds values, but masks that follow their images are files: name a "
                    "column of their paths as mask_column"
                )
        if self.image.size is None:
            return []
        json, other = "as boxes= or keypoints= it follows them", "only masks that are PNG files follow them"
        return [
            f"field {field} is stored as it is, though images are resized: {json if field.endswith('json') else other}"
            for field in fields
            if holds_places(field) and field not in (self.boxes, self.keypoints)
        ]

    def _leaves_behind(self, column: Column) -> bool:
        """Whether a column has values instead of files, which are no PNGs or would keep the size of the original."""
        from iofast.source.listing import PLAIN  # here: workers do not need it, and it would delay their start

        plain = (column.states == PLAIN).nonzero()[0]
        if not len(plain):
            return False
        return self.image.size is not None or not column.values[int(plain[0])].startswith(b"\x89PNG")

    def admits(self, width: int, height: int) -> bool:
        """Whether an image of this upright size is packed."""
        short, long = sorted((width, height))
        small = self.min_size is not None and short < self.min_size
        return not small and (self.max_aspect is None or long <= self.max_aspect * short)


class Image(NamedTuple):
    """One image of a chunk, as the packing process lists it. Paths are as `os.fsdecode` gives them."""

    position: int
    label: int
    path: str  # relative to the chunk's root, or absolute, as are those of `files`; of a record: its key
    files: Sequence[tuple[str, str]] = ()  # field and path of each file beside the image
    texts: Mapping[str, str] = {}  # fields that lie in no file and have to follow the image
    place: int = -1  # of a record: its dense index in the container
    versions: Sequence[tuple[int, str]] = ()  # size and version of the image and each of `files`, in object stores


class ReadSample(NamedTuple):
    """A sample as read from its source: the image file, the fields beside it, and its row with the original path.

    `upright`: fields that belong to upright pixels, whatever the recipe says.
    """

    data: bytes
    beside: Mapping[str, bytes]
    image: Image
    upright: Collection[str] = ()


def make_record(sample: ReadSample, recipe: SampleRecipe) -> PackedRecord | None:
    """The record of one sample; None if the recipe leaves it out. Raises `DecodeError`.

    It lacks fields that the source's columns become, unless they follow the image; the packing process adds them.
    """
    image, data = sample.image, unzipped(sample.data)
    beside = {**sample.beside, **{field: text.encode() for field, text in image.texts.items()}}
    header, limits = None, (recipe.image.max_pixels, recipe.image.max_memory)
    if recipe.min_size or recipe.max_aspect or beside:
        header = kernel.read_header(data, *limits)
    if header is not None and not recipe.admits(header.width, header.height):
        return None
    packed = kernel.transcode(data, recipe.image)
    about = {
        "path": os.fsencode(image.path).decode("utf-8", "backslashreplace"),
        "original_width": packed.original_width,
        "original_height": packed.original_height,
        "packed": _kind_of_packing(data, packed, recipe.image),
    }
    if packed.field in RAW_FIELDS:
        about |= {"width": packed.width, "height": packed.height}
    fields = {packed.field: packed.data, "json": _JSON.encode(about).encode("ascii")}
    if image.label >= 0:
        fields["cls"] = b"%d" % image.label
    if header is not None:
        upright = replace(recipe, upright=True) if sample.upright else recipe
        for field, payload in beside.items():
            fields[field] = _following(field, payload, header, upright if field in sample.upright else recipe)
    info = ImageInfo(image.label, packed.width, packed.height, packed.orientation)
    crcs = {field: kernel.crc32c(payload) for field, payload in fields.items()}
    return PackedRecord(image.position, info, fields, crcs)


def _following(field: str, payload: bytes, image: kernel.Header, recipe: SampleRecipe) -> bytes:
    """A field beside the image, changed as the image is."""
    try:
        if field.endswith(".png"):
            return transcode_mask(payload, recipe.image, image, upright=recipe.upright, fill=recipe.mask_fill)
        boxes, points = field == recipe.boxes, field == recipe.keypoints
        if not boxes and not points:
            return payload
        geometry = Geometry.of(recipe.image, image, upright=recipe.upright)
        return move(payload, geometry, boxes=boxes, points=points, box_format=recipe.box_format)
    except DecodeError as error:
        raise DecodeError(f"{field}: {error}") from None


def _kind_of_packing(data: bytes, packed: kernel.Transcoded, recipe: kernel.TranscodeRecipe) -> str:
    """kept, resized, rewritten (a JPEG with the same pixels) or encoded."""
    if packed.data == data:
        return "kept"
    if (packed.width, packed.height) != (packed.original_width, packed.original_height):
        return "resized"
    whole = recipe.truncated is None or markers.has_end(data) or packed.data.startswith(data)
    same = recipe.format == "keep" and data.startswith(_JPEG) and whole
    if same and recipe.icc == "srgb":  # rewriting a JPEG keeps its colour profile, converting it does not
        same = bool(markers.profile(packed.data)) == bool(markers.profile(data))
    return "rewritten" if same else "encoded"


def unzipped(data: bytes) -> bytes:
    """The contents of a gzip file; other bytes as they are. Raises `DecodeError`."""
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(MAX_UNZIPPED + 1)
    except EOFError:
        raise DecodeError("the gzip file is truncated") from None
    except (OSError, zlib.error) as error:
        raise DecodeError(f"the gzip file is damaged ({error})") from None
    if len(unpacked) > MAX_UNZIPPED:
        raise DecodeError(f"the gzip file unpacks to more than {MAX_UNZIPPED >> 20} MiB")
    return unpacked
