"""Checks of a loader's options against each other and the dataset, and what it refuses to a framework."""

import logging
from collections.abc import Mapping

import torch

from iofast.dataset import FastDataset
from iofast.errors import OptionError
from iofast.loader.options import LoaderOptions
from iofast.loader.spec import BatchSpec
from iofast.record import LABEL_FIELD
from iofast.transforms.mixing import Mix

_log = logging.getLogger("iofast")


def check_spec(spec: BatchSpec) -> None:
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
