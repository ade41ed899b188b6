"""Some samples of an epoch in the making: where they lie, their pixels, their fields, and what a user's function made.

Nothing here raises for a sample that cannot be made: it is noted, and whoever asked decides (failures.py).
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel, pixels
from iofast.choices import Draw
from iofast.containers.base import Located, Payloads
from iofast.containers.changed import renew
from iofast.errors import DecodeError, IofastError
from iofast.loader.buffers import BatchMemory
from iofast.loader.canvas import Canvas, CanvasStorage, Ragged, Rows, Uniform, output_sizes, size_of
from iofast.loader.deep import Deep
from iofast.loader.divided import Divided
from iofast.loader.failures import Failure
from iofast.loader.mapping import Mapper, Sample
from iofast.loader.plan import LoaderPlan
from iofast.loader.resident import PlannedImages
from iofast.loader.several import Cut, Several
from iofast.loader.split import WHOLE, on_cpu
from iofast.telemetry import Stages
from iofast.transforms.crop_box import CropBox
from iofast.transforms.windows import Places
from iofast.work import no_work


class Samples:
    """The samples at `positions` (int64, (N,)) of an epoch, or those drawn `instead` of them the `attempt`-th time."""

    def __init__(
        self,
        plan: LoaderPlan,
        epoch: int,
        positions: NDArray[np.int64],
        attempt: int = 0,
        instead: Samples | None = None,
        share: int | None = None,
    ) -> None:
        self._plan, self._epoch, self._attempt = plan, epoch, attempt
        self._share = plan.decoding.share if share is None else share  # thousandths that the CPU decodes
        self.positions = positions
        order = plan.order
        self.indices = order.replacement(epoch, positions, attempt) if attempt else order.indices(epoch, positions)
        cached = plan.resident
        self.located: Located = cached.located.rows(self.indices) if cached else plan.dataset.locate(self.indices)
        self.reasons: dict[int, str] = {}  # of rows that could not be made; "" where nothing is wrong with the sample
        self.values: dict[str, list[Any]] = {name: [None] * len(positions) for name in plan.stored}
        self.mapped: list[Sample | None] = [None] * len(positions)
        self._attempts = np.full(len(positions), attempt, np.int64)  # of what stands in each row
        self._drawn_at = plan.drawn_at(positions)
        first = plan.before  # what images are cut by has to be known first
        self._unread = [name for name in plan.stored if name not in first]
        for name in first:
            self._read(name, 0, len(positions))
        self.boxes, self._flips = self._planned(slice(None))
        self._cuts = self._cut(slice(None))
        self.draft = self._draft(instead) if plan.resident else None
        if cached is not None and self.draft is not None:  # known at once, for all rows
            self.reasons = cached.reasons(self.draft, self.located, clip=plan.pipeline.pads) | self.reasons
        self.canvas = self._canvas(instead) if plan.with_images and self.draft is None else None
        # where the kernel does all there is to be done
        self.finish = self._finish(np.arange(len(positions))) if plan.finishes else None

    def __len__(self) -> int:
        return len(self.positions)

    def make(self, context: kernel.Context, stages: Stages, start: int, stop: int) -> None:
        """Rows [start, stop): several threads may do parts of it at the same time."""
        if self.canvas is not None:
            self._decode(self.canvas, context, stages, slice(start, stop))
        for name in self._unread:
            self._read(name, start, stop)
        for row in range(start, stop) if self._plan.targets else ():
            self._follow(row)
        if self._plan.mapper is not None:
            self._map(self._plan.mapper, start, stop)

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
        seed = self._plan.options.seed
        return Draw(seed, self._epoch, self._drawn_at[rows], self._attempts[rows], self.indices[rows])

    def sample(self, row: int, images: Any) -> Sample:
        """One sample as a dictionary; `images` are those of all rows."""
        return {name: self.value(name, row, images) for name in self._plan.fields}

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
            return self._plan.dataset.reader.keys(self.located.rows(slice(row, row + 1)))[0]
        return self.values[name][row]

    def _crop(self, row: int) -> CropBox:
        """What became of one image."""
        flip, orientation = bool(self._flips[row] & 1), int(self.located.orientation[row])
        box = CropBox.of(self.boxes[row], self._plan.pipeline.size, flip=flip, orientation=orientation)
        return box.then(*self._moves(row)) if self._plan.pipeline.warps else box

    def _moves(self, row: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """The steps of one image, and their numbers."""
        pipeline, one = self._plan.pipeline, np.array([row])
        height, width = pipeline.size or (int(self.boxes[row, 5]), int(self.boxes[row, 4]))
        work = pipeline.work(self.draw(one), [width], [height], self.boxes[one])
        return work.steps[0], work.numbers[0]

    def _draft(self, instead: Samples | None) -> PlannedImages:
        """Indices, boxes and flips are those of the samples themselves, also of what takes another's place later."""
        size = self._plan.pipeline.size
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
        pipeline, located = self._plan.pipeline, self.located
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
        for name, target in self._plan.targets.items():
            try:
                made += target.boxes(self.values[name][row])
            except DecodeError as error:
                self.reasons.setdefault(row, f"field {name}: {error}")
        return made

    def _cut(self, rows: NDArray[np.intp] | slice) -> list[Cut]:
        """What each group of views takes of some rows."""
        located, views = self.located, self._plan.pipeline.views
        draw = self.draw(rows) if views else None
        return [Cut.of(view, draw, located.width[rows], located.height[rows]) for view in views if draw is not None]

    def _canvas(self, instead: Samples | None) -> Canvas:
        plan, rows = self._plan, len(self)
        if plan.deep:
            return Deep(rows, plan.pipeline.size or size_of(self.boxes), plan.options.dtype, plan.pipeline.ops)
        if plan.pipeline.views:
            memory = plan.memory if instead is None else BatchMemory(pinned=False, spare=1)
            stored = CanvasStorage(memory, plan.options.memory_format, plan.options.dtype)
            return Several(plan.pipeline.views, self._cuts, rows, stored)
        own = plan.float_memory if plan.finishes else plan.memory
        memory = own if instead is None else BatchMemory(pinned=False, spare=1)
        stored = CanvasStorage(memory, plan.options.memory_format, plan.options.dtype if plan.finishes else torch.uint8)
        if plan.pipeline.size is None and plan.options.ragged != "raise":
            return Ragged(self.boxes, stored)
        if instead is None and self._share is not None and self._share < WHOLE:
            return self._divided(self._share)
        if instead is None:
            return Uniform(rows, plan.pipeline.size or size_of(self.boxes), stored)
        size = cast(Uniform | Divided, instead.canvas).size
        if plan.pipeline.size is None:
            self._refuse_others(size)
        return Uniform(rows, size, stored)

    def _finish(self, rows: NDArray[np.intp]) -> kernel.Finish:
        """What is drawn for images of the sizes that `rows` of the canvas have."""
        pipeline, canvas = self._plan.pipeline, self.canvas
        sizes = output_sizes(self.boxes[rows]) if isinstance(canvas, Ragged) else np.array([cast(Uniform, canvas).size])
        heights, widths = np.broadcast_to(sizes, (len(rows), 2)).T
        drawn = pipeline.drawn
        work = pipeline.work(self.draw(rows), widths, heights, self.boxes[rows]) if drawn else no_work(len(rows))
        return pixels.finish_of(pipeline.ops, work, self._plan.options.dtype)

    def _divided(self, share: int) -> Divided:
        plan, located = self._plan, self.located
        places = self.positions % plan.schedule.global_batch
        about = self.boxes, self._flips, located.orientation
        return Divided(
            cast(tuple[int, int], plan.pipeline.size), on_cpu(places, share), located.length, *about, plan.memory
        )

    def decode_here(self, context: kernel.Context, rows: list[int]) -> None:
        """Have the CPU decode rows that the device could not: what it says of them counts."""
        canvas, step = cast(Divided, self.canvas), self._plan.slice
        for some in (np.array(rows[at : at + step], np.intp) for at in range(0, len(rows), step)):
            located = self.located.rows(some)
            with self._plan.dataset.reader.payloads(located, 0, len(some)) as payloads:
                source = payloads.checked(self._plan.options.check is not None)
                boxes, flips = self.boxes[some], self._flips[some]
                status = canvas.decode_here(context, source, boxes, flips, some.tolist())
                self._decode_changed(canvas, context, source, status, some)
                for place in np.flatnonzero(status).tolist():
                    reason = kernel.failure(int(status[place]), source, place)
                    self.reasons.setdefault(int(some[place]), reason)

    def _decode(self, canvas: Canvas, context: kernel.Context, stages: Stages, rows: slice) -> None:
        start, stop = rows.start, rows.stop
        begun, read = monotonic_ns(), -context.read_ns
        with self._plan.dataset.reader.payloads(self.located, start, stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            source = payloads.checked(self._plan.options.check is not None)
            own = self.finish and self.finish._replace(work=self.finish.work.rows(rows))
            status = canvas.decode(context, source, self.boxes[rows], self._flips[rows], Rows(start, own))
            self._decode_changed(canvas, context, source, status, np.arange(start, stop))
            failed = np.flatnonzero(status).tolist() if status.any() else []
            for row in failed:
                self.reasons.setdefault(start + row, kernel.failure(int(status[row]), source, row))
        read += context.read_ns
        # the bytes with the first slice: to add them up for each takes longer than to count the rest
        nbytes = 0 if start else int(self.located.length.sum())
        stages.read.add(stop - start, work_ns=read, nbytes=nbytes)
        stages.decode.add(stop - start, work_ns=monotonic_ns() - begun - read, failed=len(failed))

    def _decode_changed(
        self,
        canvas: Canvas,
        context: kernel.Context,
        source: Payloads,
        status: NDArray[np.int32],
        rows: NDArray[np.intp],
    ) -> None:
        """Once more the images that are others than the index says, with boxes for the sizes that they have now.

        `status` and `source` are of `rows`. Where a batch has one size and no transform that makes it, images of
        another cannot be made.
        """
        if not status.any():
            return
        located = self.located.rows(rows)
        again = renew(self._plan.dataset.reader, located, source, status)
        if not len(again):
            return
        changed = rows[again]
        for own, now in zip(self.located, located, strict=True):
            if own is not None and now is not None:
                own[changed] = now[again]
        self.boxes[changed], self._flips[changed] = self._planned(changed)
        for cut, again_cut in zip(self._cuts, self._cut(changed), strict=True):
            cut.put(changed, again_cut)
        if self._plan.pipeline.size is None and isinstance(canvas, Uniform):
            fits = (self.boxes[changed, 5:3:-1] == canvas.size).all(axis=1)
            again, changed = again[fits], changed[fits]
        boxes, flips = self.boxes[changed], self._flips[changed]
        finish = self._finish(changed) if self.finish else None
        status[again] = canvas.decode_here(context, source.rows(again), boxes, flips, changed.tolist(), finish)

    def _read(self, name: str, start: int, stop: int) -> None:
        """A field of some rows."""
        rows, failed = slice(start, stop), dict[int, IofastError]()
        check = self._plan.options.check is not None
        located, dataset = self.located.rows(rows), self._plan.dataset
        self.values[name][rows] = dataset.values(name, self.indices[rows], located, check=check, failed=failed)
        for row, error in failed.items():
            self.reasons.setdefault(start + row, str(error).removeprefix(f"{self._name(start + row)}: "))

    def _follow(self, row: int) -> None:
        """Have the fields of a sample follow its image; after that was decoded, for its size may have changed."""
        if row in self.reasons:
            return
        crop, size = self._crop(row), (int(self.located.width[row]), int(self.located.height[row]))
        centres = self._plan.pipeline.part is not None
        for name, target in self._plan.targets.items():
            try:
                if self.values[name][row] is not None:
                    self.values[name][row] = target.follow(self.values[name][row], crop, size, centres=centres)
            except DecodeError as error:
                self.reasons.setdefault(row, f"field {name}: {error}")

    def _map(self, mapper: Mapper, start: int, stop: int) -> None:
        """The user's function, for each sample that is whole. What it raises is the consumer's: a fault of the program,
        not of the data."""
        plan, images = self._plan, None if self.canvas is None else self.canvas.images()
        rows = [row for row in range(start, stop) if row not in self.reasons]
        samples = [self.sample(row, images) for row in rows]
        seeds = [(plan.options.seed, self._epoch, int(self._drawn_at[row]), self._attempt) for row in rows]

        def name(number: int) -> str:
            return f"{self._name(rows[number])}, position {self.positions[rows[number]]} of epoch {self._epoch}"

        for row, made in zip(rows, mapper.map(samples, seeds, name), strict=True):
            self.mapped[row] = made

    def _failure(self, row: int, reason: str) -> Failure:
        return Failure(self._epoch, int(self.positions[row]), self._attempt, self._name(row), reason)

    def _name(self, row: int) -> str:
        return self._plan.dataset.reader.name(int(self.located.indices[row]))
