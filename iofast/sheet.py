"""A contact sheet: some records of a container as one picture, with labels, masks and boxes, everything upright."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from iofast import kernel
from iofast.containers.base import Reader
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
    `boxes`: the field with boxes, None = `boxes.json` or the member `boxes` of `json`, "" = none; `box_format`: what
    four numbers mean, corners (xyxy) or corner and size (xywh).
    """

    size: int = 160
    columns: int | None = None
    mask: str | None = None
    boxes: str | None = None
    box_format: str = "xyxy"

    def __post_init__(self) -> None:
        if not 16 <= self.size <= MAX_SIDE or (self.columns is not None and not 1 <= self.columns <= MAX_CELLS):
            raise OptionError(f"a cell has 16 to {MAX_SIDE} pixels, and a row 1 cell or more: found {self}")
        if self.box_format not in BOX_FORMATS:
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
    for number, box in enumerate(_boxes(fields, options)[:MAX_BOXES]):
        corners = [edge * part for edge, part in zip(box, (size[0] / width, size[1] / height) * 2, strict=True)]
        colour = tuple(_COLOURS[1 + number % (len(_COLOURS) - 1)].tolist())
        draw.rectangle(_ordered(corners, size), outline=colour, width=2)
    return image


def _pixels(reader: Reader, index: int) -> NDArray[np.uint8]:
    """The image of a record, upright RGB."""
    located = reader.locate(np.array([index], np.int64))
    if not located.kind[0]:
        return kernel.decode(reader.view(index), int(located.orientation[0]))
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


def _boxes(fields: Mapping[str, bytes], options: SheetOptions) -> list[tuple[float, float, float, float]]:
    """The boxes of a record as corners, in pixels of the upright image."""
    name = options.boxes
    if name is None:
        name = "boxes.json" if "boxes.json" in fields else JSON_FIELD
    try:
        said = json.loads(fields[name]) if name in fields else None
    except (ValueError, RecursionError):
        return []
    if isinstance(said, dict):
        said = said.get("boxes", said.get("annotations"))
    found = [_box(each, options.box_format) for each in said] if isinstance(said, list) else []
    return [box for box in found if box is not None]


def _box(said: Any, box_format: str) -> tuple[float, float, float, float] | None:
    """One box as users write it: four numbers, or an object with `bbox` (COCO's: corner and size) or `box`."""
    if isinstance(said, dict):
        coco = "bbox" in said
        return _box(said.get("bbox", said.get("box")), "xywh" if coco else box_format)
    if not isinstance(said, list) or len(said) != 4 or not all(isinstance(n, int | float) for n in said):
        return None
    x, y, right, lower = (float(max(-1e6, min(1e6, number))) for number in said)
    return (x, y, x + right, y + lower) if box_format == "xywh" else (x, y, right, lower)


def _ordered(corners: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Corners that Pillow draws: in order, within the picture."""
    x = sorted(min(max(edge, 0.0), size[0] - 1.0) for edge in corners[::2])
    y = sorted(min(max(edge, 0.0), size[1] - 1.0) for edge in corners[1::2])
    return x[0], y[0], x[1], y[1]


def require_images(reader: Reader, where: str) -> None:
    """Raise `OptionError` where no record has an image."""
    if image_field(reader.manifest.fields) is None:
        raise OptionError(f"{where} has no images, only {', '.join(reader.manifest.fields)}")
