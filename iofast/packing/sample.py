"""One sample: from the bytes of the source to the record that is stored."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from iofast import kernel
from iofast.containers.journal import JournalRecord
from iofast.errors import DecodeError, OptionError
from iofast.kernel import markers
from iofast.kernel.mask import transcode_mask
from iofast.places import BOX_FORMATS, Geometry, move
from iofast.record import RAW_FIELDS, ImageInfo, holds_places

if TYPE_CHECKING:
    from iofast.source.listing import Column

_LEAST_STEP = 1 << 9  # bytes of a gzip member that are tried first: zlib copies what is behind its end
MAX_UNZIPPED = 1 << 28  # bytes of a gzip'd image; a few hundred kilobytes can claim any number
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_JPEG = b"\xff\xd8\xff"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class SampleRecipe:
    """Every option that shapes a sample.

    `min_size` (pixels of the short side) and `max_aspect` (long side over short) leave images out, by their upright
    size in the source. `boxes` and `keypoints` are the fields whose JSON holds them, boxes as `box_format` says.
    `upright`: masks, boxes and keypoints were made on upright images, not on the pixels as they are stored.
    `mask_fill`: the value of a mask beside a padded image.
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
        if self.box_format not in BOX_FORMATS:
            raise OptionError(f"box_format must be one of {', '.join(BOX_FORMATS)}, found {self.box_format!r}")
        if not 0 <= self.mask_fill <= 65_535:
            raise OptionError(f"mask_fill must be 0 to 65535, found {self.mask_fill}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The recipe that `asdict` gave `settings` of."""
        return cls(**{**settings, "image": kernel.TranscodeRecipe(**settings["image"])})

    def check_fields(self, columns: Sequence[Column]) -> list[str]:
        """Raise `OptionError` unless what follows the image can; warnings of what looks as if it did and does not."""
        fields = [column.field for column in columns]
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
                    f"the column of {column.field} holds values, and masks that follow their images are files: name a "
                    "column of their paths as mask_column"
                )
        left = [field for field in fields if holds_places(field) and field not in (self.boxes, self.keypoints)]
        told = "is stored as it is, though images are resized:"
        json, other = "as boxes= or keypoints= it follows them", "only masks that are PNG files follow them"
        resized = left if self.image.size is not None else []
        return [f"field {field} {told} {json if field.endswith('json') else other}" for field in resized]

    def _leaves_behind(self, column: Column) -> bool:
        """Whether a column has no files, but values that are no PNGs or would keep the size that their image had."""
        from iofast.source.listing import PLAIN  # in the parent alone: it would cost the workers their start

        plain = (column.states == PLAIN).nonzero()[0]
        return bool(len(plain)) and (
            self.image.size is not None or not column.values[int(plain[0])].startswith(b"\x89PNG")
        )

    def admits(self, width: int, height: int) -> bool:
        """Whether an image of this upright size is packed."""
        short, long = sorted((width, height))
        small = self.min_size is not None and short < self.min_size
        return not small and (self.max_aspect is None or long <= self.max_aspect * short)


class Image(NamedTuple):
    """One sample of a chunk: as the parent's frame lists it. Paths are as os.fsdecode gives them."""

    position: int
    split: int
    label: int
    path: str  # relative to the chunk's root, or absolute; so are those of `files`. Of a record: its key
    files: Sequence[tuple[str, str]] = ()  # field and path of each file that belongs to the sample beside the image
    texts: Mapping[str, str] = {}  # fields that lie in no file and have to follow the image
    place: int = -1  # of a record: its dense index in the container


def make_record(
    data: bytes,
    image: Image,
    recipe: SampleRecipe,
    attached: Mapping[str, bytes] | None = None,
    upright: Collection[str] = (),
) -> JournalRecord | None:
    """The record of one image file and of the fields `attached` to it; None where the recipe leaves it out.

    `upright`: fields that belong to upright pixels, whatever the recipe says. Without the fields that the source's own
    columns become, but for those that follow the image. Raises `DecodeError`.
    """
    data = unzipped(data)
    beside = {**(attached or {}), **{field: text.encode() for field, text in image.texts.items()}}
    header = kernel.read_header(data) if recipe.min_size or recipe.max_aspect or beside else None
    if header is not None and not recipe.admits(header.width, header.height):
        return None
    made = kernel.transcode(data, recipe.image)
    about = {
        "path": os.fsencode(image.path).decode("utf-8", "backslashreplace"),
        "original_width": made.original_width,
        "original_height": made.original_height,
        "packed": _packed(data, made, recipe.image),
    }
    if made.field in RAW_FIELDS:
        about |= {"width": made.width, "height": made.height}
    fields = {made.field: made.data, "json": _JSON.encode(about).encode("ascii")}
    if image.label >= 0:
        fields["cls"] = b"%d" % image.label
    if header is not None:
        turned = replace(recipe, upright=True) if upright else recipe
        fields |= {
            field: _following(field, payload, header, turned if field in upright else recipe)
            for field, payload in beside.items()
        }
    info = ImageInfo(image.label, made.width, made.height, made.orientation)
    return JournalRecord(image.position, image.split, info, fields)


def _following(field: str, payload: bytes, image: kernel.Header, recipe: SampleRecipe) -> bytes:
    """What a field beside the image becomes when the image is changed."""
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


def _packed(data: bytes, made: kernel.Transcoded, recipe: kernel.TranscodeRecipe) -> str:
    """What was done with the image, in one word."""
    if made.data == data:
        return "kept"
    if (made.width, made.height) != (made.original_width, made.original_height):
        return "resized"
    same = recipe.format == "keep" and data.startswith(_JPEG)
    if same and recipe.icc == "srgb":  # writing a JPEG again keeps its profile, converting it does not
        same = bool(markers.profile(made.data)) == bool(markers.profile(data))
    return "rewritten" if same else "encoded"


def unzipped(data: bytes) -> bytes:
    """What a gzip file holds, and any other file's bytes as they are. Raises `DecodeError`."""
    if not data.startswith(_GZIP):
        return data
    parts: list[bytes] = []
    at = size = 0
    while data.startswith(_GZIP, at):  # a file may hold several members, one behind the other
        unpacker, step = zlib.decompressobj(wbits=31), _LEAST_STEP
        while not unpacker.eof:
            piece = data[at : at + step]
            if not piece:
                raise DecodeError("the gzip file is truncated")
            try:
                parts.append(unpacker.decompress(piece, MAX_UNZIPPED - size + 1))
            except zlib.error as error:
                raise DecodeError(f"the gzip file is damaged ({error})") from None
            size += len(parts[-1])
            if size > MAX_UNZIPPED:
                raise DecodeError(f"the gzip file unpacks to more than {MAX_UNZIPPED >> 20} MiB")
            at, step = at + len(piece) - len(unpacker.unused_data), 2 * step
    return b"".join(parts)
