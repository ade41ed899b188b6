"""The first step of a sample, its places: which it is, where it lies, what is cut out of it. Nothing is read yet.

Several batches are planned together: NumPy's calls take nearly as long for 64 rows as for 1,024, and no other thread
can run Python meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.boxes import COLUMNS, HEIGHT, SIZE, WIDTH
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.errors import IofastError
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

    def rows(self, start: int, stop: int) -> SamplePlan:
        """Some of the samples; the columns are views."""
        some = slice(start, stop)
        return replace(
            self,
            positions=self.positions[some],
            attempts=self.attempts[some],
            indices=self.indices[some],
            located=self.located.rows(some),
            boxes=self.boxes[some],
            flips=self.flips[some],
            reasons={row - start: reason for row, reason in self.reasons.items() if start <= row < stop},
        )

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


def plan_samples(
    parts: LoaderParts, epoch: int, positions: NDArray[np.int64], indices: NDArray[np.int64] | None = None
) -> SamplePlan:
    """Plan the samples at `positions` (int64, (N,)) of an epoch. `indices` are the samples there, if they are known."""
    indices = parts.epochs.indices(epoch, positions) if indices is None else indices
    count = len(positions)
    attempts, boxes, flips = np.zeros(count, np.int64), np.zeros((count, COLUMNS), np.int32), np.zeros(count, np.uint8)
    plan = SamplePlan(parts, epoch, positions, attempts, indices, _located(parts, indices), boxes, flips)
    plan.place(np.arange(count))
    return plan


def _located(parts: LoaderParts, indices: NDArray[np.int64]) -> Located:
    return parts.resident.located.rows(indices) if parts.resident else parts.spec.dataset.locate(indices)


class BatchPlans:
    """The plans of an epoch's batches before `stop`, for any number of threads.

    They are planned in groups of 1, 1, 2, 4 … batches, up to `Resources.together`: the first must not wait for others.
    Plans are dropped if another program writes to the container.
    """

    def __init__(self, parts: LoaderParts, epoch: int, stop: int) -> None:
        self._parts, self.epoch, self._stop = parts, epoch, stop
        # an error of an endless sampler belongs to one batch, and the others before it are to come first
        self._together = 1 if parts.epochs.order.endless else parts.resources.together
        self._plans: dict[int, SamplePlan] = {}
        self._next = 0  # batches from here on are in no group yet
        self._count = 0  # of batches in groups
        self._opening: object = None
        self._lock = threading.Lock()

    def take(self, batch: int) -> SamplePlan:
        """Return the plan of a batch. Call it once for each."""
        reader = self._parts.spec.dataset.reader
        if self._together > 1:
            opening = None if self._parts.resident else reader.opening()
            with self._lock:
                if opening != self._opening:
                    self._plans.clear()
                    self._opening = opening
                if batch >= self._next and not reader.index_is_stale:
                    self._plan_group(batch)
                if (plan := self._plans.pop(batch, None)) is not None:
                    return plan
        return plan_samples(self._parts, self.epoch, self._positions(batch))

    def _plan_group(self, first: int) -> None:
        """Plan the batches from `first` on. If that fails, each is planned by itself, so one of them has the error."""
        self._next = min(first + min(max(1, self._count), self._together), self._stop)
        self._count += self._next - first
        positions = [self._positions(batch) for batch in range(first, self._next)]
        rows = np.concatenate(positions)
        indices = self._parts.epochs.indices(self.epoch, rows)  # a user's sampler must not run again after an error
        try:
            whole = plan_samples(self._parts, self.epoch, rows, indices=indices)
        except (IofastError, OSError, IndexError):
            return
        start = 0
        for batch, own in enumerate(positions, first):
            self._plans[batch] = whole.rows(start, start + len(own))
            start += len(own)

    def _positions(self, batch: int) -> NDArray[np.int64]:
        return self._parts.epochs.schedule.positions(batch)[0]
