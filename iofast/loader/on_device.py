"""What is done to a batch on its device. `on_device` is called ahead of the consumer, with the side stream current."""

from __future__ import annotations

from typing import Any

import torch

from iofast import pixels
from iofast.gpu import Bus
from iofast.loader.assemble import Batch
from iofast.loader.batches import MadeBatch
from iofast.loader.canvas import one_channel, padded
from iofast.loader.plan import PAIR, LoaderPlan
from iofast.loader.resident import PlannedImages
from iofast.work import Work


def on_device(plan: LoaderPlan, made: MadeBatch, bus: Bus) -> Batch:
    """The batch of `made` on the device: tensors are copied, and pixel operations done there.

    May take its time, and may wait for the device: it runs in a thread that is neither the consumer's nor a decoding
    one. What it raises is the consumer's, who gets it in the place of this batch.
    """
    batch = made.batch
    columns = dict(batch) if isinstance(batch, dict) else dict(zip(PAIR, batch, strict=True))
    images = columns.get("image")
    movable = {(name, 0): value for name, value in columns.items() if isinstance(value, torch.Tensor)}
    if made.decoded:  # it is there
        movable.pop(("image", 0), None)
    for name in plan.targets:  # boxes, of as many as each image has
        own = columns.get(name)
        if isinstance(own, list) and all(isinstance(each, torch.Tensor) for each in own):
            columns[name] = bus.copy(own) if own else own
    views = images if isinstance(images, dict) and plan.pipeline.views else {}
    if views:
        columns["image"] = _views_copied(bus, views)
        movable.pop(("image", 0), None)
    if isinstance(images, list):
        columns["image"] = images = [*images]  # the user's function may have kept its own
        movable |= {("image", row): each for row, each in enumerate(images) if isinstance(each, torch.Tensor)}
    for (name, row), there in zip(movable, _copied(bus, [*movable.values()]), strict=True):
        if name == "image" and isinstance(images, list):
            images[row] = there
        else:
            columns[name] = there
    if "image" in columns and "image" not in plan.collates and not views:
        columns["image"] = _finished(plan, columns["image"], made.work)
        if plan.options.image_mode == "L":
            columns["image"] = one_channel(columns["image"])
    return columns if isinstance(batch, dict) else (columns["image"], columns["label"])


def _views_copied(bus: Bus, views: dict[str, Any]) -> dict[str, Any]:
    """Several views, finished already, on the device."""
    flat = [each for own in views.values() for each in (own if isinstance(own, list) else [own])]
    there = iter(bus.copy(flat))
    return {name: [next(there) for _ in own] if isinstance(own, list) else next(there) for name, own in views.items()}


def _copied(bus: Bus, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the device. Images that lie in one block of memory go by one copy of it, and are views of that: each
    copy costs the host as long as a photograph takes on the bus."""
    numbers: dict[int, list[int]] = {}  # of tensors, by the address of their memory
    for number, tensor in enumerate(tensors):
        if tensor.dtype == torch.uint8 and tensor.layout == torch.strided and tensor.device.type == "cpu":
            numbers.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
    several = [own for own in numbers.values() if _worth_it([tensors[number] for number in own])]
    shared = {number for own in several for number in own}
    alone = [number for number in range(len(tensors)) if number not in shared]
    blocks = [_block(tensors[own[0]]) for own in several]
    moved = bus.copy([*blocks, *(tensors[number] for number in alone)])
    made = dict(zip(alone, moved[len(blocks) :], strict=True))
    for own, there in zip(several, moved, strict=False):
        for number in own:
            one, at = tensors[number], there.storage_offset() + tensors[number].storage_offset()
            made[number] = there.as_strided(one.shape, one.stride(), at)
    return [made[number] for number in range(len(tensors))]


def _worth_it(images: list[torch.Tensor]) -> bool:
    """Whether images of one block of memory are several, and at least half of it."""
    return len(images) > 1 and 0 < images[0].untyped_storage().nbytes() <= 2 * sum(image.nbytes for image in images)


def _block(image: torch.Tensor) -> torch.Tensor:
    """The block of memory in which a uint8 image lies, as bytes."""
    memory = image.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,))


def _finished(plan: LoaderPlan, images: Any, work: Work | None) -> Any:
    """Geometry, where it is done here, pixel operations and padding."""
    if isinstance(images, PlannedImages) and plan.resident is not None:
        return plan.resident.images(plan.pipeline, plan.options, images, work)
    if isinstance(images, torch.Tensor):
        return _applied(plan, images, work)
    there = [
        _applied(plan, each.unsqueeze(0), work and work.rows(slice(row, row + 1)))[0] for row, each in enumerate(images)
    ]
    return padded(there, plan.options.memory_format) if plan.options.ragged == "pad" else there


def _applied(plan: LoaderPlan, images: torch.Tensor, work: Work | None) -> torch.Tensor:
    options = plan.options
    if images.dtype != torch.uint8:  # a user's function made others of them
        return images
    ops = plan.pipeline.ops
    return pixels.apply(images, ops, work=work, dtype=options.dtype, memory_format=options.memory_format)
