"""The work of a batch: what was drawn for its images, who is mixed with whom, and the labels that come of it.

The partner of position p is p XOR 1, wherever both are in the batch. So a rank needs no image of another, and what is
mixed with what does not depend on how many ranks there are. The short batch that may end an epoch is not mixed at all:
with more ranks its pairs would be torn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.errors import OptionError
from iofast.loader.plan import LoaderPlan
from iofast.loader.samples import Samples
from iofast.ops import Mix
from iofast.work import Work


def work_of(
    plan: LoaderPlan, samples: Samples, rows: NDArray[np.intp] | None, sizes: NDArray[np.float64]
) -> Work | None:
    """What is done to each of the images that are `rows` of `samples`, of `sizes` (height, width), float64 (N, 2);
    None where all are treated alike."""
    if not plan.pipeline.drawn:
        return None
    chosen = np.arange(len(samples)) if rows is None else rows
    made = plan.pipeline.work(samples.draw(chosen), sizes[:, 1], sizes[:, 0], samples.boxes[chosen])
    if plan.pipeline.mix is None:
        return made
    full = plan.schedule.n - plan.schedule.n % plan.schedule.global_batch
    return made.paired(partners(samples.positions[chosen], full))


def partners(positions: NDArray[np.int64], full: int) -> NDArray[np.int64]:
    """For each of a batch's `positions` the row of its partner; its own where that was left out, or where the position
    is not below `full`, in the batches that have all of their samples."""
    rows = np.arange(len(positions))
    made, wanted = rows.copy(), positions ^ 1
    for step in (1, -1):  # the partner stands next to it, or nowhere
        beside = np.roll(positions, -step)
        near = (
            (beside == wanted) & (rows + step >= 0) & (rows + step < len(rows)) & (np.maximum(beside, positions) < full)
        )
        made[near] = rows[near] + step
    return made


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
