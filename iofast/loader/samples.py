"""Some samples of an epoch in the making: where they lie, their pixels, their fields, and what a user's function made.

Nothing here raises for a sample that cannot be made: its reason is noted, and the caller decides (batches.py).
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.containers.changed import renew
from iofast.errors import DecodeError, IofastError
from iofast.gpu.batch_memory import BatchMemory
from iofast.gpu.decode import WHOLE, Divided, on_cpu
from iofast.kernel import Payloads
from iofast.loader.canvas import Canvas, CanvasStorage, Ragged, Uniform, output_sizes, size_of
from iofast.loader.epochs import EpochOrder
from iofast.loader.loader_stats import Failure
from iofast.loader.mapping import Mapper, Sample
from iofast.loader.resident import PlannedImages, Resident
from iofast.loader.resources import Resources
from iofast.loader.singly import Cut, Deep, Several
from iofast.loader.spec import BatchSpec
from iofast.meter import Stages
from iofast.transforms.crop_box import CropBox
from iofast.transforms.windows import Places
from iofast.work import Work, no_work


class LoaderParts(NamedTuple):
    """What batches are made of: their contents, which samples come when, what they are made with, and the dataset's
    pixels if they are kept on the device."""

    spec: BatchSpec
    epochs: EpochOrder
    resources: Resources
    resident: Resident | None = None


class Samples:
    """The samples at `positions` (int64, (N,)) of an epoch, or those drawn `instead` of them the `attempt`-th time."""

    def __init__(
        self,
        parts: LoaderParts,
        epoch: int,
        positions: NDArray[np.int64],
        attempt: int = 0,
        instead: Samples | None = None,
        share: int | None = None,
    ) -> None:
        spec, epochs, resources, cached = self.parts = parts
        self._spec, self._epoch, self._attempt = spec, epoch, attempt
        self._share = resources.decoding.share if share is None else share  # thousandths that the CPU decodes
        self.positions = positions
        self.indices = epochs.indices(epoch, positions, attempt)
        self.located: Located = cached.located.rows(self.indices) if cached else spec.dataset.locate(self.indices)
        self.reasons: dict[int, str] = {}  # of rows that could not be made; "" where nothing is wrong with the sample
        self.values: dict[str, list[Any]] = {name: [None] * len(positions) for name in spec.stored}
        self.mapped: list[Sample | None] = [None] * len(positions)
        self._attempts = np.full(len(positions), attempt, np.int64)  # of what stands in each row
        self._drawn_at = epochs.drawn_at(positions)
        first = spec.read_first
        self._unread = [name for name in spec.stored if name not in first]
        for name in first:
            self._read(name, 0, len(positions))
        self.boxes, self._flips = self._planned(slice(None))
        self._cuts = self._cut(slice(None))
        self.draft = self._draft(instead) if cached else None
        if cached is not None and self.draft is not None:  # known at once, for all rows
            self.reasons = cached.reasons(self.draft, self.located, clip=spec.pipeline.pads) | self.reasons
        self.canvas = self._canvas(instead) if spec.with_images and self.draft is None else None
        self.finish = self._finish(np.arange(len(positions))) if spec.finishes else None

    def __len__(self) -> int:
        return len(self.positions)

    def make(self, context: kernel.Context, stages: Stages, start: int, stop: int) -> None:
        """Rows [start, stop): several threads may do parts of it at the same time."""
        if self.canvas is not None:
            self._decode(self.canvas, context, stages, slice(start, stop))
        for name in self._unread:
            self._read(name, start, stop)
        for row in range(start, stop) if self._spec.targets else ():
            self._follow(row)
        if self._spec.mapper is not None:
            self._map(self._spec.mapper, start, stop)

    def failures(self) -> list[Failure]:
        """The rows that could not be made, in order."""
        return [self._failure(row, reason) for row, reason in sorted(self.reasons.items()) if reason]

    def take(self, rows: NDArray[np.intp], other: Samples, of: NDArray[np.intp]) -> None:
        """Put the samples `of` another in the place of `rows`; their positions stay."""
        for own, theirs in zip(
            (self.indices, self.boxes, *self.located), (other.indices, other.boxes, *other.located), strict=True
        ):
            if own is not None and theirs is not None:
                own[rows] = theirs[of]
        self._attempts[rows], self._flips[rows] = other._attempts[of], other._flips[of]
        if self.canvas is not None and other.canvas is not None:
            self.canvas.take(rows, other.canvas, of)
        for row, source in zip(rows.tolist(), of.tolist(), strict=True):
            self.mapped[row] = other.mapped[source]
            self.reasons.pop(row, None)
            for name, values in self.values.items():
                values[row] = other.values[name][source]

    def draw(self, rows: NDArray[np.intp] | slice) -> Draw:
        """The random numbers of `rows`, as they are for what stands there now."""
        seed = self.parts.epochs.seed
        return Draw(seed, self._epoch, self._drawn_at[rows], self._attempts[rows], self.indices[rows])

    def work(self, rows: NDArray[np.intp] | None, sizes: NDArray[np.float64]) -> Work | None:
        """What is done to the images of `rows` (None = all), whose sizes (height, width) are float64 (N, 2).

        None if all images are treated alike.
        """
        pipeline, epochs = self._spec.pipeline, self.parts.epochs
        if not pipeline.drawn:
            return None
        chosen = np.arange(len(self)) if rows is None else rows
        made = pipeline.work(self.draw(chosen), sizes[:, 1], sizes[:, 0], self.boxes[chosen])
        return made if pipeline.mix is None else made.paired(partners(self.positions[chosen], epochs.full))

    def sample(self, row: int, images: Any) -> Sample:
        """One sample as a dictionary; `images` are those of all rows."""
        return {name: self.value(name, row, images) for name in self._spec.fields}

    def value(self, name: str, row: int, images: Any) -> Any:
        """One field of one sample."""
        if name == "image":
            return images[row]
        if name == "label":
            return int(self.located.label[row])
        if name == "index":
            return int(self.indices[row])
        if name == "crop":
            return self._crop(row)
        if name == "key":
            return self._spec.dataset.reader.keys(self.located.rows(slice(row, row + 1)))[0]
        return self.values[name][row]

    def _crop(self, row: int) -> CropBox:
        """What became of one image."""
        flip, orientation = bool(self._flips[row] & 1), int(self.located.orientation[row])
        box = CropBox.of(self.boxes[row], self._spec.pipeline.size, flip=flip, orientation=orientation)
        return box.then(*self._moves(row)) if self._spec.pipeline.warps else box

    def _moves(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """The steps of one image, and their numbers."""
        pipeline, one = self._spec.pipeline, np.array([row])
        height, width = pipeline.size or (int(self.boxes[row, 5]), int(self.boxes[row, 4]))
        work = pipeline.work(self.draw(one), [width], [height], self.boxes[one])
        return work.steps[0], work.numbers[0]

    def _draft(self, instead: Samples | None) -> PlannedImages:
        """Indices, boxes and flips are those of the samples themselves, also of what takes another's place later."""
        size = self._spec.pipeline.size
        if size is None and instead is not None and instead.draft is not None:
            size = instead.draft.size
            self._refuse_others(size)
        return PlannedImages(self.indices, self.boxes, self._flips, size or size_of(self.boxes))

    def _refuse_others(self, size: tuple[int, int]) -> None:
        """Without a transform that makes them of one size: an image of another would do in another batch."""
        height, width = size
        for row in np.flatnonzero((self.boxes[:, 4] != width) | (self.boxes[:, 5] != height)).tolist():
            self.reasons[row] = ""

    def _planned(self, rows: NDArray[np.intp] | slice) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes and flips of some rows, for the sizes in `located`."""
        pipeline, located = self._spec.pipeline, self.located
        places = None if pipeline.part is None else self._places(np.arange(len(self))[rows].tolist())
        return pipeline.plan(self.draw(rows), located.width[rows], located.height[rows], places)

    def _places(self, rows: list[int]) -> list[Places]:
        """The boxes of some rows, as they are stored: (n, 4) each, of which none is nothing."""
        found = []
        for row in rows:
            size = np.array([self.located.width[row], self.located.height[row]] * 2, np.float64)
            own = [] if row in self.reasons else self._annotated(row)
            placed = np.clip(np.array(own, np.float64).reshape(-1, 4), 0, size)
            found.append(placed[(placed[:, :2] < placed[:, 2:]).all(axis=1)])
        return found

    def _annotated(self, row: int) -> list[tuple[float, ...]]:
        """The boxes of one row's targets; what cannot be read is its failure."""
        made: list[tuple[float, ...]] = []
        for name, target in self._spec.targets.items():
            try:
                made += target.boxes(self.values[name][row])
            except DecodeError as error:
                self.reasons.setdefault(row, f"field {name}: {error}")
        return made

    def _cut(self, rows: NDArray[np.intp] | slice) -> list[Cut]:
        """What each group of views takes of some rows."""
        located, views = self.located, self._spec.pipeline.views
        draw = self.draw(rows) if views else None
        return [Cut.of(view, draw, located.width[rows], located.height[rows]) for view in views if draw is not None]

    def _canvas(self, instead: Samples | None) -> Canvas:
        spec, resources, rows = self._spec, self.parts.resources, len(self)
        if spec.deep:
            return Deep(rows, spec.pipeline.size or size_of(self.boxes), spec.options.dtype, spec.pipeline.ops)
        if spec.pipeline.views:
            memory = resources.memory if instead is None else BatchMemory(pinned=False, spare=1)
            stored = CanvasStorage(memory, spec.options.memory_format, spec.options.dtype)
            return Several(spec.pipeline.views, self._cuts, rows, stored)
        own = resources.float_memory if spec.finishes else resources.memory
        memory = own if instead is None else BatchMemory(pinned=False, spare=1)
        stored = CanvasStorage(memory, spec.options.memory_format, spec.options.dtype if spec.finishes else torch.uint8)
        if spec.pipeline.size is None and spec.options.ragged != "raise":
            return Ragged(self.boxes, stored)
        if instead is None and self._share is not None and self._share < WHOLE:
            return self._divided(self._share)
        if instead is None:
            return Uniform(rows, spec.pipeline.size or size_of(self.boxes), stored)
        size = cast(Uniform | Divided, instead.canvas).size
        if spec.pipeline.size is None:
            self._refuse_others(size)
        return Uniform(rows, size, stored)

    def _finish(self, rows: NDArray[np.intp]) -> kernel.Finish:
        """What is drawn for images of the sizes that `rows` of the canvas have."""
        pipeline, canvas = self._spec.pipeline, self.canvas
        sizes = output_sizes(self.boxes[rows]) if isinstance(canvas, Ragged) else np.array([cast(Uniform, canvas).size])
        heights, widths = np.broadcast_to(sizes, (len(rows), 2)).T
        drawn = pipeline.drawn
        work = pipeline.work(self.draw(rows), widths, heights, self.boxes[rows]) if drawn else no_work(len(rows))
        return pixels.finish_of(pipeline.ops, work, self._spec.options.dtype)

    def _divided(self, share: int) -> Divided:
        spec, resources, located = self._spec, self.parts.resources, self.located
        places = self.positions % self.parts.epochs.schedule.global_batch
        size, cut = cast(tuple[int, int], spec.pipeline.size), (self.boxes, self._flips, located.orientation)
        return Divided(size, on_cpu(places, share), located.length, cut, resources.memory)

    def decode_rest(self, context: kernel.Context, rows: list[int]) -> None:
        """Decode on the CPU the rows that the device could not."""
        step = self.parts.resources.slice
        for some in (np.array(rows[at : at + step], np.intp) for at in range(0, len(rows), step)):
            with self._spec.dataset.reader.payloads(self.located.rows(some), 0, len(some)) as payloads:
                self._decode_rows(cast(Canvas, self.canvas), context, self._checked(payloads, some), some, None)

    def _decode(self, canvas: Canvas, context: kernel.Context, stages: Stages, rows: slice) -> None:
        start, stop = rows.start, rows.stop
        begun, read = monotonic_ns(), -context.read_ns
        with self._spec.dataset.reader.payloads(self.located, start, stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            own = np.arange(start, stop)
            finish = self.finish and self.finish._replace(work=self.finish.work.rows(rows))
            failed = self._decode_rows(canvas, context, self._checked(payloads, own), own, finish)
        read += context.read_ns
        # the bytes with the first slice: to add them up for each takes longer than to count the rest
        nbytes = 0 if start else int(self.located.length.sum())
        stages.read.add(stop - start, work_ns=read, nbytes=nbytes)
        stages.decode.add(stop - start, work_ns=monotonic_ns() - begun - read, failed=failed)

    def _decode_rows(
        self,
        canvas: Canvas,
        context: kernel.Context,
        source: Payloads,
        rows: NDArray[np.intp],
        finish: kernel.Finish | None,
    ) -> int:
        """Decode `rows`, which `source` has, and note why some of them failed; how many did."""
        status = canvas.decode(context, source, self.boxes[rows], self._flips[rows], rows, finish)
        if (compared := self.parts.resources.compared) is not None:
            compared[self.indices[rows[status == 0]]] = True
        if not status.any():
            return 0
        self._decode_changed(canvas, context, source, status, rows)
        failed = np.flatnonzero(status).tolist()
        for place in failed:
            self.reasons.setdefault(int(rows[place]), kernel.failure(int(status[place]), source, place))
        return len(failed)

    def _checked(self, payloads: Payloads, rows: NDArray[np.intp]) -> Payloads:
        """`payloads` of `rows`, without checksums where all of them were compared before.

        Not for some of them: each run of rows that are alike would be a call of the kernel.
        """
        compared, check = self.parts.resources.compared, self._spec.options.check is not None
        if not check or compared is None or payloads.indexed is None or self._spec.dataset.reader.moved:
            return payloads.checked(check)
        done = compared[self.indices[rows]] & (payloads.indexed[:, 0] != kernel.Kind.ENCODED)
        return payloads.checked(not done.all())

    def _decode_changed(
        self,
        canvas: Canvas,
        context: kernel.Context,
        source: Payloads,
        status: NDArray[np.int32],
        rows: NDArray[np.intp],
    ) -> None:
        """Decode images again that have changed since they were indexed, with boxes drawn for their present sizes.

        `status` and `source` are of `rows`. In a batch of one size that no transform makes, images of another size
        stay failed.
        """
        located = self.located.rows(rows)
        again = renew(self._spec.dataset.reader, located, source, status)
        if not len(again):
            return
        changed = rows[again]
        for own, now in zip(self.located, located, strict=True):
            if own is not None and now is not None:
                own[changed] = now[again]
        self.boxes[changed], self._flips[changed] = self._planned(changed)
        for cut, again_cut in zip(self._cuts, self._cut(changed), strict=True):
            cut.put(changed, again_cut)
        if self._spec.pipeline.size is None and isinstance(canvas, Uniform):
            fits = (self.boxes[changed, 5:3:-1] == canvas.size).all(axis=1)
            again, changed = again[fits], changed[fits]
        boxes, flips = self.boxes[changed], self._flips[changed]
        finish = self._finish(changed) if self.finish else None
        status[again] = canvas.decode(context, source.rows(again), boxes, flips, changed, finish)

    def _read(self, name: str, start: int, stop: int) -> None:
        """A field of some rows."""
        rows, failed = slice(start, stop), dict[int, IofastError]()
        check = self._spec.options.check is not None
        located, dataset = self.located.rows(rows), self._spec.dataset
        self.values[name][rows] = dataset.values(name, self.indices[rows], located, check=check, failed=failed)
        for row, error in failed.items():
            self.reasons.setdefault(start + row, str(error).removeprefix(f"{self._name(start + row)}: "))

    def _follow(self, row: int) -> None:
        """Have the fields of a sample follow its image; after that was decoded, for its size may have changed."""
        if row in self.reasons:
            return
        crop, size = self._crop(row), (int(self.located.width[row]), int(self.located.height[row]))
        centres = self._spec.pipeline.part is not None
        for name, target in self._spec.targets.items():
            try:
                if self.values[name][row] is not None:
                    self.values[name][row] = target.follow(self.values[name][row], crop, size, centres=centres)
            except DecodeError as error:
                self.reasons.setdefault(row, f"field {name}: {error}")

    def _map(self, mapper: Mapper, start: int, stop: int) -> None:
        """The user's function, for each sample that is whole. What it raises is the consumer's: a fault of the program,
        not of the data."""
        spec, images = self._spec, None if self.canvas is None else self.canvas.images()
        rows = [row for row in range(start, stop) if row not in self.reasons]
        samples = [self.sample(row, images) for row in rows]
        seeds = [(spec.options.seed, self._epoch, int(self._drawn_at[row]), self._attempt) for row in rows]

        def name(number: int) -> str:
            return f"{self._name(rows[number])}, position {self.positions[rows[number]]} of epoch {self._epoch}"

        for row, made in zip(rows, mapper.map(samples, seeds, name), strict=True):
            self.mapped[row] = made

    def _failure(self, row: int, reason: str) -> Failure:
        return Failure(self._epoch, int(self.positions[row]), self._attempt, self._name(row), reason)

    def _name(self, row: int) -> str:
        return self._spec.dataset.reader.name(int(self.located.indices[row]))


def partners(positions: NDArray[np.int64], full: int) -> NDArray[np.int64]:
    """For each of a batch's `positions`, the row of the image that it is mixed with: that of position p XOR 1.

    So a rank needs no image of another rank, and what is mixed does not depend on how many ranks there are. A position
    whose partner is not in the batch keeps its own row. So do positions from `full` on: with more ranks the pairs of
    the short last batch would be torn apart.
    """
    rows = np.arange(len(positions))
    made, wanted = rows.copy(), positions ^ 1
    for step in (1, -1):  # the partner stands next to it, or nowhere
        beside = np.roll(positions, -step)
        near = (
            (beside == wanted) & (rows + step >= 0) & (rows + step < len(rows)) & (np.maximum(beside, positions) < full)
        )
        made[near] = rows[near] + step
    return made
