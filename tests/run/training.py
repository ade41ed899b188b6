"""A training script that knows nothing of iofast: loops over DataLoaders in many ways, and prints what it saw."""

import gc
import hashlib
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.transforms import functional as F  # type: ignore[import-not-found]  # the real one, or the tests'

MEANS, STDS = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MEAN, STD = torch.tensor(MEANS)[:, None, None], torch.tensor(STDS)[:, None, None]


class Photos(Dataset[Any]):
    """Random crops, mirrors and erasings of the photographs in a folder, and their numbers."""

    def __init__(self, folder: str, *, fails_at: int = -1, damaged: bool = False) -> None:
        names = [path for path in sorted(Path(folder).glob("*.jpg")) if path.stem != "cut" or damaged]
        self.paths = [names[number % len(names)] for number in range(24)]
        self.fails_at = fails_at

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == self.fails_at:
            raise KeyError("the dataset's own error")
        with open(self.paths[number], "rb") as file:
            image = Image.open(file).convert("RGB")
        x, y, side = random.randrange(50), int(torch.randint(50, ())), random.randrange(80, 160)
        image = image.crop((x, y, x + side, y + side)).resize((48, 48), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if number % 2:
            tensor = F.normalize(F.convert_image_dtype(F.pil_to_tensor(image), torch.float32), MEANS, STDS)
        else:
            tensor = F.to_tensor(image).sub_(MEAN).div_(STD)
        if torch.rand(()) < 0.5:
            tensor[..., 5:20, 7:30] = torch.randn(3, 15, 23)
        return tensor, number


class Stream(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self, photos: Photos) -> None:
        self.photos = photos

    def __iter__(self) -> Any:
        return (self.photos[number] for number in range(10))


def pairs(batch: Any) -> Any:
    """A collate function that leaves tensors as they are."""
    return tuple(zip(*batch, strict=True))


def by_name(batch: Any) -> Any:
    """As in examples of Hugging Face."""
    return {
        "pixels": torch.stack([each[0] for each in batch]).contiguous().float(),
        "labels": [each[1] for each in batch],
    }


class Batch:
    """A batch in a container that torch does not know."""

    def __init__(self, samples: Any) -> None:
        self.pixels, self.labels = torch.stack([each[0] for each in samples]), [each[1] for each in samples]


def seen(loader: Any, most: int = 1000) -> list[Any]:
    """Return digests of up to `most` batches."""
    found = []
    for batch in loader:
        found.append(digest(batch))
        if len(found) == most:
            break
    return found


def digest(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        assert type(batch) is torch.Tensor
        return hashlib.sha256(batch.numpy().tobytes()).hexdigest()[:16], list(batch.shape)
    if isinstance(batch, Batch):
        return digest(vars(batch))
    if isinstance(batch, dict):
        return {name: digest(value) for name, value in batch.items()}
    return [digest(each) for each in batch] if isinstance(batch, (list, tuple)) else batch


@torch.inference_mode()
def inferred(loader: Any) -> list[Any]:
    return seen(loader)


def error_of(loader: Any) -> str:
    try:
        seen(loader)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return "none"


def main(folder: str, context: str) -> None:
    torch.manual_seed(1)
    random.seed(1)
    begun, photos = descriptors(), Photos(folder)
    two = {"num_workers": 2, "multiprocessing_context": context}
    facts: dict[str, Any] = {"shuffled": seen(DataLoader(photos, 6, shuffle=True, **two))}  # type: ignore[arg-type]
    facts["states"] = [torch.rand(()).item(), random.random()]
    if context == "fork":
        facts |= in_many_ways(folder, photos)
    ends = time.monotonic() + 30  # threads and pipes end a while after their loop
    while (threads() or descriptors() > begun) and time.monotonic() < ends:
        gc.collect()  # torch's errors of workers hold their loop in a cycle; nothing while another thread collects
        time.sleep(0.05)
    left = {"children": len(multiprocessing.active_children()), "threads": threads()}
    if context == "fork":
        left["descriptors"] = max(0, descriptors() - begun)
    print(json.dumps(facts | {"left": left}))  # noqa: T201


def in_many_ways(folder: str, photos: Photos) -> dict[str, Any]:
    two, one = {"num_workers": 2}, {"num_workers": 1}
    again = DataLoader(photos, 5, shuffle=True, persistent_workers=True, **two)  # type: ignore[arg-type]
    return {
        "persistent": [seen(again), seen(again)],
        "early": [seen(again, 1), seen(DataLoader(photos, 4, **one), 1), seen(again)],
        "two at once": [digest(pair) for pair in zip(again, DataLoader(photos, 5, **one), strict=True)],
        "stream": seen(DataLoader(Stream(photos), 4, **one)),
        "pairs": seen(DataLoader(photos, 4, collate_fn=pairs, **one)),
        "by name": seen(DataLoader(photos, 4, collate_fn=by_name, **one)),
        "an object": seen(DataLoader(photos, 4, collate_fn=Batch, **one)),
        "in this process": seen(DataLoader(photos, 4, shuffle=True)),
        "inference": inferred(DataLoader(photos, 4)),
        "pairs in this process": seen(DataLoader(photos, 4, collate_fn=pairs)),
        "an object in this process": seen(DataLoader(photos, 4, collate_fn=Batch)),
        "error": error_of(DataLoader(Photos(folder, fails_at=7), 4, **one)),
        "error in this process": error_of(DataLoader(Photos(folder, fails_at=7), 4)),
        "damaged": error_of(DataLoader(Photos(folder, damaged=True), 4, **one)),
        "states at the end": [torch.rand(()).item(), random.random()],
        # Damage is found when a batch is complete, so that more random numbers have been drawn.
        "damaged in this process": error_of(DataLoader(Photos(folder, damaged=True), 4)),
    }


def threads() -> list[str]:
    return sorted({each.name for each in threading.enumerate() if "iofast" in each.name})


def descriptors() -> int:
    return len([each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")])


if __name__ == "__main__":
    main(*sys.argv[1:])
