"""FFCV, as its Tuning Guide recommends for data that fits in memory. Variants: jpg, raw.

`os_cache=True`, order RANDOM, decoders that crop and resize, and only operations that Numba compiles. jpg and raw
bracket `write_mode="proportion"` of its ImageNet recipe, which mixes both. For data on a slow disk: `os_cache=False`
and QUASI_RANDOM. Images are (N, 3, H, W) tensors in channels-last memory, as `ToTorchImage` gives them; float32 comes
from `NormalizeImage`, a table of 256 values per channel. FFCV decodes with the fast, less exact inverse DCT, and has no
ColorJitter with hue and no RandAugment. Its writer keeps no JPEG bytes: jpg encodes the pixels again at quality 90.
Numba's compiling takes most of the first epoch.
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import CenterCropRGBImageDecoder, IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Convert, NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from protocol import MEAN, STD, Options, main, pair

QUALITY = 90
LONG = 341  # of photographs of 4:3 whose shorter side is 256


class Photographs:
    """Images with the number of their folder: what FFCV calls an indexed dataset.

    OpenCV reads them: it decodes faster than Pillow, which FFCV's documentation uses.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = sorted({path.parent for path in self.files})
        self.labels = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path = self.files[index]
        return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), self.labels[path.parent]


def load(options: Options) -> tuple[Any, Any]:
    loader = Loader(
        options.data,
        batch_size=options.batch,
        num_workers=options.workers,
        os_cache=not options.is_cold,
        order=_order(options),
        drop_last=False,
        pipelines={"image": _images(options), "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return loader, pair


def _order(options: Options) -> OrderOption:
    if options.case == "centre":
        return OrderOption.SEQUENTIAL
    return OrderOption.QUASI_RANDOM if options.is_cold else OrderOption.RANDOM


def _images(options: Options) -> list[Any]:
    size = (options.size, options.size)
    if options.case == "centre":  # of the shorter side, which has 256 pixels
        return [CenterCropRGBImageDecoder(size, ratio=options.size / 256), ToTensor(), ToTorchImage()]
    steps = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    if options.is_float:
        steps.append(NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32))
    last = [Convert(torch.bfloat16)] if options.case == "bfloat16" else []
    return [*steps, ToTensor(), ToTorchImage(), *last]


def pack(source: Path, target: Path, options: Options) -> None:
    """Write with one process per worker, as its documentation does.

    Its only limit of a size is that of the longer side.
    """
    limit = {"max_resolution": LONG} if options.case == "packing" else {}
    image = RGBImageField(write_mode=options.variant, jpeg_quality=QUALITY, **limit)
    writer = DatasetWriter(str(target), {"image": image, "label": IntField()}, num_workers=options.workers)
    writer.from_indexed_dataset(Photographs(source))


if __name__ == "__main__":
    main(load, pack)
