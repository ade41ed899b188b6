"""From samples to the batch that a consumer gets: pixel operations, labels, fields, collated.

If the device is not the CPU, images stay uint8 here, and the work still to be done goes with them.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import pixels
from iofast.errors import OptionError
from iofast.gpu.batch_memory import BatchMemory, empty
from iofast.loader.canvas import Canvas, Images, one_channel, padded
from iofast.loader.resident import PlannedImages
from iofast.loader.samples import LoaderParts, Samples
from iofast.loader.spec import BatchSpec
from iofast.loader.target_fields import padded as padded_masks
from iofast.ops import Mix
from iofast.work import Work

Pair = tuple[Any, Any]
Batch = Pair | dict[str, Any]  # (images, labels), or by field


def assemble(
    samples: Samples, rows: NDArray[np.intp] | None, valid: NDArray[np.bool_], name: str
) -> tuple[Batch, Work | None]:
    """The batch of `rows` (None = all) of `samples`; `valid` (bool) says which of them are no filling.

    With it comes the work that was done to its images, or is still to be done; None if all are treated alike. `name`
    names the batch in notes on errors of the user's functions.
    """
    parts, spec = samples.parts, samples.parts.spec
    columns = (_mapped if spec.mapper else _columns)(spec, samples, rows, name)
    sizes, work = None, None
    if spec.pipeline.views or spec.deep:
        pass  # each was finished when it was cut out
    elif samples.finish is not None:
        columns["image"], sizes = _padded(spec, columns["image"])
    elif "image" in columns and "image" not in spec.collates:
        work = samples.work(rows, sizes_of(columns["image"]))
        if spec.pipeline.mix is not None and work is not None and "label" in columns:
            columns["label"] = soft_labels(columns["label"], spec.pipeline.mix, work)
        columns["image"], sizes = _finished(parts, columns["image"], work)
    if spec.options.image_mode == "L" and "image" in columns and (spec.device.type == "cpu" or spec.pipeline.views):
        columns["image"] = one_channel(columns["image"])
    if spec.dataset.fields is None:
        return _pair(columns), work
    if sizes is not None:
        columns["size"] = sizes
    return columns | {"valid": torch.from_numpy(valid.copy())}, work  # the mask is the consumer's own


def _columns(spec: BatchSpec, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    chosen: Any = slice(None) if rows is None else rows
    made: dict[str, Any] = {}
    for name in spec.fields:
        if name in spec.collates or name == "crop":
            made[name] = spec.collate(name, _listed(samples, name, rows), batch)
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
            made[name] = spec.dataset.reader.keys(samples.located.rows(chosen))
        else:
            values = samples.values[name]
            made[name] = _gathered(
                spec, name, values if rows is None else [values[row] for row in rows.tolist()], batch
            )
    return made


def _gathered(spec: BatchSpec, name: str, values: list[Any], batch: str) -> Any:
    """A field of a batch; masks are padded as their images are."""
    target = spec.targets.get(name)
    masks = target is not None and target.kind == "mask" and all(isinstance(each, torch.Tensor) for each in values)
    if target is not None and masks and spec.options.ragged == "pad" and name not in spec.collates:
        return padded_masks(values, target.fill)
    return spec.collate(name, values, batch)


def _listed(samples: Samples, name: str, rows: NDArray[np.intp] | None) -> list[Any]:
    """The values of a field, sample by sample, for a function that collates them."""
    images = None if samples.canvas is None else samples.canvas.images()
    return [samples.value(name, row, images) for row in (range(len(samples)) if rows is None else rows.tolist())]


def _mapped(spec: BatchSpec, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    """Columns of what the user's function made: images stay where they are if it left them there."""
    numbers = range(len(samples)) if rows is None else rows.tolist()
    made = [sample for row in numbers if (sample := samples.mapped[row]) is not None]
    names = list(made[0])
    for sample in made:
        if sample.keys() != made[0].keys():
            raise OptionError(f"map_sample returned {sorted(sample)} for one sample and {sorted(names)} for another")
    spec.check_reserved(names, "map_sample returned")
    columns = {name: [sample[name] for sample in made] for name in names}
    return {
        name: _images(spec, samples, values, rows)
        if name == "image" and name not in spec.collates
        else spec.collate(name, values, batch)
        for name, values in columns.items()
    }


def _images(spec: BatchSpec, samples: Samples, images: list[Any], rows: NDArray[np.intp] | None) -> Any:
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
    if len(kinds) > 1 or (len(shapes) > 1 and spec.options.ragged == "raise"):
        found = " and ".join(map(str, sorted(shapes)[:2] if len(shapes) > 1 else sorted(map(str, kinds))[:2]))
        raise OptionError(f"map_sample must return images of one shape and dtype, found {found}; see ragged=")
    if len(shapes) > 1:
        return images
    return torch.stack(images).contiguous(memory_format=spec.options.memory_format)


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


def _finished(parts: LoaderParts, images: Any, work: Work | None) -> tuple[Any, torch.Tensor | None]:
    """Pixel operations, if they are done on the CPU, and padding; the sizes (height, width) of what was padded."""
    spec, _, resources, resident = parts
    if isinstance(images, PlannedImages):
        if resident is not None and spec.device.type == "cpu":
            return resident.images(spec.pipeline, spec.options, images, work), None
        return images, None
    if isinstance(images, torch.Tensor):
        return _applied(spec, images, work, resources.float_memory), None
    images = [
        _applied(spec, image.unsqueeze(0), work and work.rows(slice(row, row + 1)), None)[0]
        for row, image in enumerate(images)
    ]
    return _padded(spec, images)


def _padded(spec: BatchSpec, images: Images) -> tuple[Images, torch.Tensor | None]:
    """Finished images as one tensor, and their sizes, where the loader is to pad them."""
    if not isinstance(images, list) or spec.options.ragged != "pad":
        return images, None
    sizes = torch.tensor([image.shape[1:] for image in images])
    if spec.device.type != "cpu":  # padded there, for the padding is zero after the pixel operations
        return images, sizes
    return padded(images, spec.options.memory_format), sizes


def sizes_of(images: Any) -> NDArray[np.float64]:
    """Height and width of each of a batch's images, float64 (N, 2)."""
    if isinstance(images, PlannedImages):
        return np.full((len(images), 2), images.size, np.float64)
    if isinstance(images, torch.Tensor):
        return np.full((len(images), 2), images.shape[-2:], np.float64)
    return np.array([tuple(image.shape[-2:]) for image in images], np.float64).reshape(-1, 2)


def _applied(spec: BatchSpec, images: torch.Tensor, work: Work | None, memory: BatchMemory | None) -> torch.Tensor:
    """What the pixel operations make of images, in `memory` or else in new memory."""
    options, pipeline = spec.options, spec.pipeline
    if spec.device.type != "cpu" or (options.dtype == torch.uint8 and not pipeline.finishes):
        return images
    if images.dtype != torch.uint8:
        raise OptionError(
            f"map_sample returned images of {images.dtype}: with dtype={options.dtype} or pixel operations they must "
            "stay uint8; leave both out, or do the conversion in map_batch"
        )
    layout, out = options.memory_format, None
    if memory is not None:
        out = empty(memory, tuple(images.shape), options.dtype, layout)
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


def soft_labels(labels: Any, mix: Mix, work: Work) -> torch.Tensor:
    """float32 (N, num_classes): each row's own class and its partner's, in the shares of `work`."""
    name = type(mix).__name__
    if not isinstance(labels, torch.Tensor) or labels.ndim != 1 or labels.is_floating_point():
        found = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, torch.Tensor) else type(labels).__name__
        raise OptionError(f"{name} needs one class for each image, found {found}")
    classes = labels.numpy().astype(np.int64)
    outside = classes[(classes < 0) | (classes >= mix.num_classes)]
    if outside.size:
        raise OptionError(f"{name}(num_classes={mix.num_classes}) has no place for a sample of label {outside[0]}")
    made, rows = np.zeros((len(classes), mix.num_classes), np.float32), np.arange(len(classes))
    made[rows, classes] = work.own
    made[rows, classes[work.partner]] += 1 - work.own
    smoothing = np.float32(mix.label_smoothing)
    return torch.from_numpy(made * (1 - smoothing) + smoothing / mix.num_classes)
