"""What a loader's batches consist of: fields, transform, targets and user functions. No memory, no threads."""

from collections.abc import Iterable
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
from iofast.transforms import Pipeline
from iofast.transforms import compile as compile_transform
from iofast.transforms.arguments import RANDOM
from iofast.transforms.compiling import in_gray

PAIR = ("image", "label")  # the fields of a batch if the dataset has no `fields`


class BatchSpec:
    """What the options of a loader make of a dataset's samples.

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
