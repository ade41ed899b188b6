"""What a loader's batches consist of: fields, transform, targets and user functions. No memory, no threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from iofast import kernel
from iofast.containers.base import Reader
from iofast.dataset import FastDataset
from iofast.errors import ContainerError, DecodeError, OptionError
from iofast.fields import PSEUDO_FIELDS, collate
from iofast.loader.finishing import TYPES
from iofast.loader.loader_stats import noted
from iofast.loader.mapping import Mapper
from iofast.loader.options import LoaderOptions
from iofast.loader.singly import DeepSamples
from iofast.loader.target_fields import targets_of
from iofast.ops import Op
from iofast.record import RAW_FIELDS, image_field
from iofast.transforms import Pipeline
from iofast.transforms import compile as compile_transform
from iofast.transforms.compiling import in_gray
from iofast.transforms.geometry import RANDOM

_TRIED = 8  # images that are read to learn their channels and type
PAIR = ("image", "label")  # the fields of a batch if the dataset has no `fields`


class BatchSpec:
    """What the options of a loader make of a dataset's samples.

    fields    names of a sample's fields, in order; `stored` are those that are read from records
    collates  field -> the user's function for its values; `targets`: field -> `TargetField`
    mapper    calls `map_sample`; None without one
    """

    def __init__(self, dataset: FastDataset, options: LoaderOptions) -> None:
        self.dataset, self.options = dataset, options
        compiled = compile_transform(options.transform)
        self.pipeline = in_gray(compiled) if options.image_mode == "L" else compiled
        self.device, self.dtype = torch.device(options.device), cast(torch.dtype, options.dtype)
        self.fields = PAIR if dataset.fields is None else dataset.fields
        self.stored = tuple(name for name in self.fields if name not in PSEUDO_FIELDS)
        self.with_images = "image" in self.fields
        self.collates = dict(options.collate or {})
        self.targets = targets_of(options.targets)
        self.mapper = None if options.map_sample is None else Mapper(options.map_sample, options.map_processes)
        self.deep = _deep(dataset, options, self.pipeline.ops)  # images are finished as they are decoded
        strict = (options.truncated or dataset.truncated) == "strict"
        self.decode = decode_options(self.pipeline, options.pixels, strict=strict)

    @cached_property
    def finishes(self) -> bool:
        """Whether the kernel finishes an image in the call that decodes it.

        Not if anything else sees the image first: a user's function, another image, a device.
        """
        options, pipeline = self.options, self.pipeline
        others = (
            pipeline.views
            or self.mapper is not None
            or "image" in self.collates
            or pipeline.mix is not None
            or options.cache is not None
            or self.deep is not None
            or self.finishes_there
        )
        able = self.with_images and kernel.finish_batch is not None and self.dtype in TYPES
        return not others and able and (pipeline.finishes or self.dtype != torch.uint8)

    @property
    def finishes_there(self) -> bool:
        """Whether the device finishes images; for others than NVIDIA's GPUs the CPU does."""
        return self.device.type == "cuda" and torch.version.hip is None and kernel.finish_batch is not None

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


def _deep(dataset: FastDataset, options: LoaderOptions, ops: Sequence[Op]) -> DeepSamples | None:
    """What images of more than 8 bits or of other channels consist of; None for RGB and gray of 8 bits.

    The first image that can be read tells channels and type of all.
    """
    if options.image_mode == "I;16":
        return DeepSamples(1, "uint16", True, ops)
    if options.image_mode != "array":
        return None
    reason = "it has no images"
    for index in dataset.resolve(np.arange(min(_TRIED, len(dataset)))).tolist():
        try:
            return DeepSamples(*_kind_of(dataset.reader, index), False, ops)
        except (KeyError, DecodeError, ContainerError) as error:
            reason = str(error)
    raise OptionError(f"image_mode='array' takes channels and type from the first image of {dataset.path}: {reason}")


def _kind_of(reader: Reader, index: int) -> tuple[int, str]:
    fields, payload = reader.manifest.fields, reader.view(index)
    return (3, "uint8") if image_field(fields) in RAW_FIELDS else kernel.kind_of(bytes(payload))
