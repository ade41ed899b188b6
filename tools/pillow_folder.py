"""The usual way, for comparison: an ImageFolder-style dataset on Pillow, for torch's DataLoader with worker processes.

The transforms are torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize, step by step; written
out here because torchvision is not needed otherwise.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

MEAN, STD = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


class PillowFolder(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """`root`/<class>/<image>: a normalised float32 tensor (3, size, size) and the class's number."""

    def __init__(self, root: Path, size: int) -> None:
        self.size = size
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.samples = [(path, i) for i, name in enumerate(self.classes) for path in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
        image = image.crop(box(*image.size)).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        return pixels.sub_(MEAN).div_(STD), label


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
