"""Decoding for rivals that leave it to their users: simplejpeg and OpenCV, as in `benchmarks.peers.datasets`.

All of these rivals get the same decoder, so that the containers and loaders are compared. cv2's bilinear resize has no
antialiasing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from protocol import MEAN, STD, Options

from tools.pillow_folder import box

cv2.setNumThreads(0)  # the workers are the parallelism
_SCALE = 1 / (255 * torch.tensor(STD))
_SHIFT = -torch.tensor(MEAN) / torch.tensor(STD)


def decoded(data: bytes, options: Options) -> NDArray[np.uint8]:
    """Decode one image to uint8 of (size, size, 3): a random crop that may be flipped, or the centre."""
    image, size = simplejpeg.decode_jpeg(data), options.size
    if options.case == "centre":
        return _centre(image, size)
    x0, y0, x1, y1 = box(image.shape[1], image.shape[0])
    image = cv2.resize(image[y0:y1, x0:x1], (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(image, 1) if random.random() < 0.5 else image


def _centre(image: NDArray[np.uint8], size: int, short: int = 256) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if min(height, width) != short:  # the prepared files have this size already
        scale = short / min(height, width)
        width, height = round(width * scale), round(height * scale)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    x, y = (width - size) // 2, (height - size) // 2
    return image[y : y + size, x : x + size]


def collated(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Put decoded samples together: uint8 of (N, 3, size, size), channels last in memory, and their labels."""
    images = np.stack([image for image, _ in samples])
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor([label for _, label in samples])


def batch_of(images: Sequence[bytes], options: Options) -> torch.Tensor:
    """Decode images into one array: uint8 of (N, 3, size, size), channels last in memory."""
    batch = np.empty((len(images), options.size, options.size, 3), np.uint8)
    for row, data in enumerate(images):
        batch[row] = decoded(data, options)
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def normalised(batch: torch.Tensor) -> torch.Tensor:
    """Normalise a uint8 batch that is channels last in memory to float32.

    Rows are taken as (width × 3) values, which took half the time of a broadcast over channels.
    """
    rows = batch.permute(0, 2, 3, 1).flatten(2)
    width = batch.shape[3]
    made = torch.mul(rows, _SCALE.repeat(width)).add_(_SHIFT.repeat(width))
    return made.view(len(batch), batch.shape[2], width, 3).permute(0, 3, 1, 2)


def finished(batch: torch.Tensor, options: Options) -> torch.Tensor:
    """What training gets: in the case float32 the batch is normalised, by the main process.

    Workers that normalise would send four times as many bytes.
    """
    return normalised(batch) if options.is_float else batch


def seen_by(options: Options) -> Any:
    """The `seen` of loaders whose batches are a pair of images and labels."""
    return lambda batch: (len(batch[1]), finished(batch[0], options))
