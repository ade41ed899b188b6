"""Decoding for rivals that leave it to their users: simplejpeg with its two options for speed, and OpenCV.

All of these rivals get the same decoder and normalisation, so that the containers and loaders are compared. The options
are a faster, less exact inverse DCT and upsampling; cv2's bilinear resize has no antialiasing.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from protocol import MEAN, STD, Options
from torch.utils.data import default_collate

from tools.pillow_folder import box

cv2.setNumThreads(0)  # the workers are the parallelism
decode = partial(simplejpeg.decode_jpeg, fastdct=True, fastupsample=True)
_SCALE = 1 / (255 * torch.tensor(STD))
_SHIFT = -torch.tensor(MEAN) / torch.tensor(STD)


def decoded(data: bytes, options: Options) -> NDArray[np.uint8]:
    """Decode one image to uint8 of (size, size, 3): a random crop that may be flipped, or the centre."""
    image, size = decode(data), options.size
    return _centre(image, size) if options.case == "centre" else augmented(image, size)


def augmented(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """A random crop, resized and perhaps flipped."""
    x0, y0, x1, y1 = box(image.shape[1], image.shape[0])
    image = cv2.resize(image[y0:y1, x0:x1], (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(image, 1) if random.random() < 0.5 else image


def _centre(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Of the prepared files, whose short side has 256 pixels already."""
    height, width = image.shape[:2]
    x, y = (width - size) // 2, (height - size) // 2
    return image[y : y + size, x : x + size]


def collated(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Put decoded samples together: uint8 of (N, 3, size, size), channels last in memory, and their labels.

    torch's own collate function writes into shared memory in a worker process, which saves a copy.
    """
    images, labels = default_collate([(torch.from_numpy(image), label) for image, label in samples])
    return images.permute(0, 3, 1, 2), labels


def batch_of(images: Sequence[bytes], options: Options) -> torch.Tensor:
    """Decode images into one batch: uint8 of (N, 3, size, size), channels last in memory."""
    made: torch.Tensor = default_collate([torch.from_numpy(decoded(data, options)) for data in images])
    return made.permute(0, 3, 1, 2)


def normalised(batch: torch.Tensor) -> torch.Tensor:
    """Normalise a uint8 batch to float32.

    If it is channels last in memory, rows are taken as (width × 3) values, which took half the time of a broadcast over
    channels.
    """
    if batch.is_contiguous():
        return torch.mul(batch, _SCALE.view(3, 1, 1)).add_(_SHIFT.view(3, 1, 1))
    rows = batch.permute(0, 2, 3, 1).flatten(2)
    width = batch.shape[3]
    made = torch.mul(rows, _SCALE.repeat(width)).add_(_SHIFT.repeat(width))
    return made.view(len(batch), batch.shape[2], width, 3).permute(0, 3, 1, 2)


def finished(batch: torch.Tensor, options: Options) -> torch.Tensor:
    """What training gets: if it is to be normalised, by the main process.

    Workers that normalise would send up to four times as many bytes.
    """
    batch = normalised(batch) if options.is_float else batch
    return batch.bfloat16() if options.case == "bfloat16" else batch


def seen_by(options: Options) -> Any:
    """The `seen` of loaders whose batches are a pair of images and labels."""
    return lambda batch: (len(batch[1]), finished(batch[0], options))
