"""FastDataset: containers and plain folders as a map-style torch dataset, and the source of FastLoader."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any, Generic, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from iofast import kernel
from iofast.boxes import output_sizes, whole
from iofast.containers.base import Failures, Located, Reader
from iofast.containers.changed import Rows, decode_again
from iofast.containers.joined import JoinedReader, containers_of
from iofast.containers.located import steps
from iofast.containers.manifest import Manifest
from iofast.errors import DecodeError, LibraryMissingError, OptionError, shown

try:  # before the modules that import torch
    from torch.utils.data import Dataset
    from typing_extensions import TypeVar  # a dependency of torch; the default needs Python 3.13 otherwise
except ModuleNotFoundError:
    raise LibraryMissingError("FastDataset and FastLoader need torch: pip install 'iofast[torch]'") from None

from iofast.fields import annotation_fields, check_fields, decode_field
from iofast.foreign.options import ForeignOptions
from iofast.kernel import Payloads
from iofast.opening import open_sources
from iofast.option import names_checked
from iofast.record import LABEL_FIELD
from iofast.selection import Columns, Filter, Selection, of_split
from iofast.transforms.crop_box import CropBox

Path = str | os.PathLike[str]
Once = TypeVar("Once")
_FieldsT = TypeVar("_FieldsT", covariant=True, default=Any)  # None, or tuple[str, ...]


class FastDataset(Dataset[Any], Generic[_FieldsT]):
    """The samples of a container, of a plain image folder, or of several of them joined, with random access.

    `dataset[i]` is an upright RGB PIL image and its label (an int, -1 for none), after `transform` and
    `target_transform`, callables as torchvision's datasets take them. It can be pickled and forked, and works in
    torch's DataLoader with any number of workers. `FastLoader` does not read it through `[i]`.

    `split` names one of the container's splits, "all" their union; it is required if there are several.
    Paths in a list are joined one after another; their classes must be equal. A list of tar shards is one set.

    `indices` are the samples to take, in that order; they may repeat, and negative ones count from the end. `filter` is
    called once, with the `Columns` (index, label, width, height) of those samples, and returns a mask or the places of
    the rows to keep.

    `fields` makes a sample a dictionary of "image", "label", "key" (a str), "index" (its place in this dataset), "crop"
    (which part of the stored image "image" is, a `CropBox`) and fields of the container, decoded by
    `fields.decode_field`, None if a record lacks one. No other field is read. `transform` gets the image,
    `target_transform` the label.

    `foreign` explains the files of another program that do not follow its usual conventions: a `source.ForeignOptions`,
    or a mapping of its members, such as `{"names": {"image": "photo"}, "label_base": 1}`.

    `orientation="ignore"` gives images as they are stored, without the turn in EXIF or XMP.

    `truncated="accept"` decodes JPEGs that end early as far as they go, as Pillow does with `LOAD_TRUNCATED_IMAGES`;
    otherwise they are errors. FastLoader does the same unless its own option says otherwise.

    Raises what `open_reader` raises, and `OptionError` for a split, field or index that does not exist.
    """

    @overload
    def __init__(
        self: FastDataset[None],
        path: Path | Sequence[Path],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        indices: ArrayLike | None = None,
        filter: Filter | None = None,
        fields: None = None,
        orientation: Literal["apply", "ignore"] = "apply",
        truncated: Literal["strict", "accept"] = "strict",
        foreign: ForeignOptions | Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: FastDataset[tuple[str, ...]],
        path: Path | Sequence[Path],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        indices: ArrayLike | None = None,
        filter: Filter | None = None,
        fields: Sequence[str],
        orientation: Literal["apply", "ignore"] = "apply",
        truncated: Literal["strict", "accept"] = "strict",
        foreign: ForeignOptions | Mapping[str, Any] | None = None,
    ) -> None: ...
    @names_checked
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
        truncated: Literal["strict", "accept"] = "strict",
        foreign: ForeignOptions | Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("transform", transform), ("target_transform", target_transform), ("filter", filter)):
            if value is not None and not callable(value):
                raise OptionError(f"{name} must be callable, found {shown(value)}; iofast.transforms go to FastLoader")
        for name, given, one, other in (
            ("orientation", orientation, "apply", "ignore"),
            ("truncated", truncated, "strict", "accept"),
        ):
            if not isinstance(given, str) or given not in (one, other):
                raise OptionError(f"{name} must be {one!r} or {other!r}, found {shown(given)}")
        paths = _paths(path)
        self.path: str | list[str] = paths[0] if len(paths) == 1 else paths
        self.reader: Reader = open_sources(paths, foreign)
        self.transform, self.target_transform = transform, target_transform
        self.split, self.orientation, self.truncated = split, orientation, truncated
        self._local = threading.local()
        self._made: dict[str, Any] = {}
        self.fields = check_fields(fields, self.reader, ", ".join(paths))
        for name, field in (("transform", "image"), ("target_transform", "label")):
            if self.fields is not None and field not in self.fields and getattr(self, name) is not None:
                raise OptionError(f"{name} is called with the {field}, which is not among the fields {self.fields}")
        self._select(of_split(self.manifest, split, ", ".join(paths)), indices, filter)

    @property
    def manifest(self) -> Manifest:
        """The container's manifest: count, classes, splits, recipe, fingerprint."""
        return self.reader.manifest

    @property
    def classes(self) -> list[str]:
        """Class names, by label; empty without classes. Made once, at the first use."""
        return self._once("classes", lambda: list(self.manifest.classes or ()))

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label, as torchvision's ImageFolder has it. Made once, at the first use."""
        return self._once("class_to_idx", lambda: {name: label for label, name in enumerate(self.classes)})

    @property
    def targets(self) -> list[int]:
        """The labels of all samples, -1 for none, as a list like torchvision's ImageFolder has.

        Made once, at the first use. Changing the list changes no sample; `target_transform` does.
        """
        return self._once("targets", lambda: self.labels().tolist())

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of samples of each path, in order; a single number if `indices` mix the paths' samples."""
        return self._selection.parts([len(reader) for reader, _ in containers_of(self.reader)])

    @property
    def annotations(self) -> list[str]:
        """The fields that are known to hold masks, boxes or keypoints."""
        names = self.fields or ()
        found = set[str]().union(
            *(annotation_fields(names, reader.manifest) for reader, _ in containers_of(self.reader))
        )
        return [name for name in names if name in found]

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of the samples and their order."""
        return self._selection.fingerprint(self.manifest.fingerprint)

    def labels(self) -> NDArray[np.int64]:
        """The labels of all samples, int64 (len,), -1 for none. Of our containers only the labels' part is read."""
        return self._labels(self._selection)

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Widths and heights of all images in pixels, int32 (len,) each, 0 for unknown."""
        return self._sizes(self._selection)

    def __len__(self) -> int:
        return len(self._selection)

    def __add__(self, other: Dataset[Any]) -> Any:
        """Join the samples of both: a FastDataset if `other` is one with equal fields, options and transforms.

        Otherwise it is torch's ConcatDataset. Raises `OptionError` if the classes differ.
        """
        if not isinstance(other, FastDataset) or not self._gives_samples_like(other):
            return super().__add__(other)
        parts = [each for one in (self, other) for each in containers_of(one.reader, str(one.path))]
        joined = copy(self)
        joined.path, joined.split = [name for _, name in parts], None
        joined.reader = JoinedReader([reader for reader, _ in parts], joined.path, splits=False)
        joined._selection = self._selection.followed_by(other._selection, len(self.reader))
        return joined

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]  # NumPy would round 1.5 down

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once: what torch's DataLoader calls for a batch. Raises `DecodeError` naming the image."""
        wanted = np.array([operator.index(index) for index in indices], np.int64)
        located = self.locate(wanted)
        names = ("image", "label") if self.fields is None else self.fields
        # a list: if a generator raises, CPython 3.11 leaks the values that `*` has unpacked from it
        columns = [self._transformed(name, wanted, located) for name in names]
        samples = zip(*columns, strict=True)
        return list(samples) if self.fields is None else [dict(zip(names, sample, strict=True)) for sample in samples]

    def resolve(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The reader's dense indices of this dataset's samples `indices`; negative ones count from the end."""
        return self._selection.resolve(self._selection.wrap(indices))

    def locate(self, indices: NDArray[np.int64]) -> Located:
        """The index's rows of the samples `indices`, with size and orientation after the option `orientation`."""
        return self._turned(self.reader.columns(self.resolve(indices)).bounded())

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

        Raises `DecodeError` or `ContainerError` naming record and field; with `failed` such a row of a stored field
        gets None, and its error goes to `failed`. `check=False` compares no checksums of stored fields.
        """
        if name == "index":
            return list(self._selection.wrap(indices).tolist())
        if name == "label":
            return list(located.label.tolist())
        if name == "key":
            return list(self.reader.keys(located))
        if name == "image":
            return self._images(located)
        if name == "crop":
            sizes = zip(located.width.tolist(), located.height.tolist(), strict=True)
            turns = located.orientation.tolist()
            return [CropBox((0, 0, *size), size, False, turn) for size, turn in zip(sizes, turns, strict=True)]
        values: list[Any] = self.reader.values(located.indices, name, check=check, failed=failed)
        for row, payload in enumerate(values):
            try:
                values[row] = None if payload is None else decode_field(name, payload)
            except DecodeError as error:
                values[row], error = None, DecodeError(f"{self._name(located, row)}: {error}")
                if failed is None:
                    raise error from None
                failed[row] = error
        return values

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_local", "_made")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _local=threading.local(), _made={})

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        subset = " (a subset)" if self._selection.is_subset else ""
        labels = "" if LABEL_FIELD in self.manifest.fields else ", without labels"
        return f"FastDataset({self.path!r}{split}): {len(self)} samples{subset}{labels}"

    def _once(self, name: str, make: Callable[[], Once]) -> Once:
        """What `make` returned at the first call with this name. Not `cached_property`, which can be set in silence."""
        if name not in self._made:
            self._made[name] = make()
        made: Once = self._made[name]
        return made

    def _gives_samples_like(self, other: FastDataset) -> bool:
        """Whether samples of both are made alike."""
        alike = ("fields", "orientation", "truncated")
        same = all(getattr(self, name) == getattr(other, name) for name in alike)
        return same and self.transform is other.transform and self.target_transform is other.target_transform

    def _select(self, whole: Selection, indices: ArrayLike | None, filter: Filter | None) -> None:
        self._selection = whole if indices is None else whole.pick("indices", indices)
        if filter is not None:
            asked = self._selection
            index = np.arange(len(asked)) if indices is None else whole.wrap(np.asarray(indices, np.int64))
            columns = Columns(index, cache(lambda: self._labels(asked)), cache(lambda: self._sizes(asked)))
            self._selection = asked.keep(filter(columns))

    def _labels(self, samples: Selection) -> NDArray[np.int64]:
        labels = np.empty(len(samples), np.int64)
        for some in steps(0, len(samples)):
            labels[some] = self.reader.labels(samples.resolve(some))
        return labels

    def _sizes(self, samples: Selection) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        width, height = np.empty(len(samples), np.int32), np.empty(len(samples), np.int32)
        for some in steps(0, len(samples)):
            located = self._turned(self.reader.columns(samples.resolve(some)))
            width[some], height[some] = located.width, located.height
        return width, height

    def _turned(self, located: Located) -> Located:
        """The columns with size and orientation after the option `orientation`."""
        if self.orientation == "apply":
            return located
        turned, upright = located.orientation >= 5, np.zeros_like(located.orientation)
        width = np.where(turned, located.height, located.width)
        height = np.where(turned, located.width, located.height)
        return located._replace(width=width, height=height, orientation=upright)

    def _transformed(self, name: str, indices: NDArray[np.int64], located: Located) -> list[Any]:
        if name == "image":
            return self._images(located, transform=self.transform)
        values = self.values(name, indices, located)
        return list(map(self.target_transform, values)) if name == "label" and self.target_transform else values

    def _images(self, located: Located, transform: Callable[[Any], Any] | None = None) -> list[Any]:
        """Decode images. Each is transformed before the next is decoded, because images may be large."""
        images: list[Any] = []
        with self.reader.payloads(located, 0, len(located.indices)) as payloads:
            for row in range(len(located.indices)):
                source = payloads.rows(slice(row, row + 1))
                pixels, status = self._pixels(located, row, source)
                if status:
                    raise DecodeError(f"{self._name(located, row)}: {kernel.failure(status, source, 0)}")
                image = Image.fromarray(pixels)
                images.append(image if transform is None else transform(image))
        return images

    def _pixels(self, located: Located, row: int, source: Payloads) -> tuple[NDArray[np.uint8], int]:
        """Decode the image of one row, whose payload is `source`, and return it with its status."""
        made: list[NDArray[np.uint8]] = []

        def decode(source: Payloads, rows: NDArray[np.intp]) -> NDArray[np.int32]:
            boxes, status = whole(located.width[rows], located.height[rows]), np.zeros(1, np.int32)
            made[:] = [np.empty((1, *output_sizes(boxes)[0], 3), np.uint8)]
            kernel.decode_batch(self._context(), source, boxes, np.zeros(1, np.uint8), made[0], status, 0, 1)
            return status

        rows = np.array([row])
        status = decode(source, rows)
        if status[0]:
            decode_again(Rows(self.reader, located, rows, source), status, decode, lambda _: np.ones(1, np.bool_))
        return made[0][0], int(status[0])

    def _name(self, located: Located, row: int) -> str:
        return self.reader.name(int(located.indices[row]))

    def _context(self) -> kernel.Context:
        """This thread's kernel context."""
        if not hasattr(self._local, "context"):
            # whole images: no pixel is resampled
            options = kernel.DecodeOptions(filter="nearest", strict=self.truncated == "strict")
            self._local.context = kernel.Context(options)
        context: kernel.Context = self._local.context
        return context


def _paths(path: Path | Sequence[Path]) -> list[str]:
    paths: list[Any] = list(path) if isinstance(path, list | tuple) else [path]
    if not paths or not all(isinstance(each, str | os.PathLike) for each in paths):
        raise OptionError(f"path must be a path, or a list of paths, found {shown(path)}")
    return [os.fspath(each) for each in paths]
