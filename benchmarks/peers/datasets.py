"""The loaders that iofast is compared with, each as its users write it. All give uint8 batches of (N, 3, 224, 224)."""

from __future__ import annotations

import random
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from tools.pillow_folder import box

SIZE = 224


class PillowDataset(Dataset[tuple[torch.Tensor, int]]):
    """Pillow, one sample at a time, as torchvision's ImageFolder with RandomResizedCrop, flip and PILToTensor."""

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        # crop, then resize, as torchvision's resized_crop does
        image = image.crop(box(*image.size)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), label


class SimplejpegDataset(Dataset[tuple[NDArray[np.uint8], NDArray[np.int64]]]):
    """simplejpeg decodes, OpenCV crops and resizes, a whole batch into one HWC array: the fastest that a user of
    torch's DataLoader gets from wheels without writing C. cv2's bilinear resize has no antialiasing."""

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        cv2.setNumThreads(0)  # the workers are the parallelism
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = np.empty((len(indices), SIZE, SIZE, 3), np.uint8)
        labels = np.empty(len(indices), np.int64)
        for row, index in enumerate(indices):
            path, labels[row] = self.files[index]
            image = simplejpeg.decode_jpeg(path.read_bytes())
            x0, y0, x1, y1 = box(image.shape[1], image.shape[0])
            cv2.resize(image[y0:y1, x0:x1], (SIZE, SIZE), dst=images[row], interpolation=cv2.INTER_LINEAR)
            if random.random() < 0.5:
                cv2.flip(images[row], 1, dst=images[row])
        return images, labels


def as_tensors(batch: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor]:
    """What collate_fn does with a batch that is already one array."""
    return torch.from_numpy(batch[0]).permute(0, 3, 1, 2), torch.from_numpy(batch[1])


def pillow_loader(files: list[tuple[Path, int]], batch_size: int, workers: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """The Pillow dataset in torch's DataLoader; workers stay alive between epochs."""
    return DataLoader(
        PillowDataset(files), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )


def simplejpeg_loader(
    files: list[tuple[Path, int]], batch_size: int, workers: int
) -> DataLoader[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """The simplejpeg and OpenCV dataset in torch's DataLoader; workers stay alive between epochs."""
    return DataLoader(
        SimplejpegDataset(files),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=as_tensors,
    )
