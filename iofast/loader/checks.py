"""Checks of a loader's options against each other and the dataset, before any thread starts."""

from __future__ import annotations

import torch

from iofast.dataset import FastDataset
from iofast.errors import OptionError
from iofast.kernel.contract import ALIASED
from iofast.loader.options import LoaderOptions
from iofast.loader.spec import BatchSpec
from iofast.ops import Mix, Normalize
from iofast.transforms import Pipeline


def check_spec(spec: BatchSpec) -> None:
    """Raise `OptionError`, naming the option, for options that exclude each other or do not fit the dataset."""
    _check_fields(spec)
    _check_views(spec)
    if spec.deep:
        _check_deep(spec.pipeline, spec.options)
    if spec.pipeline.mix is not None:
        _check_mixing(spec.pipeline.mix, spec.options, spec.dataset.classes)
    if spec.options.cache is not None:
        _check_cache(spec)


_HINTS = {  # what to do about another dataset, by an attribute of its class
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
    spec.check_reserved(spec.fields, "the dataset's fields have")
    if (unknown := sorted(set(spec.collates) - set(spec.fields))) and spec.options.map_sample is None:
        raise OptionError(f"collate has {unknown[0]!r}, and a sample has only {', '.join(spec.fields)}")
    if "image" in spec.collates and (spec.pipeline.finishes or spec.options.dtype != torch.uint8):
        raise OptionError(
            "collate['image'] gets uint8 images and takes the place of pixel operations: leave dtype and "
            "Normalize out, or collate in map_batch"
        )
    if unknown := sorted(set(spec.targets) - set(spec.stored)):
        raise OptionError(f"targets has {unknown[0]!r}, and the dataset's fields are {', '.join(spec.fields)}")
    left = [name for name in spec.dataset.annotations if name not in spec.targets]
    if left and spec.with_images and spec.pipeline.moves is not None and "crop" not in spec.fields:
        raise OptionError(
            f"{' and '.join(left)} would stay as stored, beside images whose pixels {spec.pipeline.moves!r} moves: "
            "name them in targets=, or add 'crop' to the dataset's fields and move them in map_sample"
        )
    if spec.pipeline.part is not None and not spec.read_first:
        raise OptionError(
            f'{spec.pipeline.part!r} goes by boxes: name their field, as targets={{"boxes.json": "boxes"}}'
        )


def _check_views(spec: BatchSpec) -> None:
    options = spec.options
    given = {
        "map_sample": options.map_sample is not None,
        "collate['image']": "image" in spec.collates,
        f"ragged={options.ragged!r}": options.ragged != "raise",
        f"cache={options.cache!r}": options.cache is not None,
        "the field 'crop'": "crop" in spec.fields,
        "targets": bool(spec.targets),
    }
    if spec.pipeline.views and (several := [name for name, is_given in given.items() if is_given]):
        raise OptionError(f"several Views do not go with {several[0]}: leave it out")


def _check_mixing(mix: Mix, options: LoaderOptions, classes: list[str]) -> None:
    """Raise `OptionError` where these options cannot be carried out together with `mix`."""
    name = type(mix).__name__
    if options.batch_size % 2:
        raise OptionError(f"{name} mixes pairs: batch_size must be even, found {options.batch_size}")
    if options.ragged != "raise":
        raise OptionError(f"{name} mixes images of one size: it does not go with ragged={options.ragged!r}")
    if "label" in (options.collate or {}):
        raise OptionError(f"{name} makes the labels of a batch: it does not go with collate['label']")
    if len(classes) > mix.num_classes:
        raise OptionError(f"{name}(num_classes={mix.num_classes}) is too few: the dataset has {len(classes)} classes")


def _check_cache(spec: BatchSpec) -> None:
    """Raise `OptionError` where options cannot be carried out together with `cache="device"`."""
    options, pipeline = spec.options, spec.pipeline
    if not spec.with_images or spec.stored:
        raise OptionError(
            f"cache='device' holds images and labels: the dataset's fields must have 'image' and none that is read "
            f"from records, found {', '.join(spec.fields)}"
        )
    if "image" in spec.collates or options.map_sample is not None:
        name = "collate['image']" if options.map_sample is None else "map_sample"
        raise OptionError(
            f"with cache='device' images are made on the device: {name} would never see them; use map_batch"
        )
    if options.ragged != "raise":
        raise OptionError(f"cache='device' makes images of one size: it does not go with ragged={options.ragged!r}")
    if pipeline.filter != "bilinear":
        raise OptionError(f"cache='device' resamples bilinearly, found interpolation={pipeline.filter!r}")
    if options.readahead is True:
        raise OptionError("cache='device' reads everything once, at the first use: leave readahead=True out")
    if options.pixels == "fast":
        raise OptionError("cache='device' decodes whole images, once, for all crops: leave pixels='fast' out")
    if torch.device(options.device).type == "meta":
        raise OptionError("cache='device' keeps pixels in a device's memory, and device='meta' has none")


def _check_deep(pipeline: Pipeline, options: LoaderOptions) -> None:
    """Raise `OptionError` for what there is not for images of 16 bits."""
    others = [op for op in pipeline.ops if not isinstance(op, Normalize)]
    means = {len(set(each)) for op in pipeline.ops if isinstance(op, Normalize) for each in (op.mean, op.std)}
    wrong = {
        f"{others[:1]!r}"[1:-1]: bool(others),
        f"{(pipeline.zoom or pipeline.crop)!r}": pipeline.pads,
        "Views": bool(pipeline.views),
        "interpolation without antialias": pipeline.filter == ALIASED,
        "Normalize of several channels": bool(means - {1}),
        f"ragged={options.ragged!r}": options.ragged != "raise",
        f"cache={options.cache!r}": options.cache is not None,
        f"decode={options.decode!r}": options.decode != "cpu",
    }
    if found := [name for name, is_given in wrong.items() if is_given]:
        allowed = "expected resizes, crops, RandomHorizontalFlip and Normalize of one mean and std"
        raise OptionError(f"image_mode='I;16' does not go with {found[0]}: {allowed}")
