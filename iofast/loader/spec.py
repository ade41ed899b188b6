"""What a loader's batches consist of, fields, transform, targets and user functions, and whether that fits together.

No memory, no threads.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import torch

from iofast import kernel
from iofast.dataset import FastDataset
from iofast.errors import OptionError
from iofast.fields import PSEUDO_FIELDS, collate
from iofast.loader.decoding import lacking
from iofast.loader.finishing import TYPES, Storage
from iofast.loader.loader_stats import noted
from iofast.loader.options import LoaderOptions
from iofast.loader.target_fields import targets_of
from iofast.record import LABEL_FIELD
from iofast.transforms import Pipeline
from iofast.transforms import compile as compile_transform
from iofast.transforms.arguments import RANDOM
from iofast.transforms.compiling import in_gray
from iofast.transforms.mixing import Mix

_log = logging.getLogger("iofast")
PAIR = ("image", "label")  # the fields of a batch if the dataset has no `fields`


class BatchSpec:
    """What the options of a loader make of a dataset's samples. Raises `OptionError` if they do not fit together.

    fields    names of a sample's fields, in order; `stored` are those that are read from records
    collates  field -> the user's function for its values; `targets`: field -> `TargetField`
    """

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        self.dataset, self.options = dataset, options
        compiled = compile_transform(options.transform)
        self.pipeline = in_gray(compiled) if options.image_mode == "L" else compiled
        self.device, self.dtype = torch.device(options.device), cast(torch.dtype, options.dtype)
        self.storage = Storage(self.dtype, options.memory_format)
        self.fields = PAIR if dataset.fields is None else dataset.fields
        self.stored = tuple(name for name in self.fields if name not in PSEUDO_FIELDS)
        self.with_images = "image" in self.fields
        self.collates = dict(options.collate or {})
        self.targets = targets_of(options.targets)
        strict = (options.truncated or dataset.truncated) == "strict"
        self.decode = decode_options(self.pipeline, options.pixels, strict=strict)
        _check(self)

    @cached_property
    def finishes(self) -> bool:
        """Whether the kernel finishes an image in the call that decodes it.

        Not if anything else sees the image first: a user's function, another image, a device.
        """
        options, pipeline = self.options, self.pipeline
        others = (
            pipeline.views
            or options.map_sample is not None
            or "image" in self.collates
            or pipeline.mix is not None
            or (self.finishes_there and (pipeline.size is not None or options.ragged == "raise"))
        )
        able = self.with_images and self.dtype in TYPES
        return not others and able and (pipeline.finishes or self.dtype != torch.uint8)

    @cached_property
    def finishes_there(self) -> bool:
        """Whether the device finishes images; for others than NVIDIA's GPUs, or without its compiler, the CPU does."""
        return lacking(self.device) is None

    @cached_property
    def finishes_on_device(self) -> bool:
        """Whether images are finished on the device, behind their copy: not if they are finished before that."""
        before = self.finishes or self.pipeline.views or "image" in self.collates
        return self.finishes_there and not before

    def check_reserved(self, names: Iterable[str], where: str) -> None:
        """Raise `OptionError` if one of `names` is a name that the loader itself adds to a batch's dictionary."""
        own = {"valid"} | ({"size"} if self.options.ragged == "pad" else set())
        if self.dataset.fields is not None and (taken := sorted(own & set(names))):
            raise OptionError(f"{where} the name {taken[0]!r}, which FastLoader uses itself: choose another name")

    def collate(self, name: str, values: list[Any], batch: str) -> Any:
        """Collate one field of a batch, by the user's function if there is one. `batch` is for notes on its errors."""
        if name not in self.collates:
            return collate(values)
        with noted(f"in collate[{name!r}]: {batch}"):
            return self.collates[name](values)


def decode_options(pipeline: Pipeline, pixels: str, *, strict: bool = True) -> kernel.DecodeOptions:
    """How the kernel decodes for `pipeline`. `pixels="fast"` does not change evaluation transforms."""
    fast = pixels == "fast" and not pipeline.evaluation
    filter = "bilinear" if pipeline.filter == RANDOM else pipeline.filter
    clip = any(each.pads for each in pipeline.each)
    return kernel.DecodeOptions(filter=filter, fast=fast, strict=strict, clip=clip)


def _check(spec: BatchSpec) -> None:
    """Raise `OptionError`, naming the option, for options that exclude each other or do not fit the dataset."""
    _check_fields(spec)
    if spec.dataset.fields is None and LABEL_FIELD not in spec.dataset.manifest.fields:
        _log.warning("%s has no labels, so every label in a batch is -1; fields= leaves them out", spec.dataset.path)
    if spec.pipeline.views:
        _check_views(spec)
    if spec.pipeline.mix is not None:
        _check_mixing(spec.pipeline.mix, spec.options, spec.dataset.classes)
    if spec.options.cache is not None:
        _check_cache(spec)


_HINTS = {  # what to do with another dataset, by an attribute of its class
    "indices": ": give FastDataset(…, indices=subset.indices)",
    "datasets": ": give FastDataset([…, …]), or add FastDatasets with equal fields, orientation and transforms",
    "root": ": give FastDataset(dataset.root)",
}


def check_dataset(dataset: FastDataset) -> None:
    """Raise `OptionError` for what a loader cannot load: no FastDataset, an empty one, one with a transform."""
    if not isinstance(dataset, FastDataset):
        hint = next((hint for name, hint in _HINTS.items() if hasattr(dataset, name)), "")
        raise OptionError(f"dataset must be a FastDataset, found {type(dataset).__name__}{hint}")
    if not len(dataset):
        raise OptionError(f"there is nothing to load: {dataset!r}")
    if dataset.transform is not None or dataset.target_transform is not None:
        raise OptionError(
            "the dataset has a transform of its own, which FastLoader would not call: "
            "give FastLoader the transform, or use torch's DataLoader"
        )


def _check_fields(spec: BatchSpec) -> None:
    names = ", ".join(spec.fields)
    spec.check_reserved(spec.fields, "the dataset's fields have")
    if (unknown := sorted(set(spec.collates) - set(spec.fields))) and spec.options.map_sample is None:
        raise OptionError(f"collate must name fields of the dataset, {names}, found {unknown[0]!r}")
    if "image" in spec.collates and (spec.pipeline.finishes or spec.dtype != torch.uint8):
        raise OptionError(
            "collate['image'] gets uint8 images and replaces pixel operations: leave dtype and Normalize out, or "
            "collate in map_batch"
        )
    if unknown := sorted(set(spec.targets) - set(spec.stored)):
        raise OptionError(f"targets must name stored fields of the dataset, {names}, found {unknown[0]!r}")
    left = [name for name in spec.dataset.annotations if name not in spec.targets]
    if left and spec.with_images and spec.pipeline.moves is not None and "crop" not in spec.fields:
        raise OptionError(
            f"{' and '.join(left)} would stay as stored, beside images whose pixels {spec.pipeline.moves!r} moves: "
            "name them in targets=, or add 'crop' to the dataset's fields and move them in map_sample"
        )


def _refuse(subject_does_not: str, conflicts: Mapping[str, object], advice: str) -> None:
    """Raise `OptionError` for the first of `conflicts` (name -> whether it is in use)."""
    for name, in_use in conflicts.items():
        if in_use:
            raise OptionError(f"{subject_does_not} go with {name}: {advice}")


def _check_views(spec: BatchSpec) -> None:
    options = spec.options
    conflicts = {
        "map_sample": options.map_sample is not None,
        "collate['image']": "image" in spec.collates,
        f"ragged={options.ragged!r}": options.ragged != "raise",
        f"cache={options.cache!r}": options.cache is not None,
        "the field 'crop'": "crop" in spec.fields,
        "targets": spec.targets,
    }
    _refuse("several Views do not", conflicts, "leave it out")


def _check_mixing(mix: Mix, options: LoaderOptions, classes: list[str]) -> None:
    name = type(mix).__name__
    if options.batch_size % 2:
        raise OptionError(f"{name} mixes pairs: batch_size must be even, found {options.batch_size}")
    conflicts = {
        f"ragged={options.ragged!r}": options.ragged != "raise",
        "collate['label']": "label" in (options.collate or {}),
    }
    _refuse(f"{name} does not", conflicts, "it mixes images of one size, and makes the labels of a batch")
    if len(classes) > mix.num_classes:
        raise OptionError(f"num_classes of {name} must be {len(classes)} or more, found {mix.num_classes}")


def _check_cache(spec: BatchSpec) -> None:
    options, pipeline = spec.options, spec.pipeline
    if not spec.with_images or spec.stored:
        raise OptionError(
            "cache='device' holds images and labels: the dataset's fields must have 'image' and none that is read "
            f"from records, found {', '.join(spec.fields)}"
        )
    if pipeline.filter != "bilinear":
        raise OptionError(f"cache='device' resamples bilinearly, found interpolation={pipeline.filter!r}")
    unseen = {"map_sample": options.map_sample is not None, "collate['image']": "image" in spec.collates}
    _refuse("cache='device' does not", unseen, "images are made on the device, use map_batch")
    conflicts = {
        f"ragged={options.ragged!r}": options.ragged != "raise",
        "readahead=True": options.readahead is True,
        "pixels='fast'": options.pixels == "fast",
        "device='meta'": torch.device(options.device).type == "meta",
    }
    _refuse("cache='device' does not", conflicts, "it decodes whole images once, into memory of the device")
