"""The first step of a sample, its places: which it is, where it lies, what is cut out of it. Nothing is read yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.boxes import COLUMNS, HEIGHT, SIZE, WIDTH
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.kernel.contract import MAX_PIXELS, beyond
from iofast.loader.epochs import EpochOrder
from iofast.loader.resident import Resident
from iofast.loader.resources import Resources
from iofast.loader.spec import BatchSpec
from iofast.transforms.crop_box import CropBox
from iofast.work import Work


class LoaderParts(NamedTuple):
    """What batches are made of: their contents, the order of samples, threads and memory, and with `cache="device"`
    the dataset's pixels."""

    spec: BatchSpec
    epochs: EpochOrder
    resources: Resources
    resident: Resident | None = None


@dataclass(slots=True, eq=False)
class SamplePlan:
    """N samples of an epoch: which they are, where they lie, what is cut out of them. Rows may be drawn again.

    positions  int64 (N,); `attempts`: 0, or which replacement of the sample there is in the row, int64 (N,)
    indices    int64 (N,): the samples
    located    where their images lie
    boxes      int32 (N, 8), and `flips`, uint8 (N,): from `Pipeline.plan`
    reasons    row -> why the sample cannot be made; the later steps add theirs
    """

    parts: LoaderParts
    epoch: int
    positions: NDArray[np.int64]
    attempts: NDArray[np.int64]
    indices: NDArray[np.int64]
    located: Located
    boxes: NDArray[np.int32]
    flips: NDArray[np.uint8]
    reasons: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.positions)

    def redraw(self, rows: NDArray[np.intp], attempt: int) -> None:
        """Plan the `attempt`-th replacements of the samples in `rows`; their positions stay."""
        self.attempts[rows] = attempt
        self.indices[rows] = self.parts.epochs.indices(self.epoch, self.positions[rows], attempt)
        for own, drawn in zip(self.located, _located(self.parts, self.indices[rows]), strict=True):
            if own is not None and drawn is not None:
                own[rows] = drawn
        for row in rows.tolist():
            self.reasons.pop(row, None)
        self.place(rows)

    def place(self, rows: NDArray[np.intp]) -> None:
        """Draw boxes and flips of `rows`, and note which of them a dataset in device memory has not."""
        self.cut(rows)
        if self.parts.resident is not None:
            for number, reason in self.parts.resident.reasons(self.indices[rows]).items():
                self.reasons.setdefault(int(rows[number]), reason)

    def draw(self, rows: NDArray[np.intp] | slice) -> Draw:
        """The random numbers of the samples that are now in `rows`."""
        epochs, at = self.parts.epochs, self.parts.epochs.drawn_at(self.positions[rows])
        return Draw(epochs.seed, self.epoch, at, self.attempts[rows], self.indices[rows])

    def cut(self, rows: NDArray[np.intp]) -> None:
        """Draw boxes and flips of `rows` for the sizes in `located`.

        Images that would be resized to more pixels than may be decoded are refused before memory is taken for them.
        """
        located = self.located
        made = self.parts.spec.pipeline.plan(self.draw(rows), located.width[rows], located.height[rows])
        self.boxes[rows], self.flips[rows] = made
        sizes = made[0][:, SIZE].astype(np.int64)
        for number in np.flatnonzero(sizes.prod(axis=1) > MAX_PIXELS).tolist():
            row = int(rows[number])
            found = f"{sizes[number, 0]}x{sizes[number, 1]} pixels after resizing, the limit is {MAX_PIXELS}"
            self.reasons.setdefault(row, beyond("pixels", found).reason)
            self.boxes[row] = 0

    def work(self, rows: NDArray[np.intp] | slice, sizes: NDArray[Any]) -> Work:
        """The pixel work of `rows`, whose images have `sizes` (height, width), (N, 2), after the crop."""
        return self.parts.spec.pipeline.work(self.draw(rows), sizes[:, 1], sizes[:, 0], self.boxes[rows])

    def crop(self, row: int) -> CropBox:
        """What the transform does to the geometry of one image."""
        pipeline, flip = self.parts.spec.pipeline, bool(self.flips[row] & 1)
        box = CropBox.of(self.boxes[row], pipeline.size, flip=flip, orientation=int(self.located.orientation[row]))
        if not pipeline.warps:
            return box
        work = self.work(np.array([row]), np.array([pipeline.size or self.boxes[row, [HEIGHT, WIDTH]]]))
        return box.then(work.steps[0], work.numbers[0])

    def has_size(self, rows: NDArray[np.intp], size: tuple[int, int]) -> NDArray[np.bool_]:
        """Whether the images of `rows` have `size` (height, width): always, if a transform makes them one size."""
        fixed = self.parts.spec.pipeline.size is not None
        return np.asarray(fixed | (self.boxes[rows][:, [HEIGHT, WIDTH]] == size).all(axis=1))

    def name(self, row: int) -> str:
        """File and key of a sample."""
        return self.parts.spec.dataset.reader.name(int(self.located.indices[row]))


def plan_samples(parts: LoaderParts, epoch: int, positions: NDArray[np.int64]) -> SamplePlan:
    """Plan the samples at `positions` (int64, (N,)) of an epoch."""
    indices, count = parts.epochs.indices(epoch, positions), len(positions)
    attempts, boxes, flips = np.zeros(count, np.int64), np.zeros((count, COLUMNS), np.int32), np.zeros(count, np.uint8)
    plan = SamplePlan(parts, epoch, positions, attempts, indices, _located(parts, indices), boxes, flips)
    plan.place(np.arange(count))
    return plan


def _located(parts: LoaderParts, indices: NDArray[np.int64]) -> Located:
    return parts.resident.located.rows(indices) if parts.resident else parts.spec.dataset.locate(indices)
