"""What the scripts of all rivals share. A script runs in the rival's own environment, so this file needs NumPy alone.

    python ffcv_loop.py pack SRC DST OPTIONS      makes the rival's own container of a folder of images
    python ffcv_loop.py load OPTIONS              opens a loader, runs an epoch, then a run for each line of input

OPTIONS is JSON: the fields of `Options`. A run is as many epochs as fill `SECONDS`. After each the script prints a line
of JSON: images, seconds, and seconds to the first batch. In the case packing a run writes the container of `data`
anew.
"""

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 4.0  # an epoch of the fastest takes one, a sixth of it to wake up after others had their turn
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for pixels of 0 to 1


@dataclass(frozen=True)
class Options:
    """What a loader has to do.

    variant   which of the script's loaders, where it has several
    data      the rival's container, or a folder of class folders
    case      crop: RandomResizedCrop(224) and a flip to uint8; float32: the same, normalised; centre: Resize(256) and
              CenterCrop(224) to uint8; recipe: crop, ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(2, 9), float32;
              bfloat16: as float32; packing: photographs to a container, short side of 256 pixels, quality 90
    workers   threads or processes
    is_trained  a small network trains on the batches; the environment needs torch
    is_cold   the data is on a slow disk and does not fit in memory
    """

    variant: str
    data: str
    case: str
    workers: int
    is_trained: bool = False
    is_cold: bool = False
    batch: int = 256
    size: int = 224

    @property
    def is_float(self) -> bool:
        """Whether batches are normalised; else uint8."""
        return self.case in ("float32", "bfloat16", "recipe")


Loader = Iterable[Any]
Seen = tuple[int, Any]  # samples of a batch, and its images as an array or tensor


def no_pack(source: Path, target: Path, options: Options) -> None:
    """For rivals that read folders."""
    sys.exit(f"{options.variant} reads {source}, and writes no {target}")


def main(load: Callable[[Options], tuple[Loader, Callable[[Any], Seen]]], pack: Callable[..., None] = no_pack) -> None:
    """Run the command line: `load` returns a loader, and what to call on a batch; `pack(source, target, options)`."""
    words = sys.argv[1:]
    options = Options(**json.loads(words[-1]))
    if words[0] == "pack":
        pack(Path(words[1]), Path(words[2]), options)
        return
    begun = time.perf_counter()
    if options.case == "packing":
        serve(partial(_packing, pack, options))
        return
    loader, seen = load(options)
    run = partial(_run, loader, _trained(seen) if options.is_trained else seen, options)
    serve(run, begun)


def pair(batch: Any) -> Seen:
    """The `seen` of a loader whose batches are images and labels that are ready."""
    images, labels = batch
    return len(labels), images


def several(options: Options) -> dict[str, Any]:
    """Options of a loader made like torch's DataLoader: workers that stay, and another order in each epoch."""
    return {
        "num_workers": options.workers,
        "persistent_workers": True,
        "shuffle": options.case != "centre",
    }


def serve(run: Callable[[float, bool], dict[str, Any]], begun: float = 0.0) -> None:
    """Run once, then again for each line of input, and print what each run returns.

    It gets the time when it began, and whether it is the first.
    """
    print(json.dumps(run(begun, True)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run(time.perf_counter(), False)), flush=True)


def _run(loader: Loader, seen: Callable[[Any], Seen], options: Options, begun: float, is_first: bool) -> dict[str, Any]:
    """Epochs for `SECONDS`: images, seconds, and seconds to the first batch.

    The first run is one epoch, for it does not count; so is one from a cold disk, for a second epoch would be warm.
    """
    images, first, seconds = 0, 0.0, 0.0
    while not images or (seconds < SECONDS and not is_first and not options.is_cold):
        for batch in loader:
            count, _ = seen(batch)
            first = first or time.perf_counter() - begun
            images += count
        seconds = time.perf_counter() - begun
    return {"images": images, "seconds": seconds, "first": first}


def _packing(pack: Callable[..., None], options: Options, *_: object) -> dict[str, Any]:
    """The container written anew: images and seconds."""
    source = Path(options.data)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        begun = time.perf_counter()
        pack(source, Path(folder, "packed.lmdb"), options)
        seconds = time.perf_counter() - begun
    return {"images": len(list(source.glob("*/*"))), "seconds": seconds, "first": 0.0}


def _trained(seen: Callable[[Any], Seen]) -> Callable[[Any], Seen]:
    """Let a network of three convolutions learn from each batch, on all cores, before it counts as seen.

    Network and images are channels last in memory, as PyTorch advises for convolutions; images that are not are
    converted, which took less time than training on them as they are (1,600 against 1,250 images/s). Labels are made
    up, because some loaders have none; they cost the same.
    """
    import torch
    from torch import nn

    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is only read
    sizes = ((3, 16, 7, 8), (16, 32, 3, 2), (32, 64, 3, 2))
    layers = [each for size in sizes for each in (nn.Conv2d(*size), nn.ReLU())]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(batch: Any) -> Seen:
        count, pixels = seen(batch)
        images = torch.as_tensor(np.asarray(pixels))
        images = images if images.shape[1] == 3 else images.permute(0, 3, 1, 2)
        images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), torch.arange(len(images)) % 10).backward()
        optimizer.step()
        return count, pixels

    return step
