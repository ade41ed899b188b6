"""From samples to the batch that a consumer gets: pixel operations, labels, fields, collated.

Where the device is no CPU, images stay uint8 here, and the work that is still to be done goes with them.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import pixels
from iofast.errors import OptionError
from iofast.loader.canvas import Canvas, Images, empty, one_channel, padded
from iofast.loader.mixing import soft_labels, work_of
from iofast.loader.plan import LoaderPlan
from iofast.loader.resident import PlannedImages
from iofast.loader.samples import Samples
from iofast.loader.targets import padded as padded_masks
from iofast.work import Work

Pair = tuple[Any, Any]
Batch = Pair | dict[str, Any]  # (images, labels), or by field


def assemble(
    plan: LoaderPlan, samples: Samples, rows: NDArray[np.intp] | None, valid: NDArray[np.bool_], name: str
) -> tuple[Batch, Work | None]:
    """The batch of `rows` (None = all) of `samples`; `valid` (bool) says which of them are no filling.

    With it the work that its images are still to have done, or was done; None where all are treated alike. `name` is
    what notes on errors of the user's functions call the batch.
    """
    columns = (_mapped if plan.mapper else _columns)(plan, samples, rows, name)
    sizes, work = None, None
    if plan.pipeline.views or plan.deep:
        pass  # each was finished when it was cut out
    elif samples.finish is not None:
        columns["image"], sizes = _padded(plan, columns["image"])
    elif "image" in columns and "image" not in plan.collates:
        work = work_of(plan, samples, rows, sizes_of(columns["image"]))
        if plan.pipeline.mix is not None and work is not None and "label" in columns:
            columns["label"] = soft_labels(columns["label"], plan.pipeline.mix, work)
        columns["image"], sizes = _finished(plan, columns["image"], work)
    if plan.options.image_mode == "L" and "image" in columns and (plan.device.type == "cpu" or plan.pipeline.views):
        columns["image"] = one_channel(columns["image"])
    if plan.dataset.fields is None:
        return _pair(columns), work
    if sizes is not None:
        columns["size"] = sizes
    return columns | {"valid": torch.from_numpy(valid.copy())}, work  # the mask is the consumer's own


def _columns(plan: LoaderPlan, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    chosen: Any = slice(None) if rows is None else rows
    made: dict[str, Any] = {}
    for name in plan.fields:
        if name in plan.collates or name == "crop":
            made[name] = plan.collate(name, _listed(samples, name, rows), batch)
        elif name == "image" and samples.draft is not None:
            made[name] = samples.draft if rows is None else samples.draft.rows(rows)
        elif name == "image":
            images = cast(Canvas, samples.canvas).images()
            made[name] = images if rows is None else _chosen(images, rows)
        elif name == "label":
            made[name] = torch.from_numpy(samples.located.label[chosen].astype(np.int64))
        elif name == "index":
            made[name] = torch.from_numpy(samples.indices[chosen])
        elif name == "key":
            made[name] = plan.dataset.reader.keys(samples.located.rows(chosen))
        else:
            values = samples.values[name]
            made[name] = _gathered(
                plan, name, values if rows is None else [values[row] for row in rows.tolist()], batch
            )
    return made


def _gathered(plan: LoaderPlan, name: str, values: list[Any], batch: str) -> Any:
    """A field of a batch; masks are padded as their images are."""
    target = plan.targets.get(name)
    masks = target is not None and target.kind == "mask" and all(isinstance(each, torch.Tensor) for each in values)
    if target is not None and masks and plan.options.ragged == "pad" and name not in plan.collates:
        return padded_masks(values, target.fill)
    return plan.collate(name, values, batch)


def _listed(samples: Samples, name: str, rows: NDArray[np.intp] | None) -> list[Any]:
    """The values of a field, sample by sample, for a function that collates them."""
    images = None if samples.canvas is None else samples.canvas.images()
    return [samples.value(name, row, images) for row in (range(len(samples)) if rows is None else rows.tolist())]


def _mapped(plan: LoaderPlan, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    """Columns of what the user's function made: images stay where they are if it left them there."""
    numbers = range(len(samples)) if rows is None else rows.tolist()
    made = [sample for row in numbers if (sample := samples.mapped[row]) is not None]
    names = list(made[0])
    for sample in made:
        if sample.keys() != made[0].keys():
            raise OptionError(f"map_sample returned {sorted(sample)} for one sample and {sorted(names)} for another")
    plan.check_reserved(names, "map_sample returned")
    columns = {name: [sample[name] for sample in made] for name in names}
    return {
        name: _images(plan, samples, values, rows)
        if name == "image" and name not in plan.collates
        else plan.collate(name, values, batch)
        for name, values in columns.items()
    }


def _images(plan: LoaderPlan, samples: Samples, images: list[Any], rows: NDArray[np.intp] | None) -> Any:
    own = None if samples.canvas is None else samples.canvas.images()
    if isinstance(own, torch.Tensor) and rows is None and _in_place(own, images):
        return own
    for image in images:
        if not isinstance(image, torch.Tensor) or image.ndim != 3:
            found = tuple(image.shape) if isinstance(image, torch.Tensor) else type(image).__name__
            raise OptionError(
                f"map_sample must return images that are tensors (C, H, W), found {found}: use another name for it, or "
                "collate={'image': ...}"
            )
    kinds = {(image.shape[0], image.dtype) for image in images}
    shapes = {tuple(image.shape) for image in images}
    if len(kinds) > 1 or (len(shapes) > 1 and plan.options.ragged == "raise"):
        found = " and ".join(map(str, sorted(shapes)[:2] if len(shapes) > 1 else sorted(map(str, kinds))[:2]))
        raise OptionError(f"map_sample must return images of one shape and dtype, found {found}; see ragged=")
    if len(shapes) > 1:
        return images
    return torch.stack(images).contiguous(memory_format=plan.options.memory_format)


def _in_place(own: torch.Tensor, images: list[Any]) -> bool:
    return all(
        isinstance(image, torch.Tensor)
        and image.data_ptr() == own[row].data_ptr()
        and image.dtype == own.dtype
        and image.stride() == own[row].stride()
        and image.shape == own[row].shape
        for row, image in enumerate(images)
    )


def _chosen(images: Images, rows: NDArray[np.intp]) -> Images:
    if isinstance(images, torch.Tensor):
        return images[torch.from_numpy(rows)]
    if isinstance(images, dict):
        return {
            name: _chosen(own, rows) if isinstance(own, torch.Tensor) else [_chosen(one, rows) for one in own]
            for name, own in images.items()
        }
    return [images[row] for row in rows.tolist()]


def _finished(plan: LoaderPlan, images: Any, work: Work | None) -> tuple[Any, torch.Tensor | None]:
    """Pixel operations, where they are done on the CPU, and padding; the sizes (height, width) of what was padded."""
    if isinstance(images, PlannedImages):
        here = plan.resident is not None and plan.device.type == "cpu"
        return (
            plan.resident.images(plan.pipeline, plan.options, images, work) if plan.resident and here else images
        ), None
    if isinstance(images, torch.Tensor):
        return _applied(plan, images, work, own_memory=True), None
    images = [
        _applied(plan, image.unsqueeze(0), work and work.rows(slice(row, row + 1)), own_memory=False)[0]
        for row, image in enumerate(images)
    ]
    return _padded(plan, images)


def _padded(plan: LoaderPlan, images: Images) -> tuple[Images, torch.Tensor | None]:
    """Finished images as one tensor, and their sizes, where the loader is to pad them."""
    if not isinstance(images, list) or plan.options.ragged != "pad":
        return images, None
    sizes = torch.tensor([image.shape[1:] for image in images])
    if plan.device.type != "cpu":  # padded there, for the padding is zero after the pixel operations
        return images, sizes
    return padded(images, plan.options.memory_format), sizes


def sizes_of(images: Any) -> NDArray[np.float64]:
    """Height and width of each of a batch's images, float64 (N, 2)."""
    if isinstance(images, PlannedImages):
        return np.full((len(images), 2), images.size, np.float64)
    if isinstance(images, torch.Tensor):
        return np.full((len(images), 2), images.shape[-2:], np.float64)
    return np.array([tuple(image.shape[-2:]) for image in images], np.float64).reshape(-1, 2)


def _applied(plan: LoaderPlan, images: torch.Tensor, work: Work | None, *, own_memory: bool) -> torch.Tensor:
    options, pipeline = plan.options, plan.pipeline
    if plan.device.type != "cpu" or (options.dtype == torch.uint8 and not pipeline.finishes):
        return images
    if images.dtype != torch.uint8:
        raise OptionError(
            f"map_sample returned images of {images.dtype}: with dtype={options.dtype} or pixel operations they must "
            "stay uint8; leave both out, or do the conversion in map_batch"
        )
    out = None
    if own_memory:
        out = empty(plan.float_memory, tuple(images.shape), options.dtype, options.memory_format)
    layout = options.memory_format
    return pixels.apply(images, pipeline.ops, work=work, dtype=options.dtype, memory_format=layout, out=out)


def _pair(columns: dict[str, Any]) -> Pair:
    try:
        images, labels = columns["image"], columns["label"]
    except KeyError as error:
        raise OptionError(f"map_sample must return image and label, found {sorted(columns)}") from error
    if further := sorted(columns.keys() - {"image", "label"}):
        raise OptionError(
            f"map_sample returned {further[0]!r}, for which a pair (images, labels) has no place: make the dataset "
            "with fields=, then a batch is a dictionary"
        )
    return images, labels
