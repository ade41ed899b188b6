"""From samples to the batch that a consumer gets: labels, fields, user functions, pixel operations.

If the device is not the CPU, images stay uint8 here, and `finish` runs on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.batch_memory import BatchMemory, empty
from iofast.errors import OptionError
from iofast.loader.canvas import Images, each_tensor, padded
from iofast.loader.finishing import finished, made_there
from iofast.loader.samples import Samples
from iofast.loader.spec import BatchSpec
from iofast.loader.there import Unmade
from iofast.transforms.mixing import Mix
from iofast.work import Work

if TYPE_CHECKING:
    from iofast.gpu import Bus

Pair = tuple[Any, Any]
Batch = Pair | dict[str, Any]  # (images, labels), or by field


def assemble(
    samples: Samples, rows: NDArray[np.intp] | None, valid: NDArray[np.bool_], name: str
) -> tuple[Batch, Work | None]:
    """The batch of `rows` (None = all) of `samples`, and the pixel work of its images, None if all are treated alike.

    `valid` (bool) is False for rows that only fill the batch up. `name` names the batch in notes on errors of the
    user's functions.
    """
    parts, spec = samples.plan.parts, samples.plan.parts.spec
    columns = (_columns if spec.options.map_sample is None else _mapped)(spec, samples, rows, name)
    images: Any = columns.get("image")
    work = None
    ours = "image" in columns and "image" not in spec.collates
    pads = ours and isinstance(images, list) and spec.options.ragged == "pad"
    sizes = torch.tensor([image.shape[1:] for image in images]) if pads else None
    mix = spec.pipeline.mix
    if ours and spec.pipeline.drawn and not spec.pipeline.views and not spec.finishes:
        chosen = np.arange(len(samples.plan)) if rows is None else rows
        work = samples.plan.work(chosen, sizes_of(images))
        if mix is not None:
            work = work.paired(partners(samples.plan.positions[chosen], parts.epochs.full))
            if "label" in columns:
                columns["label"] = soft_labels(columns["label"], mix, work)
    if "image" in columns and not spec.finishes_on_device:
        columns["image"] = finish(spec, images, work, parts.resources.float_memory)
    if spec.dataset.fields is None:
        return _pair(columns), work
    if sizes is not None:
        columns["size"] = sizes
    return columns | {"valid": torch.from_numpy(valid.copy())}, work  # a mask of its own: the consumer may change it


def finish(
    spec: BatchSpec, images: Any, work: Work | None, memory: BatchMemory | None = None, bus: Bus | None = None
) -> Any:
    """Apply what is left to do with the images of a batch, on the device of `bus` or the CPU.

    That is to make images that are not made yet, pixel operations, padding, and one channel instead of three. A tensor
    of results in host memory is taken from `memory` if there is one.
    """
    if "image" not in spec.collates and not spec.pipeline.views:
        if isinstance(images, Unmade):
            assert bus is not None  # only a device makes images
            images = images.made(spec, work, bus)
        elif isinstance(images, torch.Tensor) and not spec.finishes:  # else the kernel has finished them
            images = _apply(spec, images, work, memory, bus)
        elif not spec.finishes:
            rows = ((image.unsqueeze(0), work and work.rows(slice(row, row + 1))) for row, image in enumerate(images))
            images = [_apply(spec, image, own, None, bus)[0] for image, own in rows]
        if isinstance(images, list) and spec.options.ragged == "pad":
            images = padded(images, memory_format=spec.options.memory_format)
    if spec.options.image_mode == "L":  # the first of three equal channels, in memory of its own
        images = each_tensor(images, lambda each: each[..., :1, :, :].contiguous())
    return images


def _apply(
    spec: BatchSpec, images: torch.Tensor, work: Work | None, memory: BatchMemory | None, bus: Bus | None
) -> torch.Tensor:
    ops, (dtype, layout) = spec.pipeline.ops, spec.storage
    if dtype == torch.uint8 and not spec.pipeline.finishes:
        return images.contiguous(memory_format=layout)
    if images.dtype != torch.uint8 or images.shape[1] != 3:
        raise OptionError(
            f"images of map_sample must stay uint8 (3, height, width) with dtype={dtype} or pixel operations, found "
            f"{images.dtype} {tuple(images.shape[1:])}; leave both out, or convert in map_batch"
        )
    if bus is not None:
        from iofast.gpu.images import DeviceImages

        return made_there(bus, DeviceImages.of(images), ops, work, spec.storage).images
    shape = tuple(images.shape)
    out = (
        torch.empty(shape, dtype=dtype, memory_format=layout) if memory is None else empty(memory, shape, dtype, layout)
    )
    return finished(images, ops, work, out)


def sizes_of(images: Any) -> NDArray[np.float64]:
    """Height and width of each image of a batch, float64 (N, 2)."""
    if isinstance(images, Unmade):
        return np.full((len(images), 2), images.size, np.float64)
    if isinstance(images, torch.Tensor):
        return np.full((len(images), 2), images.shape[-2:], np.float64)
    return np.array([tuple(image.shape[-2:]) for image in images], np.float64).reshape(-1, 2)


def _columns(spec: BatchSpec, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in spec.fields:
        if name == "image" and name not in spec.collates:
            images = samples.images()
            columns[name] = images if rows is None else _rows_of(images, rows)
            continue
        values, target = samples.values(name, rows), spec.targets.get(name)
        pads = target is not None and target.kind == "mask" and name not in spec.collates
        if target and pads and spec.options.ragged == "pad" and all(isinstance(each, torch.Tensor) for each in values):
            columns[name] = padded(values, fill=target.fill, axis=0)  # as their images are
        else:
            columns[name] = spec.collate(name, values, batch)
    return columns


def _mapped(spec: BatchSpec, samples: Samples, rows: NDArray[np.intp] | None, batch: str) -> dict[str, Any]:
    """Columns of the samples that `map_sample` returned."""
    numbers = range(len(samples.plan)) if rows is None else rows.tolist()
    mapped = [sample for row in numbers if (sample := samples.mapped[row]) is not None]
    names = list(mapped[0])
    for sample in mapped:
        if sample.keys() != mapped[0].keys():
            raise OptionError(
                f"map_sample must return the same names for all samples, found {sorted(sample)} and {sorted(names)}"
            )
    spec.check_reserved(names, "map_sample returned")
    columns = {name: [sample[name] for sample in mapped] for name in names}
    return {
        name: _mapped_images(spec, samples, values, rows)
        if name == "image" and name not in spec.collates
        else spec.collate(name, values, batch)
        for name, values in columns.items()
    }


def _mapped_images(spec: BatchSpec, samples: Samples, images: list[Any], rows: NDArray[np.intp] | None) -> Any:
    """The canvas's own memory if `map_sample` has left all images in it, else a new tensor, or a list."""
    own = samples.images()
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
        and image.data_ptr() == mine.data_ptr()
        and (image.dtype, image.shape, image.stride()) == (mine.dtype, mine.shape, mine.stride())
        for image, mine in zip(images, own, strict=True)
    )


def _rows_of(images: Images, rows: NDArray[np.intp]) -> Images:
    if isinstance(images, Unmade):
        return images.rows(rows)
    if isinstance(images, list):
        return [images[row] for row in rows.tolist()]
    return each_tensor(images, lambda each: each[torch.from_numpy(rows)])


def _pair(columns: dict[str, Any]) -> Pair:
    if not columns.keys() >= {"image", "label"}:
        raise OptionError(f"map_sample must return image and label, found {sorted(columns)}")
    if further := sorted(columns.keys() - {"image", "label"}):
        raise OptionError(
            f"map_sample returned {further[0]!r}, for which a pair (images, labels) has no place: make the dataset "
            "with fields=, then a batch is a dictionary"
        )
    return columns["image"], columns["label"]


def partners(positions: NDArray[np.int64], full: int) -> NDArray[np.int64]:
    """For each of a batch's `positions`, the row of the image that it is mixed with: that of position p XOR 1.

    So a rank needs no image of another rank, and the mix does not depend on the number of ranks. A position whose
    partner is not in the batch keeps its own row. So do positions from `full` on, because several ranks would tear
    the pairs of the short last batch apart.
    """
    rows = np.arange(len(positions))
    found, wanted = rows.copy(), positions ^ 1
    for step in (1, -1):  # the partner is in the next row or the one before, or nowhere
        beside = np.roll(positions, -step)
        inside = (rows + step >= 0) & (rows + step < len(rows))
        near = (beside == wanted) & inside & (np.maximum(beside, positions) < full)
        found[near] = rows[near] + step
    return found


def soft_labels(labels: Any, mix: Mix, work: Work) -> torch.Tensor:
    """float32 (N, num_classes): each row's own class and its partner's, in the shares of `work`."""
    name = type(mix).__name__
    if not isinstance(labels, torch.Tensor) or labels.ndim != 1 or labels.is_floating_point():
        found = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, torch.Tensor) else type(labels).__name__
        raise OptionError(f"{name} needs one class for each image, found {found}")
    classes = labels.numpy().astype(np.int64)
    outside = classes[(classes < 0) | (classes >= mix.num_classes)]
    if outside.size:
        raise OptionError(f"{name}: labels must be below num_classes={mix.num_classes}, found {outside[0]}")
    soft, rows = np.zeros((len(classes), mix.num_classes), np.float32), np.arange(len(classes))
    soft[rows, classes] = work.own
    soft[rows, classes[work.partner]] += 1 - work.own
    smoothing = np.float32(mix.label_smoothing)
    return torch.from_numpy(soft * (1 - smoothing) + smoothing / mix.num_classes)
