"""FastDataset: a container or a plain folder as an ordinary map-style torch dataset, and what FastLoader reads from."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from iofast import kernel
from iofast.containers.base import Located, Payloads, Reader
from iofast.containers.manifest import WHOLE, Manifest
from iofast.errors import DecodeError, OptionError
from iofast.opening import open_reader

_EXACT = kernel.DecodeOptions(filter="nearest")  # whole images: no pixel is resampled

Sample = tuple[Any, Any]


class FastDataset(Dataset[Sample]):
    """The images and labels of a container, or of a plain image folder, with random access.

    `dataset[i]` is an upright RGB PIL image and its label (an int, -1 where there is none), after `transform` and
    `target_transform`, which are callables as torchvision's datasets take them. It is picklable and works under fork
    and spawn, in torch's own DataLoader with any number of workers; `FastLoader` reads it without going through `[i]`.

    `split` names one of the container's splits, "all" their union. A container of several splits has to be told.
    Raises what `open_reader` raises, and `OptionError` for a split that is not there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        for name, value in (("transform", transform), ("target_transform", target_transform)):
            if value is not None and not callable(value):
                raise OptionError(f"{name} must be callable, found {value!r}; iofast.transforms go to FastLoader")
        self.path = os.fspath(path)
        self.reader: Reader = open_reader(path)
        self.transform, self.target_transform = transform, target_transform
        self.split = split
        self._ranges = _ranges(self.manifest, split, path)
        self._ends = np.cumsum([stop - start for start, stop in self._ranges])
        self._local = threading.local()

    @property
    def manifest(self) -> Manifest:
        """What the container says of itself: count, classes, splits, recipe, fingerprint."""
        return self.reader.manifest

    @property
    def classes(self) -> list[str]:
        """Class names; the label is the index. Empty where there are no classes."""
        return list(self.manifest.classes or ())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label, as torchvision's ImageFolder has it."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> NDArray[np.int64]:
        """The labels of all samples, int64 of shape (len,), -1 where there is none."""
        return self.reader.locate(self.resolve(np.arange(len(self)))).label.astype(np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([operator.index(index)])[0]  # NumPy would round 1.5 down

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples at once: what torch's DataLoader calls for a batch. Raises `DecodeError` naming the image."""
        located = self.reader.locate(self.resolve(np.asarray(indices, np.int64)))
        with self.reader.payloads(located, 0, len(located.indices)) as payloads:
            return [self._sample(located, payloads, row) for row in range(len(located.indices))]

    def resolve(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The reader's dense indices of this dataset's samples `indices`; negative ones count from the end."""
        wrapped = np.where(indices < 0, indices + len(self), indices)
        if wrapped.size and not 0 <= int(wrapped.min()) <= int(wrapped.max()) < len(self):
            outside = indices[(wrapped < 0) | (wrapped >= len(self))][0]
            raise IndexError(f"index {outside} is out of range for a dataset of {len(self)} samples")
        if len(self._ranges) == 1:
            return wrapped + self._ranges[0][0]
        shifts = np.array([stop for _, stop in self._ranges], np.int64) - self._ends
        dense: NDArray[np.int64] = wrapped + shifts[np.searchsorted(self._ends, wrapped, side="right")]
        return dense

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        return f"FastDataset({self.path!r}{split}): {len(self)} samples"

    def _sample(self, located: Located, payloads: Payloads, row: int) -> Sample:
        width, height = int(located.width[row]), int(located.height[row])
        out = np.empty((1, max(height, 1), max(width, 1), 3), np.uint8)
        status = np.zeros(1, np.int32)
        one = slice(row, row + 1)
        source = tuple(None if column is None else column[one] for column in payloads)
        boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
        kernel.decode_batch(self._context(), source, boxes, np.zeros(1, np.uint8), out, status, 0, 1)  # type: ignore[arg-type]
        if status[0]:
            raise DecodeError(f"{self.reader.name(int(located.indices[row]))}: {kernel.status_message(int(status[0]))}")
        image: Any = Image.fromarray(out[0])
        label: Any = int(located.label[row])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label

    def _context(self) -> kernel.Context:
        """This thread's kernel context."""
        if not hasattr(self._local, "context"):
            self._local.context = kernel.Context(_EXACT)
        context: kernel.Context = self._local.context
        return context


def _ranges(manifest: Manifest, split: str | None, path: object) -> list[tuple[int, int]]:
    names = list(manifest.splits)
    if split is None and len(names) > 1:
        raise OptionError(f"{path} has the splits {', '.join(names)}: say split= one of them, or split={WHOLE!r}")
    if split is None or split == WHOLE:
        return [(0, manifest.count)]
    if split not in manifest.splits:
        raise OptionError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return [(start, stop) for start, stop in manifest.splits[split] if stop > start]
