"""The usual way, for comparison: a dataset on Pillow for torch's DataLoader with worker processes.

`augmented` does what torchvision's RandomResizedCrop, RandomHorizontalFlip and PILToTensor do, without torchvision.
"""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

Files = Sequence[tuple[Path, int]]  # with labels


class PillowFiles(torch.utils.data.Dataset[tuple[Any, int]]):
    """Files decoded by Pillow one at a time: what `transform` makes of the RGB image, and the label."""

    def __init__(self, files: Files, transform: Callable[[Image.Image], Any]) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            return self.transform(file.convert("RGB")), label


def files_by_class(root: Path) -> Files:
    """The files of `root`/<class>/, with the numbers of their classes."""
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir())
    return [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]


def augmented(image: Image.Image, size: int = 224) -> torch.Tensor:
    """A random crop, resized and perhaps flipped: uint8 (3, size, size)."""
    image = image.crop(box(*image.size)).resize((size, size), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """A random part of 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3: x0, y0, x1, y1."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side
