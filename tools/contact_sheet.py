"""Draw a batch as one picture: every image with its label under it.

python -m tools.contact_sheet out.lmdb sheet.png [--split train] [--count 32] [--augment]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

MARGIN = 6  # pixels round every image
CAPTION = 16  # pixels of height for the label


def contact_sheet(images: NDArray[np.uint8], labels: Sequence[str], columns: int | None = None) -> Image.Image:
    """A picture of `images`, uint8 (N, H, W, 3), in rows, with `labels` (N texts) under them."""
    count, height, width = images.shape[:3]
    columns = columns or max(1, min(count, math.ceil(math.sqrt(count * 1.6))))
    rows = math.ceil(count / columns)
    across, down = width + MARGIN, height + CAPTION + MARGIN
    sheet = Image.new("RGB", (MARGIN + columns * across, MARGIN + rows * down), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        x, y = MARGIN + i % columns * across, MARGIN + i // columns * down
        sheet.paste(Image.fromarray(image), (x, y))
        draw.text((x, y + height + 1), label, fill="black", font=font)
    return sheet


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw one batch as a PNG, with labels.")
    parser.add_argument("dataset", help="a container or a folder of images")
    parser.add_argument("target", type=Path, metavar="PNG")
    parser.add_argument("--split", default="all")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--size", type=int, default=128, help="pixels a side of each image (default 128)")
    parser.add_argument("--augment", action="store_true", help="as training sees them: cropped and flipped")
    args = parser.parse_args()

    from iofast import FastDataset, FastLoader
    from iofast import transforms as T

    dataset = FastDataset(args.dataset, split=args.split)
    crop = [T.RandomResizedCrop(args.size), T.RandomHorizontalFlip()] if args.augment else None
    geometry = crop or [T.Resize(args.size), T.CenterCrop(args.size)]
    loader = FastLoader(dataset, batch_size=min(args.count, len(dataset)), shuffle=True, transform=geometry)
    images, labels = next(iter(loader))
    names = [dataset.classes[i] if dataset.classes and i >= 0 else "" for i in labels.tolist()]
    contact_sheet(images.permute(0, 2, 3, 1).numpy(), names).save(args.target)
    print(f"{len(names)} images in {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
