"""What the scripts of all rivals share. A script runs in the rival's own environment, so this file needs NumPy alone.

    python ffcv_loop.py pack SRC DST OPTIONS      makes the rival's own container of a folder of images
    python ffcv_loop.py load OPTIONS              opens a loader, runs an epoch, then one for each line of input

OPTIONS is JSON: the fields of `Options`. After each epoch the script prints a line of JSON, `Epoch`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for pixels of 0 to 1


@dataclass(frozen=True)
class Options:
    """What a loader has to do.

    variant   which of the script's loaders, where it has several
    data      the rival's container, or a folder of class folders
    case      crop: RandomResizedCrop(224) and a flip to uint8; float32: the same, normalised; centre: Resize(256) and
              CenterCrop(224) to uint8; recipe: crop, ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(2, 9), float32
    workers   threads or processes
    """

    variant: str
    data: str
    case: str
    workers: int
    batch: int = 256
    size: int = 224

    @property
    def is_float(self) -> bool:
        """Whether batches are float32, normalised; else uint8."""
        return self.case in ("float32", "recipe")


Loader = Iterable[Any]
Seen = tuple[int, Any]  # samples of a batch, and its images as an array or tensor


def main(load: Callable[[Options], tuple[Loader, Callable[[Any], Seen]]], pack: Callable[..., None]) -> None:
    """Run the command line: `load` returns a loader, and what to call on a batch; `pack(source, target, options)`."""
    words = sys.argv[1:]
    options = Options(**json.loads(words[-1]))
    if words[0] == "pack":
        begun = time.perf_counter()
        pack(Path(words[1]), Path(words[2]), options)
        _say(seconds=time.perf_counter() - begun)
        return
    begun = time.perf_counter()
    loader, seen = load(options)
    _say(**_epoch(loader, seen, options, begun))
    for _ in sys.stdin:
        _say(**_epoch(loader, seen, options, time.perf_counter()))


def no_pack(source: Path, target: Path, options: Options) -> None:
    """For rivals that read folders."""
    sys.exit(f"{options.variant} reads {source}, and writes no {target}")


def _epoch(loader: Loader, seen: Callable[[Any], Seen], options: Options, begun: float) -> dict[str, Any]:
    """An epoch: images, seconds, seconds to the first batch, and what the first batch looks like."""
    images, first, looks = 0, 0.0, dict[str, Any]()
    for batch in loader:
        count, pixels = seen(batch)
        images += count
        if not looks:
            first = time.perf_counter() - begun
            looks = _looks(pixels, options)
            begun = time.perf_counter() - first  # the look does not count
    return {"images": images, "seconds": time.perf_counter() - begun, "first": first, **looks}


def _looks(pixels: Any, options: Options) -> dict[str, Any]:
    """Shape, type, and mean and spread on the scale of 0 to 255, by which a loader that cheats would be seen."""
    array = np.asarray(pixels)
    some = array[:16].astype(np.float64)
    if options.is_float:
        axis = 1 if array.shape[1] == 3 else 3
        shape = [3 if each == axis else 1 for each in range(4)]
        some = 255 * (some * np.reshape(STD, shape) + np.reshape(MEAN, shape))
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "mean": float(some.mean()),
        "std": float(some.std()),
    }


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)
