"""FastDataset: containers and plain folders as an ordinary map-style torch dataset, and what FastLoader reads from."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch.utils.data import Dataset

from iofast import kernel
from iofast.containers.base import Failures, Located, Reader
from iofast.containers.changed import renew
from iofast.containers.joined import JoinedReader
from iofast.containers.manifest import Manifest
from iofast.errors import DecodeError, OptionError, shown
from iofast.fields import annotation_fields, check_fields, decode_field
from iofast.foreign.options import ForeignOptions
from iofast.kernel import Payloads
from iofast.opening import is_shard, open_reader, open_shards
from iofast.selection import Columns, Filter, Selection, of_split
from iofast.transforms.crop_box import CropBox

_EXACT = kernel.DecodeOptions(filter="nearest")  # whole images: no pixel is resampled
_CHUNK = 1 << 16  # records whose columns are looked up at once, where those of all are wanted

Path = str | os.PathLike[str]


class FastDataset(Dataset[Any]):
    """The samples of a container, of a plain image folder, or of several of them as one, with random access.

    `dataset[i]` is an upright RGB PIL image and its label (an int, -1 where there is none), after `transform` and
    `target_transform`, which are callables as torchvision's datasets take them. It is picklable and works under fork
    and spawn, in torch's own DataLoader with any number of workers; `FastLoader` reads it without going through `[i]`.

    `split` names one of the container's splits, "all" their union. A container of several splits has to be told.
    Paths in a list are joined one after another; their classes must be the same. A list of tar shards is one set.

    `indices` are the samples to take, in that order; they may repeat, and negative ones count from the end. `filter` is
    called once, with the `Columns` (index, label, width, height) of those samples, and returns a mask or the places of
    the rows to keep.

    `fields` says what a sample consists of, and makes it a dictionary: "image", "label", "key" (a str), "index" (its
    place in this dataset), "crop" (which part of the stored image "image" is, a `CropBox`) and names of the container's
    fields, decoded as `fields.decode_field` says, None where a record lacks one. Only these are read. `transform` is
    called with the image, `target_transform` with the label.

    `foreign` says what the files of another program mean, where they do not say it in one of the usual ways: a
    `source.ForeignOptions`, or a mapping of its members, such as `{"names": {"image": "photo"}, "label_base": 1}`.

    `orientation` "ignore" gives images as they are stored, without the turn that EXIF or XMP asks for.

    Raises what `open_reader` raises, and `OptionError` for a split, field or index that is not there.
    """

    def __init__(
        self,
        path: Path | Sequence[Path],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        indices: ArrayLike | None = None,
        filter: Filter | None = None,
        fields: Sequence[str] | None = None,
        orientation: Literal["apply", "ignore"] = "apply",
        foreign: ForeignOptions | Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("transform", transform), ("target_transform", target_transform), ("filter", filter)):
            if value is not None and not callable(value):
                raise OptionError(f"{name} must be callable, found {shown(value)}; iofast.transforms go to FastLoader")
        if not isinstance(orientation, str) or orientation not in ("apply", "ignore"):
            raise OptionError(f"orientation must be 'apply' or 'ignore', found {shown(orientation)}")
        paths = _paths(path)
        self.path: str | list[str] = paths[0] if len(paths) == 1 else paths
        self.reader: Reader = _opened(paths, foreign)
        self.transform, self.target_transform = transform, target_transform
        self.split, self.orientation = split, orientation
        self._local = threading.local()
        self._targets: list[int] | None = None
        self.fields = check_fields(fields, self.manifest, ", ".join(paths))
        for name, field in (("transform", "image"), ("target_transform", "label")):
            if self.fields is not None and field not in self.fields and getattr(self, name) is not None:
                raise OptionError(f"{name} is called with the {field}, which is not among the fields {self.fields}")
        self._select(of_split(self.manifest, split, ", ".join(paths)), indices, filter)

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
    def targets(self) -> list[int]:
        """The labels of all samples, -1 where there is none: a list, as torchvision's ImageFolder has it.

        It is made once, at the first use. Changing it changes no sample; `target_transform` does.
        """
        if self._targets is None:
            self._targets = self.labels().tolist()
        return self._targets

    @property
    def parts(self) -> tuple[int, ...]:
        """How many samples are of each path, in their order; one number where `indices` mixed the paths' samples."""
        return self._selection.parts([len(reader) for reader, _ in _parts(self)])

    @property
    def annotations(self) -> list[str]:
        """Those of `fields` that hold places in the image: masks, boxes and keypoints, as far as that can be told."""
        names = self.fields or ()
        found = set[str]().union(*(annotation_fields(names, reader.manifest) for reader, _ in _parts(self)))
        return [name for name in names if name in found]

    @property
    def fingerprint(self) -> str:
        """A SHA-256 that differs where the samples, or their order, do."""
        return self._selection.fingerprint(self.manifest.fingerprint)

    def labels(self) -> NDArray[np.int64]:
        """The labels of all samples as an array, int64 of shape (len,), -1 where there is none."""
        return self._columns().label

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Widths and heights of all images in pixels, int32 of shape (len,) each, 0 where unknown."""
        columns = self._columns()
        return columns.width, columns.height

    def __len__(self) -> int:
        return len(self._selection)

    def __add__(self, other: Dataset[Any]) -> Any:
        """The samples of both: a FastDataset where `other` is one with the same fields, orientation and transforms.

        With any other dataset it is torch's ConcatDataset. Raises `OptionError` where the classes differ.
        """
        if not isinstance(other, FastDataset) or not self._gives_samples_like(other):
            return super().__add__(other)
        parts = _parts(self) + _parts(other)
        both = copy(self)
        both.path, both.split = [name for _, name in parts], None
        both.reader = JoinedReader([reader for reader, _ in parts], both.path, splits=False)
        both._selection = self._selection.followed_by(other._selection, len(self.reader))
        return both

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]  # NumPy would round 1.5 down

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once: what torch's DataLoader calls for a batch. Raises `DecodeError` naming the image."""
        asked = np.array([operator.index(index) for index in indices], np.int64)
        located = self.locate(asked)
        names = ("image", "label") if self.fields is None else self.fields
        # a list: CPython 3.11 leaks what `*` has unpacked so far of a generator that raises
        columns = [self._transformed(name, asked, located) for name in names]
        samples = zip(*columns, strict=True)
        return list(samples) if self.fields is None else [dict(zip(names, sample, strict=True)) for sample in samples]

    def resolve(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The reader's dense indices of this dataset's samples `indices`; negative ones count from the end."""
        return self._selection.resolve(self._selection.wrap(indices))

    def locate(self, indices: NDArray[np.int64]) -> Located:
        """What the index says of the samples `indices`; sizes and orientation as `orientation` wants them."""
        located = self.reader.columns(self.resolve(indices))
        if self.orientation == "apply":
            return located
        turned, upright = located.orientation >= 5, np.zeros_like(located.orientation)
        width = np.where(turned, located.height, located.width)
        height = np.where(turned, located.width, located.height)
        return located._replace(width=width, height=height, orientation=upright)

    def values(
        self,
        name: str,
        indices: NDArray[np.int64],
        located: Located,
        *,
        check: bool = True,
        failed: Failures | None = None,
    ) -> list[Any]:
        """The values of one field of the samples `indices`, which were `located`, before any transform.

        Raises `DecodeError` or `ContainerError` naming record and field; with `failed` such a row gets None, and its
        error is put there. Without `check` nothing is compared with its checksum.
        """
        if name == "index":
            return list(self._selection.wrap(indices).tolist())
        if name == "label":
            return list(located.label.tolist())
        if name == "key":
            return list(self.reader.keys(located))
        if name == "image":
            return self._images(located, check, failed)
        if name == "crop":
            sizes = zip(located.width.tolist(), located.height.tolist(), strict=True)
            turns = located.orientation.tolist()
            return [CropBox((0, 0, *size), size, False, turn) for size, turn in zip(sizes, turns, strict=True)]
        values: list[Any] = self.reader.values(located.indices, name, check=check, failed=failed)
        for row, payload in enumerate(values):
            try:
                values[row] = None if payload is None else decode_field(name, payload)
            except DecodeError as error:
                values[row] = None
                self._fail(DecodeError(f"{self._name(located, row)}: {error}"), row, failed)
        return values

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_local", "_targets")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _local=threading.local(), _targets=None)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        subset = " (a subset)" if self._selection.is_subset else ""
        return f"FastDataset({self.path!r}{split}): {len(self)} samples{subset}"

    def _gives_samples_like(self, other: FastDataset) -> bool:
        """Whether the samples of both are made in one way."""
        same = (self.fields, self.orientation) == (other.fields, other.orientation)
        return same and self.transform is other.transform and self.target_transform is other.target_transform

    def _select(self, whole: Selection, indices: ArrayLike | None, filter: Filter | None) -> None:
        self._selection = whole if indices is None else whole.pick("indices", indices)
        if filter is not None:
            columns = self._columns()
            if indices is not None:
                columns = replace(columns, index=whole.wrap(np.asarray(indices, np.int64)))
            self._selection = self._selection.keep(filter(columns))

    def _columns(self) -> Columns:
        """Of all samples, looked up a part at a time: a row of the index is several times as large as what is kept."""
        count = len(self)
        label = np.empty(count, np.int64)
        width, height = np.empty(count, np.int32), np.empty(count, np.int32)
        index = np.arange(count)
        for start in range(0, count, _CHUNK):
            rows = slice(start, start + _CHUNK)
            located = self.locate(index[rows])
            label[rows], width[rows], height[rows] = located.label, located.width, located.height
        return Columns(index, label, width, height)

    def _transformed(self, name: str, indices: NDArray[np.int64], located: Located) -> list[Any]:
        if name == "image":
            return self._images(located, transform=self.transform)
        values = self.values(name, indices, located)
        return list(map(self.target_transform, values)) if name == "label" and self.target_transform else values

    def _images(
        self,
        located: Located,
        check: bool = True,
        failed: Failures | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> list[Any]:
        """Each image is transformed before the next is decoded: those of a batch may be large."""
        images: list[Any] = []
        with self.reader.payloads(located, 0, len(located.indices)) as payloads:
            source = payloads.checked(check)
            for row in range(len(located.indices)):
                pixels, status = self._decode(located, source, row)
                if len(renew(self.reader, located, source.rows(slice(row, row + 1)), status, row)):
                    pixels, status = self._decode(located, source, row)
                if failure := int(status[0]):
                    reason = f"{self._name(located, row)}: {kernel.failure(failure, source, row)}"
                    self._fail(DecodeError(reason), row, failed)
                image = None if failure else Image.fromarray(pixels)
                images.append(image if transform is None else transform(image))
        return images

    def _decode(self, located: Located, payloads: Payloads, row: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        width, height = int(located.width[row]), int(located.height[row])
        out = np.empty((1, max(height, 1), max(width, 1), 3), np.uint8)
        status = np.zeros(1, np.int32)
        boxes = np.array([[0, 0, width, height, width, height, 0, 0]], np.int32)
        source = payloads.rows(slice(row, row + 1))
        kernel.decode_batch(self._context(), source, boxes, np.zeros(1, np.uint8), out, status, 0, 1)
        return out[0], status

    def _fail(self, error: DecodeError, row: int, failed: Failures | None) -> None:
        if failed is None:
            raise error from None
        failed[row] = error

    def _name(self, located: Located, row: int) -> str:
        return self.reader.name(int(located.indices[row]))

    def _context(self) -> kernel.Context:
        """This thread's kernel context."""
        if not hasattr(self._local, "context"):
            self._local.context = kernel.Context(_EXACT)
        context: kernel.Context = self._local.context
        return context


def _parts(dataset: FastDataset) -> list[tuple[Reader, str]]:
    """The readers that a dataset joins, or its own, each with its name."""
    reader = dataset.reader
    if isinstance(reader, JoinedReader):
        return list(zip(reader.parts, reader.names, strict=True))
    return [(reader, str(dataset.path))]


def _paths(path: Path | Sequence[Path]) -> list[str]:
    given: list[Any] = list(path) if isinstance(path, list | tuple) else [path]
    if not given or not all(isinstance(each, str | os.PathLike) for each in given):
        raise OptionError(f"path must be a path, or a list of paths, found {shown(path)}")
    return [os.fspath(each) for each in given]


def _opened(paths: Sequence[str], foreign: ForeignOptions | Mapping[str, Any] | None) -> Reader:
    if len(paths) == 1:
        return open_reader(paths[0], foreign)
    if all(is_shard(path) and os.path.isfile(path) for path in paths):
        return open_shards(paths, f"{paths[0]} …", foreign)
    return JoinedReader([open_reader(path, foreign) for path in paths], paths)
