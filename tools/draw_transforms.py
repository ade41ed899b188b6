"""Draw the effect of each transform on one image: docs/images/transforms.png.

python -m tools.draw_transforms docs/images/transforms.png

The image is a scene of tools/scenes.py. Seeds are fixed, so the same version draws the same picture.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from iofast import FastDataset, FastLoader, open_writer
from iofast import transforms as T
from tools.scenes import Camera, Surfaces, photograph

HEIGHT, WIDTH = 90, 120  # pixels of an image that is not square
SQUARE = 90
SIDES = (HEIGHT, WIDTH)
GAP = 14  # pixels between cells
INNER = 3  # pixels between the images of one cell
COLUMNS = 7
LINE = 13  # pixels of a line of a label
LETTERS = 11  # pixels of a label's letters
FINE = 4  # times larger that they are drawn
HEADING = 26  # pixels of a section's name
COLOURS = 256  # of the palette: a quarter of the bytes of 24 bits
SMOOTH = 1.5  # pixels of a blur: noise of a camera would be most of the file
LARGEST = 450_000  # bytes

Pixels = NDArray[np.uint8]


class Cell(NamedTuple):
    """A transform with `text` under it; `draws`: the number of samples, `first`: the epoch of their random choices."""

    text: str
    transform: Any
    draws: int = 1
    first: int = 0


def op(text: str, transform: Any, first: int = 0, draws: int = 1) -> Cell:
    """An operation on the whole image."""
    return Cell(text, [T.Resize(SIDES), transform], draws, first)


def geometry() -> list[Cell]:
    reflected = T.RandomCrop(SIDES, padding=20, padding_mode="reflect")
    padded = [T.Resize((HEIGHT - 40, WIDTH - 40)), T.Pad(20, padding_mode="symmetric")]
    affine = T.RandomAffine(10, (0.1, 0.1), (0.7, 0.9), 25, interpolation="bilinear")
    return [
        Cell("the image", [T.Resize(SIDES)]),
        Cell("RandomResizedCrop\nthree draws of it", [T.RandomResizedCrop(SIDES)], 3, 2),
        Cell("Resize\nCenterCrop", [T.Resize(HEIGHT), T.CenterCrop(SQUARE)]),
        Cell("ResizedCenterCrop\n90, 0.6", [T.ResizedCenterCrop(SQUARE, 0.6)]),
        Cell("RandomResize\n40 to 90", [T.RandomResize(40, HEIGHT)], 2, 1),
        Cell("ResizeKeepRatio\n90, longest=1", [T.ResizeKeepRatio(SQUARE, longest=1.0)]),
        Cell("CornerCrop\n'lower left'", [T.Resize(140), T.CornerCrop(SIDES, "lower left")]),
        Cell("RandomCrop\npadding=20", [T.Resize(SIDES), T.RandomCrop(SIDES, padding=20)], 1, 3),
        Cell("RandomCrop\npadding=20, reflect", [T.Resize(SIDES), reflected], 1, 3),
        Cell("Resize\nPad(20, 'symmetric')", padded),
        Cell("ScaleJitter\npadded crop", [T.ScaleJitter(SIDES, (0.4, 0.8)), T.RandomCrop(SIDES, pad_if_needed=True)]),
        op("RandomHorizontalFlip", T.RandomHorizontalFlip(1.0)),
        op("RandomVerticalFlip", T.RandomVerticalFlip(1.0)),
        op("RandomRotation(30)", T.RandomRotation(30, interpolation="bilinear"), 1),
        op("RandomAffine\n10, …, shear=25", affine, 2),
        op("RandomPerspective\n0.6, p=1", T.RandomPerspective(0.6, 1.0, interpolation="bilinear"), 1),
    ]


def colours() -> list[Cell]:
    return [
        op("ColorJitter\nbrightness=1.6", T.ColorJitter(brightness=(1.6, 1.6))),
        op("ColorJitter\ncontrast=1.8", T.ColorJitter(contrast=(1.8, 1.8))),
        op("ColorJitter\nsaturation=0.3", T.ColorJitter(saturation=(0.3, 0.3))),
        op("ColorJitter\nhue=0.3", T.ColorJitter(hue=(0.3, 0.3))),
        op("RandomChannel-\nPermutation", T.RandomChannelPermutation(), 1),
        op("Grayscale", T.Grayscale()),
        op("Solarize(128 / 255)", T.Solarize(128 / 255)),
        op("RandomInvert", T.RandomInvert(1.0)),
        op("RandomPosterize(2)", T.RandomPosterize(2, 1.0)),
        op("RandomAutocontrast", T.RandomAutocontrast(1.0)),
        op("RandomEqualize", T.RandomEqualize(1.0)),
        op("RandomAdjust-\nSharpness(5)", T.RandomAdjustSharpness(5, 1.0)),
        op("GaussianBlur(9)", T.GaussianBlur(9, (1.5, 1.5))),
    ]


def finishing() -> list[Cell]:
    def erased(text: str, **options: Any) -> Cell:
        return op(text, T.RandomErasing(1.0, (0.1, 0.33), **options), 1)

    return [
        erased("RandomErasing\nvalue=0"),
        erased("RandomErasing\n'random'", value="random"),
        erased("RandomErasing\n'color', count=3", value="color", count=3),
        op("MixUp", T.MixUp(alpha=8, num_classes=2), 1),
        op("CutMix", T.CutMix(alpha=8, num_classes=2), 3),
    ]


def policies() -> list[Cell]:
    return [
        op("RandAugment(2, 9)", T.RandAugment(2, 9), 7, 3),
        op("TrivialAugmentWide()", T.TrivialAugmentWide(), 5, 3),
        op("AutoAugment('imagenet')", T.AutoAugment("imagenet"), 1, 3),
        op("timm_policy('rand-m9-mstd0.5-inc1')", T.timm_policy("rand-m9-mstd0.5-inc1"), 7, 3),
    ]


def presets() -> list[Cell]:
    rand = "rand-m9-mstd0.5-inc1"
    return [
        Cell("train()", T.train(SQUARE), 3, 4),
        Cell("evaluate()", T.evaluate(SQUARE)),
        Cell(f"timm_train(auto_augment='{rand}', …)", T.timm_train(SQUARE, auto_augment=rand, re_prob=0.6), 4, 6),
        Cell("simclr()", T.simclr(SQUARE), 3, 5),
        Cell("dino(): two global and several local views", T.dino(SQUARE, 40, 6)),
    ]


SECTIONS = {
    "Resizing, cropping, warps": geometry,
    "Operations on colours": colours,
    "Finishing": finishing,
    "Policies, three draws of each": policies,
    "Presets": presets,
}


def photographs(folder: Path) -> FastDataset:
    """Two images: the drawn one, and the one it is mixed with."""
    surfaces, path = Surfaces(0), folder / "two.lmdb"
    with open_writer(path) as writer:
        for label, (name, seed) in enumerate((("blossom", 1), ("sea", 3))):
            stored = io.BytesIO()
            pixels = photograph(name, Camera(np.random.default_rng(seed), surfaces, 375, 500))
            smooth = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(SMOOTH))
            smooth.save(stored, "PNG")
            writer.write({"png": stored.getvalue(), "cls": label})
    return FastDataset(path)


def made(dataset: FastDataset, cell: Cell) -> list[Pixels]:
    """The images of a cell, from left to right."""
    listed = [] if isinstance(cell.transform, T.Views) else cell.transform
    mixed = any(isinstance(each, T.MixUp | T.CutMix) for each in listed)
    # the second of two images is there to be mixed with the first; else one image is drawn several times
    indices = [0, 1] if mixed else [0] * cell.draws
    subset = FastDataset(dataset.path, indices=indices, fields=["image", "label"])
    # random sizes differ from image to image
    options: dict[str, Any] = {} if mixed or isinstance(cell.transform, T.Views) else {"ragged": "list"}
    loader = FastLoader(subset, len(indices), transform=cell.transform, dtype=torch.float32, **options)
    loader.set_epoch(cell.first)
    images = next(iter(loader))["image"]
    if isinstance(images, dict):
        views = [each for own in images.values() for each in (own if isinstance(own, list) else [own])]
        return [shown(view[0], cell.transform.views[0][2]) for view in views]
    return [shown(image, listed) for image in images[: cell.draws]]


def shown(image: torch.Tensor, transform: Sequence[object]) -> Pixels:
    """A float image (3, height, width) as uint8 (height, width, 3), without its normalisation."""
    values = image.permute(1, 2, 0).numpy()
    for each in transform:
        if isinstance(each, T.Normalize):
            values = values * np.asarray(each.std, np.float32) + np.asarray(each.mean, np.float32)
    return np.asarray(np.rint(values.clip(0, 1) * 255), np.uint8)


class Placed(NamedTuple):
    """A text or an image, and where its upper left corner is."""

    x: int
    y: int
    what: str | Pixels
    size: int = 0  # of the letters


def placed(dataset: FastDataset) -> Iterator[Placed]:
    """Everything on the picture, section below section, in lines that end before the right edge."""
    right, y = GAP + COLUMNS * (WIDTH + GAP), 0
    for name, cells in SECTIONS.items():
        yield Placed(GAP, y + 6, name, 14)
        y, x, lines = y + HEADING, GAP, 0
        for cell in cells():
            images = made(dataset, cell)
            wide = sum(image.shape[1] for image in images) + INNER * (len(images) - 1)
            wide = max(wide, lettering(cell.text, LETTERS).width)
            if x + wide > right:
                x, y, lines = GAP, y + HEIGHT + LINE * lines + GAP, 0
            lines = max(lines, 1 + cell.text.count("\n"))
            yield Placed(x, y + HEIGHT + 1, cell.text, LETTERS)
            start = x
            for image in images:
                yield Placed(start, y + HEIGHT - image.shape[0], image)
                start += image.shape[1] + INNER
            x += wide + GAP
        y += HEIGHT + LINE * lines + GAP


def drawn(item: Placed) -> Image.Image:
    return lettering(item.what, item.size) if isinstance(item.what, str) else Image.fromarray(item.what)


def lettering(text: str, size: int) -> Image.Image:
    """Lines of text, black on white; drawn large and scaled down, as small letters are aligned to whole pixels."""
    font, lines = ImageFont.load_default(FINE * size), text.split("\n")
    width, height = max(int(font.getlength(line)) for line in lines) // FINE + 2, LINE * len(lines) + size // 2
    large = Image.new("L", (FINE * width, FINE * height), 255)
    draw = ImageDraw.Draw(large)
    for number, line in enumerate(lines):
        draw.text((0, FINE * LINE * number), line, fill=0, font=font)
    return large.resize((width, height), Image.Resampling.BOX)


def picture(dataset: FastDataset) -> Image.Image:
    """Everything, in a palette."""
    items = list(placed(dataset))
    lower = max(item.y + (2 * LINE if isinstance(item.what, str) else item.what.shape[0]) for item in items)
    sheet = Image.new("RGB", (GAP + COLUMNS * (WIDTH + GAP), lower + GAP), "white")
    for item in items:
        sheet.paste(drawn(item), (item.x, item.y))
    return sheet.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw what each transform makes of one image.")
    parser.add_argument("target", type=Path, metavar="PNG")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sheet = picture(photographs(Path(folder)))
    stored = io.BytesIO()
    sheet.save(stored, "PNG", optimize=True)
    if len(stored.getvalue()) > LARGEST:
        print(f"the picture has {len(stored.getvalue()):,} bytes, expected at most {LARGEST:,}", file=sys.stderr)
        return 1
    args.target.write_bytes(stored.getvalue())
    print(f"{sheet.width} x {sheet.height} pixels, {len(stored.getvalue()):,} bytes, in {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
