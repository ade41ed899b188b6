"""A contact sheet: some records of a container as one picture, with labels, masks and boxes, everything upright."""

from __future__ import annotations

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
from iofast.errors import DecodeError, IofastError, OptionError
from iofast.kernel import pillow
from iofast.kernel.contract import MAX_PIXELS
from iofast.record import IMAGE_FIELDS, JSON_FIELD, RAW_FIELDS, image_field

MARGIN = 6  # pixels round every image
CAPTION = 16  # pixels of height for the text under it
MASK_SHARE = 0.45  # of a mask's colour in the pixels that it covers
MAX_CELLS = 10_000
MAX_SIDE = 2048  # of a cell
MAX_BOXES = 1000  # drawn on one image
BOX_FORMATS = ("xyxy", "xywh")
_COCO = ("bbox", "bboxes")
_NAMES = (*_COCO, "box", "boxes")  # of members that are boxes, as packing takes them

# far apart in hue and lightness, so that neighbours differ; 0 is background and is not drawn
_COLOURS = np.array(
    [
        (0, 0, 0), (230, 60, 50), (60, 170, 75), (65, 105, 225), (250, 190, 40), (145, 70, 180), (70, 200, 210),
        (240, 120, 30), (190, 220, 60), (240, 90, 190), (0, 128, 128), (154, 99, 36), (128, 0, 0), (128, 128, 0),
    ],
    np.uint8,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SheetOptions:
    """How a sheet looks. `size`: pixels of a cell's side. `columns`: None = about as wide as 16:10.

    `mask`: the field to lay over the image, None = the first that looks like one (`seg.png`, `mask.png`), "" = none.
    `boxes`: the field with boxes, None = the one that the container was packed with, else `boxes.json`, else `json`;
    "" = none. `box_format`: what four numbers mean, corners (xyxy) or corner and size (xywh); None = what packing was
    told, else xyxy, and xywh for members called `bbox` or `bboxes`, as COCO has them.
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
        if self.box_format is not None and self.boxes == "":
            raise OptionError(f"box_format={self.box_format} has no effect: expected boxes=, found none; leave it out")
        if self.box_format not in (None, *BOX_FORMATS):
            raise OptionError(f"box_format must be one of {', '.join(BOX_FORMATS)}, found {self.box_format!r}")


def contact_sheet(reader: Reader, indices: Sequence[int], options: SheetOptions | None = None) -> Image.Image:
    """The records `indices` as an RGB picture, in rows. An image that cannot be decoded is a cell that says so."""
    options = options or SheetOptions()
    if not 1 <= len(indices) <= MAX_CELLS:
        raise OptionError(f"a sheet has 1 to {MAX_CELLS} images, found {len(indices)}")
    columns = options.columns or max(1, min(len(indices), math.ceil(math.sqrt(len(indices) * 1.6))))
    rows = math.ceil(len(indices) / columns)
    across, down = options.size + MARGIN, options.size + CAPTION + MARGIN
    sheet = Image.new("RGB", (MARGIN + columns * across, MARGIN + rows * down), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for cell, index in enumerate(indices):
        x, y = MARGIN + cell % columns * across, MARGIN + cell // columns * down
        caption = _caption(reader, index)
        try:
            image = _picture(reader, index, options)
            sheet.paste(image, (x + (options.size - image.width) // 2, y + (options.size - image.height) // 2))
        except IofastError as error:
            draw.rectangle((x, y, x + options.size - 1, y + options.size - 1), outline="red")
            draw.text((x + 4, y + 4), "cannot be decoded", fill="red", font=font)
            caption = f"{index}: {error}"
        draw.text((x, y + options.size + 1), _fitted(caption, options.size, font), fill="black", font=font)
    return sheet


@dataclass(frozen=True, slots=True)
class SheetImage:
    """A record's image as a transform makes it: each view's name ("" where it has none) and its pixels, uint8
    (height, width, 3); or `failure`, the reason why there are none."""

    index: int
    views: Sequence[tuple[str, NDArray[np.uint8]]]
    failure: str = ""


def views_sheet(reader: Reader, seen: Iterable[SheetImage], options: SheetOptions | None = None) -> Image.Image:
    """Records as an RGB picture, the views of each side by side, in proportion to each other."""
    options = options or SheetOptions()
    records = [(each.index, _scaled(each.views, options.size), each.failure) for each in seen]
    most = max((len(views) for _, views, _ in records), default=0)
    if not 1 <= len(records) * max(most, 1) <= MAX_CELLS:
        raise OptionError(f"a sheet has 1 to {MAX_CELLS} images, found {len(records)} records of {most} views")
    caption = CAPTION * (1 + any(name for _, views, _ in records for name, _ in views))
    wide = max(options.size, *(sum(image.width + MARGIN for _, image in views) - MARGIN for _, views, _ in records))
    across, down = wide + 2 * MARGIN, options.size + caption + MARGIN
    columns = options.columns or max(1, min(len(records), round(math.sqrt(len(records) * 1.6 * down / across))))
    rows = math.ceil(len(records) / columns)
    sheet = Image.new("RGB", (columns * across, MARGIN + rows * down), "white")
    for cell, (index, views, failure) in enumerate(records):
        place = MARGIN + cell % columns * across, MARGIN + cell // columns * down
        text = f"{index}: {failure}" if failure else _caption(reader, index)
        _draw_views(sheet, place, views, (text, wide, options.size))
    return sheet


def _draw_views(
    sheet: Image.Image,
    place: tuple[int, int],
    views: Sequence[tuple[str, Image.Image]],
    caption: tuple[str, int, int],
) -> None:
    """Views beside each other, `height` pixels high at most, their names under them, and a line of text of a width."""
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    (x, y), (text, wide, height) = place, caption
    lower = y + height + 1 + CAPTION * any(name for name, _ in views)
    draw.text((x, lower), _fitted(text, wide, font), fill="black", font=font)
    if not views:
        draw.rectangle((x, y, x + height - 1, y + height - 1), outline="red")
        draw.text((x + 4, y + 4), "cannot be decoded", fill="red", font=font)
    for name, image in views:
        sheet.paste(image, (x, y + height - image.height))
        draw.text((x, y + height + 1), _fitted(name, image.width, font), fill="gray", font=font)
        x += image.width + MARGIN


def _scaled(views: Sequence[tuple[str, NDArray[np.uint8]]], size: int) -> list[tuple[str, Image.Image]]:
    """Views with the longest side of all at `size`, or four times as long as it was where that is less."""
    scale = min(size / max((max(pixels.shape[:2]) for _, pixels in views), default=1), 4.0)
    found = []
    for name, pixels in views:
        height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
        found.append((name, Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)))
    return found


def _picture(reader: Reader, index: int, options: SheetOptions) -> Image.Image:
    """One record in a cell: scaled down (or up, four times at most) to fit, mask and boxes over it."""
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
    for number, box in enumerate(_boxes(fields, *_where(reader, fields, options))):
        corners = [edge * part for edge, part in zip(box, (size[0] / width, size[1] / height) * 2, strict=True)]
        colour = tuple(_COLOURS[1 + number % (len(_COLOURS) - 1)].tolist())
        draw.rectangle(_ordered(corners, size), outline=colour, width=2)
    return image


def _pixels(reader: Reader, index: int) -> NDArray[np.uint8]:
    """The image of a record, upright RGB."""
    located = reader.locate(np.array([index], np.int64))
    if not located.kind[0]:
        data = reader.view(index)
        follow(reader, located, 0, data)
        return kernel.decode(data, int(located.orientation[0]))
    width, height = int(located.width[0]), int(located.height[0])
    out, status = np.zeros((1, height, width, 3), np.uint8), np.zeros(1, np.int32)
    boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
    context = kernel.Context(kernel.DecodeOptions(filter="nearest"))
    try:
        with reader.payloads(located, 0, 1) as source:
            kernel.decode_batch(context, source, boxes, np.zeros(1, np.uint8), out, status, 0, 1)
    finally:
        context.close()
    if status[0]:
        raise DecodeError(f"{reader.name(index)}: {kernel.status_message(int(status[0]))}")
    image: NDArray[np.uint8] = out[0]
    return image


def _caption(reader: Reader, index: int) -> str:
    label = int(reader.columns(np.array([index], np.int64)).label[0])
    classes = reader.manifest.classes
    name = classes[label] if classes is not None and 0 <= label < len(classes) else str(label)
    return f"{index}" if label < 0 else f"{index}: {name}"


def _fitted(text: str, width: int, font: Any) -> str:
    """As much of a text as fits, on one line."""
    text = "".join(character if character.isprintable() else "?" for character in text[:200])
    while text and font.getlength(text) > width:
        text = text[:-2] + "…" if len(text) > 2 else ""
    return text


def _mask_field(fields: Mapping[str, bytes]) -> str | None:
    """The first field that is an image beside the image."""
    own = (*IMAGE_FIELDS, *RAW_FIELDS)
    return next((name for name in sorted(fields) if name not in own and name.rpartition(".")[2] == "png"), None)


def _overlaid(image: Image.Image, payload: bytes) -> Image.Image:
    """The image with a mask's values as colours over it; 0 is left as it is."""
    try:
        opened = pillow.open_image(payload, MAX_PIXELS)
        opened.image.load()
        mask = np.asarray(opened.image.resize(image.size, Image.Resampling.NEAREST))
    except Exception as error:  # Pillow's plugins raise anything on damaged files
        raise pillow.decode_error(error) from None
    values = mask.max(axis=2) if mask.ndim == 3 else mask
    values = values.astype(np.int64)
    colours = _COLOURS[np.where(values == 0, 0, 1 + (values - 1) % (len(_COLOURS) - 1))].astype(np.float32)
    share = np.where(values == 0, 0.0, MASK_SHARE).astype(np.float32)[..., None]
    mixed = np.asarray(image, np.float32) * (1 - share) + colours * share
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def _where(reader: Reader, fields: Mapping[str, bytes], options: SheetOptions) -> tuple[str, str | None]:
    """The field that has the boxes of a record, and what four numbers mean in it, None where nobody has said."""
    packed = str(reader.manifest.recipe.get("boxes"))
    name = options.boxes
    if name is None:
        name = next((own for own in (packed, "boxes.json") if own in fields), JSON_FIELD)
    told = str(reader.manifest.recipe.get("box_format", "xyxy")) if name == packed else None
    return name, options.box_format or told


def _boxes(fields: Mapping[str, bytes], name: str, box_format: str | None) -> list[tuple[float, float, float, float]]:
    """The boxes of a record as corners, in pixels of the upright image; `MAX_BOXES` at most."""
    try:
        said = json.loads(fields[name]) if name in fields else None
        if name == JSON_FIELD:  # which is full of other things
            said = said.get("boxes", said.get("annotations")) if isinstance(said, dict) else None
        return list(itertools.islice(_found(said, box_format, coco=False), MAX_BOXES))
    except (ValueError, RecursionError):
        return []


def _found(said: Any, box_format: str | None, *, coco: bool) -> Iterator[tuple[float, float, float, float]]:
    """Boxes as users write them: four numbers, in lists, and in objects under one of `_NAMES`, at any depth.

    `coco`: the name that they stand under is COCO's, who means corner and size.
    """
    if isinstance(said, dict):
        for name, own in said.items():
            # other lists are looked into where there are objects in them: polygons are lists of numbers too
            if name in _NAMES or isinstance(own, dict) or (isinstance(own, list) and _has_objects(own)):
                yield from _found(own, box_format, coco=name in _COCO)
    elif _is_numbers(said) and len(said) == 4:
        x, y, right, lower = (float(max(-1e6, min(1e6, number))) for number in said)
        sizes = box_format == "xywh" or (box_format is None and coco)
        yield (x, y, x + right, y + lower) if sizes else (x, y, right, lower)
    elif isinstance(said, list) and not _is_numbers(said):
        for own in said:
            yield from _found(own, box_format, coco=coco)


def _has_objects(said: list[Any]) -> bool:
    return any(isinstance(each, dict) for each in said)


def _is_numbers(said: Any) -> bool:
    return isinstance(said, list) and bool(said) and all(type(each) in (int, float) for each in said)


def _ordered(corners: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Corners that Pillow draws: in order, within the picture."""
    x = sorted(min(max(edge, 0.0), size[0] - 1.0) for edge in corners[::2])
    y = sorted(min(max(edge, 0.0), size[1] - 1.0) for edge in corners[1::2])
    return x[0], y[0], x[1], y[1]


def require_fields(reader: Reader, options: SheetOptions, where: str) -> None:
    """Raise `OptionError` where no record has an image, or one of the fields that the options name."""
    fields = reader.manifest.fields
    if image_field(fields) is None:
        raise OptionError(f"{where} has no images, only {', '.join(fields)}")
    for what, name in (("mask", options.mask), ("boxes", options.boxes)):
        if name and name not in fields:
            raise OptionError(f"{where} has no field {name!r} for {what}, only {', '.join(fields)}")
