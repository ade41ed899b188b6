"""From a list of transforms to a pipeline: which transforms exist, and their allowed order."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np

from iofast.choices import Draw
from iofast.errors import OptionError, shown
from iofast.transforms.arguments import Pair
from iofast.transforms.buckets import ResizeToBucket
from iofast.transforms.choosing import RandomChoice
from iofast.transforms.colours import Luma
from iofast.transforms.crops import Pad, RandomCrop
from iofast.transforms.elsewhere import HINTS
from iofast.transforms.erasing import RandomErasing
from iofast.transforms.mixing import Mixes
from iofast.transforms.moving import RandomHorizontalFlip
from iofast.transforms.normalize import Normalize
from iofast.transforms.pipeline import Pipeline, View
from iofast.transforms.resized_crops import ResamplingCrop
from iofast.transforms.resizing import Resize
from iofast.transforms.transform import Crop, ImageOp, Op, Resizing, Stage, Transform
from iofast.transforms.views import Views
from iofast.work import MOST_STEPS

_ALLOWED = (
    "expected ResizeToBucket, or Resize (RandomResize, ScaleJitter, …) and then "
    " RandomResizedCrop, CenterCrop or RandomCrop (each may be left out), then operations on images "
    "(RandomHorizontalFlip, RandAugment, ColorJitter, RandomApply, …), then Normalize and RandomErasing, then MixUp or "
    "CutMix or RandomChoice of them"
)
_SEVERAL = (Stage.IMAGE, Stage.VALUE)


def compile(transforms: Iterable[Transform] | Views | Pipeline | None) -> Pipeline:
    """Check the order of `transforms` (None = none) and compile them. `OptionError` names the allowed order."""
    if isinstance(transforms, Pipeline):
        return transforms
    if isinstance(transforms, Views):
        return Pipeline(views=tuple(_view(name, count, compile(own)) for name, count, own in transforms.views))  # type: ignore[arg-type]
    listed, flips_first = _flip_behind_crop(_listed(transforms))
    for before, after in pairwise(listed):
        if after.stage < before.stage or (after.stage == before.stage and after.stage not in _SEVERAL):
            raise OptionError(f"{after!r} cannot follow {before!r}: {_ALLOWED}")
    resize = next((each for each in listed if isinstance(each, Resizing)), None)
    crop = next((each for each in listed if isinstance(each, Crop)), None)
    ops = [each for each in listed if isinstance(each, Op)]
    # the kernel mirrors a crop at no cost; behind other steps, or in a window beyond the image, a flip is a step
    flip = ops[0] if ops and isinstance(ops[0], RandomHorizontalFlip) and not (crop and crop.pads) else None
    steps = ops if flip is None else ops[1:]
    return _checked(Pipeline(resize, crop, flip, tuple(steps), flips_first=flips_first))


def _flip_behind_crop(listed: list[Transform]) -> tuple[list[Transform], bool]:
    """Move a flip right before a RandomCrop behind it, and return whether that changes where padding comes."""
    for number, (flip, crop) in enumerate(pairwise(listed)):
        if isinstance(flip, RandomHorizontalFlip) and isinstance(crop, RandomCrop):
            return [*listed[:number], crop, flip, *listed[number + 2 :]], crop.pads
    return listed, False


def in_gray(pipeline: Pipeline) -> Pipeline:
    """`pipeline` with its results in gray, as three equal channels, before they are normalised.

    Raises `OptionError` if a later operation treats channels differently.
    """
    if pipeline.views:
        return Pipeline(views=tuple(replace(view, pipeline=in_gray(view.pipeline)) for view in pipeline.views))
    for op in pipeline.ops:
        given = [op.mean, op.std] if isinstance(op, Normalize) else [op.value] if isinstance(op, RandomErasing) else []
        if any(isinstance(each, Sequence) and not isinstance(each, str) and len(set(each)) > 1 for each in given):
            raise OptionError(f"image_mode='L' has one channel: give one number for each of {op!r}")
    images = [op for op in pipeline.ops if isinstance(op, ImageOp)]
    return replace(pipeline, ops=(*images, Luma(), *pipeline.ops[len(images) :]))


def _view(name: str, count: int | None, pipeline: Pipeline) -> View:
    if pipeline.size is None or pipeline.views:
        raise OptionError(f"Views: {name} must make images of one size: give it a crop, or Resize((height, width))")
    if pipeline.mix is not None:
        raise OptionError(f"Views: {name} cannot have {pipeline.mix!r}, which mixes a batch's images and labels")
    return View(name, count, pipeline)


def _listed(transforms: Iterable[Transform] | None) -> list[Transform]:
    if transforms is None:
        return []
    # a text, or a zero-dimensional array
    if not isinstance(transforms, Iterable) or isinstance(transforms, str) or not getattr(transforms, "shape", True):
        raise OptionError(
            f"transform must be a list such as T.train(224), found {shown(transforms)}{_advice(transforms)}"
        )
    listed = [_as_mix(each) for each in transforms]
    if strange := [each for each in listed if not isinstance(each, Transform)]:
        raise OptionError(f"{_named(strange[0])} is no transform of iofast: {_ALLOWED}{_advice(strange[0])}")
    return listed


def _as_mix(transform: Transform) -> Transform:
    """Replace a `RandomChoice` of mixes by `Mixes`."""
    if isinstance(transform, RandomChoice) and transform.mixes:
        return Mixes(tuple(each[0] for each in transform.transforms), tuple(transform.p or ()))  # type: ignore[index, misc]
    return transform


def _named(transform: object) -> str:
    """The full class name of another library's transform; any other value as it is."""
    kind = type(transform)
    plain = kind.__module__ in ("builtins", Pipeline.__module__) or isinstance(transform, type)
    return shown(transform) if plain else f"{kind.__module__}.{kind.__qualname__}"


def _advice(transform: object) -> str:
    """What to use instead of a transform that is not ours: the end of a message."""
    name = type(transform).__name__
    if isinstance(transform, Transform):
        return f"; write [{name}(…)]"
    if isinstance(transform, type) and issubclass(transform, Transform):
        return f"; write {transform.__name__}(…)"
    if name in sys.modules[__package__].__all__:
        return f"; use iofast.transforms.{name}"
    if name in HINTS:
        return f"; {name} {HINTS[name]}"
    return "; functions of your own are the loader's map_sample" if callable(transform) else ""


def _checked(pipeline: Pipeline) -> Pipeline:
    work = pipeline.work(Draw(0, 0, np.zeros(1, np.int64), samples=np.zeros(1, np.int64)), [8], [8])
    if (most := max(work.steps.shape[1], work.erased.shape[1])) >= MOST_STEPS:
        raise OptionError(f"a transform may have fewer than {MOST_STEPS} steps or rectangles, found {most}")
    resize, crop = pipeline.resize, pipeline.crop
    if isinstance(crop, Pad) and pipeline.size is None:
        raise OptionError(f"{crop!r} must follow Resize((height, width)): its images must be of one size")
    if resize is None or crop is None:
        return pipeline
    if isinstance(crop, ResizeToBucket):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: {_ALLOWED}")
    if isinstance(crop, ResamplingCrop) or pipeline.pads or not isinstance(resize, Resize):
        return pipeline
    high, wide = cast(Pair, pipeline.size)
    size = resize.size  # int: one side is as long, and the other may be longer
    if min(high, wide) > size if isinstance(size, int) else (high > size[0] or wide > size[1]):
        raise OptionError(f"{crop!r} cannot follow {resize!r}: the crop is larger than any resized image")
    return pipeline
