"""The loaders that iofast is compared with, as their users write them. All give uint8 batches of (N, 3, 224, 224)."""

import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from tools.pillow_folder import Files, PillowFiles, augmented, box

SIZE = 224


def by_opencv(data: bytes) -> NDArray[np.uint8]:
    """OpenCV decodes to RGB."""
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB), np.uint8)


class DecodedFiles(Dataset[tuple[NDArray[np.uint8], NDArray[np.int64]]]):
    """`decode` makes RGB, OpenCV crops and resizes, a whole batch into one HWC array: with simplejpeg a fast way
    with torch's DataLoader and wheels, without C. cv2's bilinear resize has no antialiasing."""

    def __init__(self, files: Files, decode: Callable[[bytes], NDArray[np.uint8]]) -> None:
        cv2.setNumThreads(0)  # the workers are the parallelism
        self.files, self.decode = files, decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = np.empty((len(indices), SIZE, SIZE, 3), np.uint8)
        labels = np.empty(len(indices), np.int64)
        for row, index in enumerate(indices):
            path, labels[row] = self.files[index]
            image = self.decode(path.read_bytes())
            x0, y0, x1, y1 = box(image.shape[1], image.shape[0])
            cv2.resize(image[y0:y1, x0:x1], (SIZE, SIZE), dst=images[row], interpolation=cv2.INTER_LINEAR)
            if random.random() < 0.5:
                cv2.flip(images[row], 1, dst=images[row])
        return images, labels


def as_tensors(batch: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The collate function for a batch that is already one array."""
    return torch.from_numpy(batch[0]).permute(0, 3, 1, 2), torch.from_numpy(batch[1])


def pillow_loader(files: Files, batch_size: int, workers: int) -> DataLoader[Any]:
    """Pillow, one sample at a time; workers stay alive between epochs."""
    return DataLoader(
        PillowFiles(files, augmented), batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )


def simplejpeg_loader(
    files: Files, batch_size: int, workers: int, decode: Callable[[bytes], NDArray[np.uint8]] = simplejpeg.decode_jpeg
) -> DataLoader[Any]:
    """simplejpeg and OpenCV, a batch at a time; workers stay alive between epochs."""
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": True}
    return DataLoader(DecodedFiles(files, decode), batch_size, collate_fn=as_tensors, **options)
