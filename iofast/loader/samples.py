"""Some samples of an epoch in the making: their places, pixels, fields, and what `map_sample` made of them.

Nothing here raises for a sample that cannot be made: its reason is noted, and the caller (batches.py) decides.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iofast import kernel
from iofast.choices import Draw
from iofast.containers.changed import fetch_damaged, renew
from iofast.errors import DecodeError, IofastError
from iofast.gpu.batch_memory import BatchMemory
from iofast.kernel import Payloads
from iofast.kernel.contract import MAX_PIXELS
from iofast.loader.canvas import Canvas, CanvasStorage, Ragged, RowsToDecode, Uniform, output_sizes, size_of
from iofast.loader.finishing import finish_of
from iofast.loader.loader_stats import Failure
from iofast.loader.mapping import Sample, mapped
from iofast.loader.plan import LoaderParts, SamplePlan
from iofast.loader.resident import PlannedImages
from iofast.loader.singly import Cut, Several
from iofast.loader.there import There
from iofast.meter import Stages
from iofast.transforms.crop_box import CropBox
from iofast.work import Work, no_work


class Samples:
    """The samples of a plan; those of its attempts above 0 replace some of `instead`.

    `reasons` is row -> why it could not be made, "" if its image only has another size than the batch.
    """

    def __init__(self, parts: LoaderParts, plan: SamplePlan, instead: Samples | None = None) -> None:
        spec, epochs, _, cached = self.parts = parts
        self._spec, self._epoch, self._attempt = spec, plan.epoch, plan.attempt
        positions = self.positions = plan.positions
        self.indices, self.located = plan.indices, plan.located
        self.reasons: dict[int, str] = {}
        self.values: dict[str, list[Any]] = {name: [None] * len(positions) for name in spec.stored}
        self.mapped: list[Sample | None] = [None] * len(positions)
        self._attempts = np.full(len(positions), plan.attempt, np.int64)  # of the sample that is now in each row
        self._drawn_at = epochs.drawn_at(positions)
        self.boxes, self._flips = plan.cut
        self._limit(slice(None))
        self._cuts = self._cut(slice(None))
        self.draft = self._draft(instead) if cached else None
        if cached is not None and self.draft is not None:  # known at once, for all rows
            self.reasons = cached.reasons(self.draft, self.located, clip=spec.pipeline.pads) | self.reasons
        self.canvas = self._canvas(instead) if spec.with_images and self.draft is None else None
        self.finish = self._finish(np.arange(len(positions))) if spec.finishes else None

    def __len__(self) -> int:
        return len(self.positions)

    def make(self, context: kernel.Context, stages: Stages, start: int, stop: int) -> None:
        """Make rows [start, stop). Several threads may make different rows at the same time."""
        if self.canvas is not None:
            self._decode(self.canvas, context, stages, slice(start, stop))
        for name in self._spec.stored:
            self._read(name, start, stop)
        for row in range(start, stop) if self._spec.targets else ():
            self._follow(row)
        for row in range(start, stop) if self._spec.options.map_sample is not None else ():
            self._map(row)

    def failures(self) -> list[Failure]:
        """The rows that could not be made, in order."""
        return [
            Failure(self._epoch, int(self.positions[row]), self._attempt, self._name(row), reason)
            for row, reason in sorted(self.reasons.items())
            if reason
        ]

    def take(self, rows: NDArray[np.intp], other: Samples, of: NDArray[np.intp]) -> None:
        """Replace `rows` by the samples `of` another; their positions stay."""
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

    def work(self, rows: NDArray[np.intp] | None, sizes: NDArray[np.float64]) -> Work | None:
        """The pixel work of `rows` (None = all), whose images have `sizes` (height, width), float64 (N, 2).

        None if all images are treated alike.
        """
        pipeline, epochs = self._spec.pipeline, self.parts.epochs
        if not pipeline.drawn:
            return None
        chosen = np.arange(len(self)) if rows is None else rows
        work = pipeline.work(self._draw(chosen), sizes[:, 1], sizes[:, 0], self.boxes[chosen])
        return work if pipeline.mix is None else work.paired(partners(self.positions[chosen], epochs.full))

    def value(self, name: str, row: int, images: Any) -> Any:
        """One field of one sample; `images` are those of all rows."""
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

    def decode_rest(self, context: kernel.Context, rows: list[int]) -> None:
        """Decode on the CPU the rows that the device could not decode."""
        step = self.parts.resources.slice
        for some in (np.array(rows[at : at + step], np.intp) for at in range(0, len(rows), step)):
            with self._spec.dataset.reader.payloads(self.located.rows(some), 0, len(some)) as payloads:
                self._decode_rows(cast(Canvas, self.canvas), context, self._checked(payloads, some), some, None)

    def _draw(self, rows: NDArray[np.intp] | slice) -> Draw:
        """The random numbers of the samples that are now in `rows`."""
        seed = self.parts.epochs.seed
        return Draw(seed, self._epoch, self._drawn_at[rows], self._attempts[rows], self.indices[rows])

    def _crop(self, row: int) -> CropBox:
        """What the transform does to the geometry of one image."""
        pipeline, one = self._spec.pipeline, np.array([row])
        flip, orientation = bool(self._flips[row] & 1), int(self.located.orientation[row])
        box = CropBox.of(self.boxes[row], pipeline.size, flip=flip, orientation=orientation)
        if not pipeline.warps:
            return box
        height, width = pipeline.size or (int(self.boxes[row, 5]), int(self.boxes[row, 4]))
        work = pipeline.work(self._draw(one), [width], [height], self.boxes[one])
        return box.then(work.steps[0], work.numbers[0])

    def _planned(self, rows: NDArray[np.intp] | slice) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Boxes and flips of some rows, for the sizes in `located`."""
        located = self.located
        return self._spec.pipeline.plan(self._draw(rows), located.width[rows], located.height[rows])

    def _limit(self, rows: NDArray[np.intp] | slice) -> None:
        """Refuse images that would be resized to more pixels than may be decoded, before memory is taken for them."""
        sizes = self.boxes[rows, 4:6].astype(np.int64)
        for row in np.arange(len(self))[rows][sizes.prod(axis=1) > MAX_PIXELS].tolist():
            width, height = self.boxes[row, 4:6].tolist()
            found = f"{width}x{height} pixels after resizing"
            self.reasons.setdefault(row, f"{kernel.status_message(kernel.Status.LIMIT)} ({found})")
            self.boxes[row] = 0

    def _cut(self, rows: NDArray[np.intp] | slice) -> list[Cut]:
        """What each group of views takes of some rows."""
        located, views = self.located, self._spec.pipeline.views
        draw = self._draw(rows) if views else None
        return [Cut.of(view, draw, located.width[rows], located.height[rows]) for view in views if draw is not None]

    def _draft(self, instead: Samples | None) -> PlannedImages:
        """Planned images that share the columns of these samples, so that `take` changes them too."""
        size = self._spec.pipeline.size
        if size is None and instead is not None and instead.draft is not None:
            size = instead.draft.size
            self._refuse_others(size)
        return PlannedImages(self.indices, self.boxes, self._flips, size or size_of(self.boxes))

    def _canvas(self, instead: Samples | None) -> Canvas:
        spec, resources, rows, pipeline = self._spec, self.parts.resources, len(self), self._spec.pipeline
        memory = resources.float_memory if spec.finishes else resources.memory
        if instead is not None:
            memory = BatchMemory(pinned=False, spare=1)
        dtype = spec.dtype if spec.finishes or pipeline.views else torch.uint8
        stored = CanvasStorage(memory, spec.options.memory_format, dtype)
        if pipeline.views:
            return Several(pipeline.views, self._cuts, rows, stored)
        if pipeline.size is None and spec.options.ragged != "raise":
            return Ragged(self.boxes, stored)
        if instead is None and (tables := resources.decoding.tables) is not None:
            cut, lengths = (self.boxes, self._flips, self.located.orientation), self.located.length
            return There(cast(tuple[int, int], pipeline.size), lengths, cut, memory, tables)
        size = pipeline.size or (size_of(self.boxes) if instead is None else cast(Uniform, instead.canvas).size)
        if instead is not None and pipeline.size is None:
            self._refuse_others(size)
        return Uniform(rows, size, stored)

    def _refuse_others(self, size: tuple[int, int]) -> None:
        """Without a transform of fixed size: refuse replacements whose size is not that of the batch."""
        height, width = size
        for row in np.flatnonzero((self.boxes[:, 4] != width) | (self.boxes[:, 5] != height)).tolist():
            self.reasons[row] = ""

    def _finish(self, rows: NDArray[np.intp]) -> kernel.Finish:
        """The pixel operations of `rows`, drawn for the sizes of their images."""
        pipeline, canvas = self._spec.pipeline, self.canvas
        sizes = output_sizes(self.boxes[rows]) if isinstance(canvas, Ragged) else np.array([cast(Uniform, canvas).size])
        heights, widths = np.broadcast_to(sizes, (len(rows), 2)).T
        drawn = pipeline.drawn
        work = pipeline.work(self._draw(rows), widths, heights, self.boxes[rows]) if drawn else no_work(len(rows))
        return finish_of(pipeline.ops, work, self._spec.dtype)

    def _decode(self, canvas: Canvas, context: kernel.Context, stages: Stages, rows: slice) -> None:
        start, stop = rows.start, rows.stop
        begun, read = monotonic_ns(), -context.read_ns
        with self._spec.dataset.reader.payloads(self.located, start, stop) as payloads:
            read += monotonic_ns() - begun  # opening files
            own = np.arange(start, stop)
            finish = self.finish and self.finish._replace(work=self.finish.work.rows(rows))
            failed = self._decode_rows(canvas, context, self._checked(payloads, own), own, finish)
        read += context.read_ns
        # all bytes with the first slice: a sum for each slice takes longer than the other counts together
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
        """Decode `rows`, whose payloads are `source`, note why some failed, and return how many did."""
        wanted = RowsToDecode(context, source, self.boxes[rows], self._flips[rows], rows, finish)
        status = canvas.decode(wanted)
        if (compared := self.parts.resources.compared) is not None:
            compared[self.indices[rows[status == 0]]] = True
        if not status.any():
            return 0
        self._decode_damaged(canvas, wanted, status)
        self._decode_changed(canvas, wanted, status)
        failed = np.flatnonzero(status).tolist()
        for place in failed:
            self.reasons.setdefault(int(rows[place]), kernel.failure(int(status[place]), source, place))
        return len(failed)

    def _checked(self, payloads: Payloads, rows: NDArray[np.intp]) -> Payloads:
        """`payloads` of `rows`, without checksums if all of them have been compared already.

        Not without some of them: the kernel would need a call for each run of rows that are alike.
        """
        compared, check = self.parts.resources.compared, self._spec.options.check is not None
        if not check or compared is None or payloads.indexed is None or self._spec.dataset.reader.moved:
            return payloads.checked(check)
        done = compared[self.indices[rows]] & (payloads.indexed[:, 0] != kernel.Kind.ENCODED)
        return payloads.checked(not done.all())

    def _decode_damaged(self, canvas: Canvas, wanted: RowsToDecode, status: NDArray[np.int32]) -> None:
        """Decode stored images whose checksum differs once more, after they were fetched again."""
        context, _, boxes, flips, rows, _ = wanted
        reader = self._spec.dataset.reader
        again = fetch_damaged(reader, self.located.rows(rows), status)
        if not len(again):
            return
        own = rows[again]
        finish = self._finish(own) if self.finish else None
        with reader.payloads(self.located.rows(own), 0, len(own)) as source:
            status[again] = canvas.decode(RowsToDecode(context, source, boxes[again], flips[again], own, finish))

    def _decode_changed(self, canvas: Canvas, wanted: RowsToDecode, status: NDArray[np.int32]) -> None:
        """Decode images again that have changed since they were indexed, with boxes drawn for their present sizes.

        `status` is that of `wanted`. In a batch whose size no transform fixes, images of another size stay failed.
        """
        context, source, _, _, rows, _ = wanted
        located = self.located.rows(rows)
        again = renew(self._spec.dataset.reader, located, source, status)
        if not len(again):
            return
        changed = rows[again]
        for own, now in zip(self.located, located, strict=True):
            if own is not None and now is not None:
                own[changed] = now[again]
        self.boxes[changed], self._flips[changed] = self._planned(changed)
        self._limit(changed)
        for cut, again_cut in zip(self._cuts, self._cut(changed), strict=True):
            cut.put(changed, again_cut)
        if self._spec.pipeline.size is None and isinstance(canvas, Uniform):
            fits = (self.boxes[changed, 5:3:-1] == canvas.size).all(axis=1)
            again, changed = again[fits], changed[fits]
        boxes, flips = self.boxes[changed], self._flips[changed]
        finish = self._finish(changed) if self.finish else None
        status[again] = canvas.decode(RowsToDecode(context, source.rows(again), boxes, flips, changed, finish))

    def _read(self, name: str, start: int, stop: int) -> None:
        """Read a field of some rows."""
        rows, failed = slice(start, stop), dict[int, IofastError]()
        check = self._spec.options.check is not None
        located, dataset = self.located.rows(rows), self._spec.dataset
        self.values[name][rows] = dataset.values(name, self.indices[rows], located, check=check, failed=failed)
        for row, error in failed.items():
            self.reasons.setdefault(start + row, str(error).removeprefix(f"{self._name(start + row)}: "))

    def _follow(self, row: int) -> None:
        """Move the targets of a sample with its image; after decoding, because the image's size may have changed."""
        if row in self.reasons:
            return
        crop, size = self._crop(row), (int(self.located.width[row]), int(self.located.height[row]))
        for name, target in self._spec.targets.items():
            try:
                if self.values[name][row] is not None:
                    self.values[name][row] = target.follow(self.values[name][row], crop, size)
            except DecodeError as error:
                self.reasons.setdefault(row, f"field {name}: {error}")

    def _map(self, row: int) -> None:
        """Call `map_sample`, unless the sample has failed. What it raises is a fault of the program, not of the data,
        so it reaches the consumer."""
        spec = self._spec
        if spec.options.map_sample is None or row in self.reasons:
            return
        images = None if self.canvas is None else self.canvas.images()
        sample = {name: self.value(name, row, images) for name in spec.fields}
        seed = spec.options.seed, self._epoch, int(self._drawn_at[row]), self._attempt

        def name() -> str:
            return f"{self._name(row)}, position {self.positions[row]} of epoch {self._epoch}"

        self.mapped[row] = mapped(spec.options.map_sample, sample, seed, name)

    def _name(self, row: int) -> str:
        return self._spec.dataset.reader.name(int(self.located.indices[row]))


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
