"""Contact sheets: some records of a container in one picture, upright, with labels, masks and boxes."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from iofast import kernel
from iofast.containers.base import Reader
from iofast.containers.changed import follow
from iofast.containers.columns import ABSENT
from iofast.errors import DecodeError, IofastError, OptionError
from iofast.kernel import lossless, memory, pillow
from iofast.kernel.contract import MAX_PIXELS
from iofast.option import check_choice, check_effect
from iofast.places import BOX_FORMATS, is_numbers
from iofast.record import IMAGE_FIELDS, JSON_FIELD, RAW_FIELDS, image_field, raw_length

MARGIN = 6  # pixels around every image
CAPTION = 16  # height of the text below it in pixels
MASK_SHARE = 0.45  # of a mask's colour in the pixels that it covers
MAX_CELLS = 10_000
MAX_SIDE = 2048  # of a cell
MAX_BOXES = 1000  # drawn on one image
_COCO = ("bbox", "bboxes")
_NAMES = (*_COCO, "box", "boxes")  # of members that hold boxes, as in packing

# neighbours differ in hue and lightness; 0 is background and is not drawn
_COLOURS = np.array(
    [
        (0, 0, 0), (230, 60, 50), (60, 170, 75), (65, 105, 225), (250, 190, 40), (145, 70, 180), (70, 200, 210),
        (240, 120, 30), (190, 220, 60), (240, 90, 190), (0, 128, 128), (154, 99, 36), (128, 0, 0), (128, 128, 0),
    ],
    np.uint8,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SheetOptions:
    """Options of a sheet.

    size        side of a cell in pixels
    columns     images per row; None = as many as make a picture of about 16:10
    mask        field to lay over the image; None = the first .png field that is not the image, "" = none
    boxes       field with boxes; None = the one of the container's packing, else `boxes.json`, else `json`; "" = none
    box_format  xyxy (corners) or xywh (corner and size); None = as packed, else xyxy, and xywh for members named `bbox`
                or `bboxes`, as in COCO
    """

    size: int = 160
    columns: int | None = None
    mask: str | None = None
    boxes: str | None = None
    box_format: str | None = None

    def __post_init__(self) -> None:
        if not 16 <= self.size <= MAX_SIDE:
            raise OptionError(f"size must be 16 to {MAX_SIDE} pixels of a cell, found {self.size}")
        if self.columns is not None and not 1 <= self.columns <= MAX_CELLS:
            raise OptionError(f"columns must be 1 to {MAX_CELLS}, found {self.columns}")
        if self.box_format is not None:
            check_effect(f"box_format={self.box_format}", self.boxes != "", "boxes=", "none")
            check_choice("box_format", self.box_format, BOX_FORMATS)


def contact_sheet(reader: Reader, indices: Sequence[int], options: SheetOptions | None = None) -> Image.Image:
    """Draw the records `indices` in rows, as RGB. The cell of an image that cannot be decoded has its error."""
    options = options or SheetOptions()
    if not 1 <= len(indices) <= MAX_CELLS:
        raise OptionError(f"a sheet has 1 to {MAX_CELLS} images, found {len(indices)}")
    columns = options.columns or max(1, min(len(indices), math.ceil(math.sqrt(len(indices) * 1.6))))
    cells = (_record_cell(reader, index, options) for index in indices)
    return _grid(cells, len(indices), columns, (options.size, options.size + CAPTION), MARGIN)


def _record_cell(reader: Reader, index: int, options: SheetOptions) -> Image.Image:
    side = options.size
    caption, square = _caption(reader, index), Image.new("RGB", (side, side), "white")
    try:
        picture = _picture(reader, index, options)
    except IofastError as error:
        return _cell((side, side + CAPTION), side, [], f"{index}: {error}")
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return _cell((side, side + CAPTION), side, [("", square)], caption)


@dataclass(frozen=True, slots=True)
class SheetImage:
    """A record's image after a transform: name ("" if none) and pixels, uint8 (height, width, 3), of each view.

    `failure` is the error if there are none.
    """

    index: int
    views: Sequence[tuple[str, NDArray[np.uint8]]]
    failure: str = ""


def views_sheet(reader: Reader, seen: Iterable[SheetImage], options: SheetOptions | None = None) -> Image.Image:
    """Draw records as RGB, the views of each side by side, in proportion to each other."""
    options = options or SheetOptions()
    records = [(each.index, _scaled(each.views, options.size), each.failure) for each in seen]
    most = max((len(views) for _, views, _ in records), default=0)
    if not 1 <= len(records) * max(most, 1) <= MAX_CELLS:
        raise OptionError(f"a sheet has 1 to {MAX_CELLS} images, found {len(records)} records of {most} views")
    width = max(options.size, *(sum(image.width + MARGIN for _, image in views) - MARGIN for _, views, _ in records))
    height = options.size + CAPTION * (1 + any(name for _, views, _ in records for name, _ in views))
    ratio = (height + MARGIN) / (width + 2 * MARGIN)
    columns = options.columns or max(1, min(len(records), round(math.sqrt(len(records) * 1.6 * ratio))))
    cells = (
        _cell((width, height), options.size, views, f"{index}: {failure}" if failure else _caption(reader, index))
        for index, views, failure in records
    )
    return _grid(cells, len(records), columns, (width, height), 2 * MARGIN)


def _grid(cells: Iterable[Image.Image], count: int, columns: int, size: tuple[int, int], gap: int) -> Image.Image:
    """Draw `count` cells of one size in rows, with `gap` pixels between columns."""
    across, down = size[0] + gap, size[1] + MARGIN
    sheet = Image.new("RGB", (2 * MARGIN + columns * across - gap, MARGIN + math.ceil(count / columns) * down), "white")
    for number, cell in enumerate(cells):
        sheet.paste(cell, (MARGIN + number % columns * across, MARGIN + number // columns * down))
    return sheet


def _cell(size: tuple[int, int], height: int, views: Sequence[tuple[str, Image.Image]], caption: str) -> Image.Image:
    """Draw views side by side, up to `height` pixels high, with their names and a caption below them."""
    cell = Image.new("RGB", size, "white")
    draw, font, x = ImageDraw.Draw(cell), ImageFont.load_default(12), 0
    lower = height + 1 + CAPTION * any(name for name, _ in views)
    draw.text((0, lower), _fitted(caption, size[0], font), fill="black", font=font)
    if not views:
        draw.rectangle((0, 0, height - 1, height - 1), outline="red")
        draw.text((4, 4), "cannot be decoded", fill="red", font=font)
    for name, image in views:
        cell.paste(image, (x, height - image.height))
        draw.text((x, height + 1), _fitted(name, image.width, font), fill="gray", font=font)
        x += image.width + MARGIN
    return cell


def _scaled(views: Sequence[tuple[str, NDArray[np.uint8]]], size: int) -> list[tuple[str, Image.Image]]:
    """Scale views alike, by at most 4, so that the longest side of all is `size`."""
    scale = min(size / max((max(pixels.shape[:2]) for _, pixels in views), default=1), 4.0)
    scaled = []
    for name, pixels in views:
        height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
        scaled.append((name, Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)))
    return scaled


def _picture(reader: Reader, index: int, options: SheetOptions) -> Image.Image:
    """Draw one record, scaled by at most 4 to fit a cell, with mask and boxes."""
    pixels = _pixels(reader, index)
    height, width = pixels.shape[:2]
    scale = min(options.size / max(width, height), 4.0)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
    fields = reader.record(index).fields
    mask = _mask_field(fields) if options.mask is None else options.mask
    if mask and mask in fields:
        image = _overlaid(image, fields[mask])
    draw = ImageDraw.Draw(image)
    for number, box in enumerate(_boxes(fields, *_box_field(reader, fields, options))):
        corners = [edge * part for edge, part in zip(box, (size[0] / width, size[1] / height) * 2, strict=True)]
        colour = tuple(_COLOURS[1 + number % (len(_COLOURS) - 1)].tolist())
        draw.rectangle(_ordered(corners, size), outline=colour, width=2)
    return image


def _pixels(reader: Reader, index: int) -> NDArray[np.uint8]:
    """Return the image of a record, upright RGB, uint8 (height, width, 3)."""
    located = reader.locate(np.array([index], np.int64)).bounded()
    if located.file[0] == ABSENT:
        raise DecodeError(f"{reader.name(index)} has no image")
    data = reader.view(index)
    if located.kind[0]:  # raw pixels
        width, height = int(located.width[0]), int(located.height[0])
        if len(data) != (size := raw_length(width, height)) or not size:
            raise DecodeError(f"{reader.name(index)} has {len(data)} bytes, {width}×{height} needs {size}")
        return np.frombuffer(data, np.uint8).reshape(height, width, 3)
    follow(reader, located, 0, data)
    if lossless.is_array(bytes(data), MAX_PIXELS):
        return lossless.shown(bytes(data))
    return kernel.decode(data, int(located.orientation[0]))


def _caption(reader: Reader, index: int) -> str:
    label = int(reader.columns(np.array([index], np.int64)).label[0])
    classes = reader.manifest.classes
    name = classes[label] if classes is not None and 0 <= label < len(classes) else str(label)
    return f"{index}" if label < 0 else f"{index}: {name}"


def _fitted(text: str, width: int, font: Any) -> str:
    """Return as much of a text as fits, on one line."""
    text = "".join(character if character.isprintable() else "?" for character in text[:200])
    while text and font.getlength(text) > width:
        text = text[:-2] + "…" if len(text) > 2 else ""
    return text


def _mask_field(fields: Mapping[str, bytes]) -> str | None:
    """Return the first PNG field that is not the image."""
    own = (*IMAGE_FIELDS, *RAW_FIELDS)
    return next((name for name in sorted(fields) if name not in own and name.rpartition(".")[2] == "png"), None)


def _overlaid(image: Image.Image, payload: bytes) -> Image.Image:
    """Return the image with a mask's values as colours over it; 0 is transparent."""
    with pillow.as_decode_errors():
        mask = np.asarray(memory.loaded(payload).image.resize(image.size, Image.Resampling.NEAREST))
    values = mask.max(axis=2) if mask.ndim == 3 else mask
    values = values.astype(np.int64)
    colours = _COLOURS[np.where(values == 0, 0, 1 + (values - 1) % (len(_COLOURS) - 1))].astype(np.float32)
    share = np.where(values == 0, 0.0, MASK_SHARE).astype(np.float32)[..., None]
    mixed = np.asarray(image, np.float32) * (1 - share) + colours * share
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def _box_field(reader: Reader, fields: Mapping[str, bytes], options: SheetOptions) -> tuple[str, str | None]:
    """Return the field with the boxes of a record, and their format, None if unknown."""
    packed = str(reader.manifest.recipe.get("boxes"))
    name = options.boxes
    if name is None:
        name = next((own for own in (packed, "boxes.json") if own in fields), JSON_FIELD)
    packed_format = str(reader.manifest.recipe.get("box_format", "xyxy")) if name == packed else None
    return name, options.box_format or packed_format


def _boxes(fields: Mapping[str, bytes], name: str, box_format: str | None) -> list[tuple[float, float, float, float]]:
    """Return up to `MAX_BOXES` boxes of a record as corners, in pixels of the upright image."""
    try:
        value = json.loads(fields[name]) if name in fields else None
        if name == JSON_FIELD:  # it has other members too
            value = value.get("boxes", value.get("annotations")) if isinstance(value, dict) else None
        return list(itertools.islice(_boxes_in(value, box_format, coco=False), MAX_BOXES))
    except (ValueError, RecursionError):
        return []


def _boxes_in(value: Any, box_format: str | None, *, coco: bool) -> Iterator[tuple[float, float, float, float]]:
    """Yield boxes at any depth: four numbers, in lists, and in objects under one of `_NAMES`.

    `coco`: they are under a name of COCO's, which means corner and size.
    """
    if isinstance(value, dict):
        for name, member in value.items():
            # other lists count only if they contain objects: polygons are lists of numbers too
            has_objects = isinstance(member, list) and any(isinstance(each, dict) for each in member)
            if name in _NAMES or isinstance(member, dict) or has_objects:
                yield from _boxes_in(member, box_format, coco=name in _COCO)
    elif is_numbers(value) and len(value) == 4:
        x, y, right, lower = (float(max(-1e6, min(1e6, number))) for number in value)
        sizes = box_format == "xywh" or (box_format is None and coco)
        yield (x, y, x + right, y + lower) if sizes else (x, y, right, lower)
    elif isinstance(value, list) and not is_numbers(value):
        for item in value:
            yield from _boxes_in(item, box_format, coco=coco)


def _ordered(corners: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return corners as Pillow needs them: in order, within the picture."""
    x = sorted(min(max(edge, 0.0), size[0] - 1.0) for edge in corners[::2])
    y = sorted(min(max(edge, 0.0), size[1] - 1.0) for edge in corners[1::2])
    return x[0], y[0], x[1], y[1]


def require_fields(reader: Reader, options: SheetOptions, where: str) -> None:
    """Raise `OptionError` if there are no images, or a field of the options is missing."""
    fields = reader.manifest.fields
    if image_field(fields) is None:
        raise OptionError(f"{where} has no images, only {', '.join(fields)}")
    for what, name in (("mask", options.mask), ("boxes", options.boxes)):
        if name and name not in fields:
            raise OptionError(f"{where} has no field {name!r} for {what}, only {', '.join(fields)}")
