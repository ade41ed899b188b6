"""LoaderOptions: everything about a FastLoader but its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Literal, SupportsIndex

import torch

from iofast import pixels
from iofast.errors import OptionError
from iofast.order import MAX_SAMPLES, MAX_SEED
from iofast.transforms import Pipeline, Transform
from iofast.transforms import compile as compile_transform

MAX_WORKERS = 256
MAX_PREFETCH = 64


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Everything about a loader but its dataset; checks itself. FastLoader takes the same names as keywords.

    batch_size      samples per batch and rank
    shuffle         a new permutation each epoch, a function of (seed, epoch)
    seed            of the order and of every random choice, 0 to 2^64-1
    drop_last       leave out the last batch of an epoch where it is short
    num_workers     decoding threads; "auto" = the cores this process may use
    transform       a list from iofast.transforms; without one all images must be of one size
    device          where batches go; copied from page-locked memory where it is a GPU
    dtype           uint8 as decoded, or a float type: normalised, or scaled to [0, 1] without Normalize
    memory_format   torch.channels_last (default) or torch.contiguous_format
    prefetch        batches made ahead of the consumer
    pixels          "exact" (within 1 level of Pillow) or "fast" (DCT scaling in training transforms)
    check           "crc": every byte that is used is checked, and damage raises, where the container has checksums
                    (of raw pixels only the strips that a crop needs are used); None: damage is not looked for
    rank            this process's number and how many there are; found from torch.distributed when left out
    world_size
    """

    batch_size: int = 1
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    num_workers: int | Literal["auto"] = "auto"
    transform: Sequence[Transform] | Pipeline | None = None
    device: str | torch.device = "cpu"
    dtype: torch.dtype = torch.uint8
    memory_format: torch.memory_format = torch.channels_last
    prefetch: int = 3
    pixels: Literal["exact", "fast"] = "exact"
    check: Literal["crc"] | None = "crc"
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        _check_whole("batch_size", self.batch_size, 1, MAX_SAMPLES)
        _check_whole("seed", self.seed, 0, MAX_SEED)
        _check_whole("prefetch", self.prefetch, 1, MAX_PREFETCH)
        if self.num_workers != "auto":
            _check_whole("num_workers (or 'auto')", self.num_workers, 1, MAX_WORKERS)
        if self.pixels not in ("exact", "fast"):
            raise OptionError(f"pixels must be 'exact' or 'fast', found {self.pixels!r}")
        if self.check not in ("crc", None):
            raise OptionError(f"check must be 'crc' or None, found {self.check!r}")
        if self.memory_format not in (torch.channels_last, torch.contiguous_format):
            raise OptionError(f"memory_format must be channels_last or contiguous_format, found {self.memory_format}")
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank and world_size go together, found {self.rank} and {self.world_size}")
        if self.rank is not None and self.world_size is not None:
            _check_whole("world_size", self.world_size, 1, MAX_SAMPLES)
            _check_whole("rank", self.rank, 0, self.world_size - 1)
        pipeline = compile_transform(self.transform)
        if self.transform is not None:
            object.__setattr__(self, "transform", pipeline)  # what was given may be an iterator, now at its end
        pixels.check_dtype(pipeline.ops, self.dtype)
        object.__setattr__(self, "device", _checked_device(self.device))


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, SupportsIndex) or not low <= index(value) <= high:
        raise OptionError(f"{name} must be a whole number from {low} to {high}, found {value!r}")


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError):
        raise OptionError(f"device must be one that torch knows, such as 'cpu' or 'cuda', found {device!r}") from None
    if checked.type == "cuda" and not 0 <= (checked.index or 0) < torch.cuda.device_count():
        raise OptionError(f"device {device} is not here: torch sees {torch.cuda.device_count()} CUDA devices")
    return checked
