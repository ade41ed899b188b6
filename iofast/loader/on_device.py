"""What is done to a batch on its device. `on_device` is called ahead of the consumer, with the side stream current."""

from __future__ import annotations

from typing import Any

import torch

from iofast import pixels
from iofast.gpu import Bus
from iofast.loader.assemble import Batch
from iofast.loader.batches import Made
from iofast.loader.canvas import padded
from iofast.loader.plan import PAIR, Plan
from iofast.loader.resident import Draft
from iofast.work import Work


def on_device(plan: Plan, made: Made, bus: Bus) -> Batch:
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
    if isinstance(images, list):
        columns["image"] = images = [*images]  # the user's function may have kept its own
        movable |= {("image", row): each for row, each in enumerate(images) if isinstance(each, torch.Tensor)}
    for (name, row), there in zip(movable, bus.copy([*movable.values()]), strict=True):
        if name == "image" and isinstance(images, list):
            images[row] = there
        else:
            columns[name] = there
    if "image" in columns and "image" not in plan.collates:
        columns["image"] = _finished(plan, columns["image"], made.work)
    return columns if isinstance(batch, dict) else (columns["image"], columns["label"])


def _finished(plan: Plan, images: Any, work: Work | None) -> Any:
    """Geometry, where it is done here, pixel operations and padding."""
    if isinstance(images, Draft) and plan.resident is not None:
        return plan.resident.images(plan, images, work)
    if isinstance(images, torch.Tensor):
        return _applied(plan, images, work)
    there = [_applied(plan, each.unsqueeze(0), work and work.alone(row))[0] for row, each in enumerate(images)]
    return padded(there, plan.options.memory_format) if plan.options.ragged == "pad" else there


def _applied(plan: Plan, images: torch.Tensor, work: Work | None) -> torch.Tensor:
    options = plan.options
    if images.dtype != torch.uint8:  # a user's function made others of them
        return images
    ops = plan.pipeline.ops
    return pixels.apply(images, ops, work=work, dtype=options.dtype, memory_format=options.memory_format)
