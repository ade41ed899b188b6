"""Some samples of an epoch in the making: places (plan.py), pixels (pixels.py), and here their values.

Nothing here raises for a sample that cannot be made: its reason is noted in the plan, and the caller (batches.py)
decides.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iofast import kernel
from iofast.choices import generator
from iofast.errors import DecodeError, IofastError, OptionError
from iofast.loader.loader_stats import Failure
from iofast.loader.options import Sample, SampleFunction
from iofast.loader.pixels import Pixels
from iofast.loader.plan import SamplePlan
from iofast.meter import Stages


class Samples:
    """The samples of `plan`.

    pixels  their images; None if the dataset's fields have none
    mapped  what `map_sample` returned for each row
    """

    def __init__(self, plan: SamplePlan) -> None:
        self.plan, self._spec = plan, plan.parts.spec
        self.pixels: Pixels | None = Pixels(plan) if self._spec.with_images else None
        self._stored: dict[str, list[Any]] = {name: [None] * len(plan) for name in self._spec.stored}
        self.mapped: list[Sample | None] = [None] * len(plan)

    def make(self, context: kernel.Context, stages: Stages, rows: NDArray[np.intp]) -> tuple[int, int]:
        """Make consecutive rows. Return the nanoseconds that reading and decoding images took.

        Several threads may make different rows at the same time.
        """
        times = (0, 0) if self.pixels is None else self.pixels.make(context, stages, rows)
        self._make_values(rows)
        return times

    def replace(self, context: kernel.Context, stages: Stages, rows: NDArray[np.intp], attempt: int) -> None:
        """Make the `attempt`-th replacements of the samples in `rows`; their positions stay."""
        self.plan.redraw(rows, attempt)
        if self.pixels is not None:
            self.pixels.make_replaced(context, stages, rows)
        self._make_values(rows)

    def failures(self, rows: Iterable[int]) -> list[Failure]:
        """Those of `rows` that could not be made."""
        plan = self.plan
        return [
            Failure(plan.epoch, int(plan.positions[row]), int(plan.attempts[row]), plan.name(row), plan.reasons[row])
            for row in rows
            if plan.reasons.get(row)
        ]

    def images(self) -> Any:
        """The images of all rows; None if the dataset's fields have none."""
        return None if self.pixels is None else self.pixels.canvas.images()

    def values(self, name: str, rows: NDArray[np.intp] | None = None) -> list[Any]:
        """One field of some samples (None = all), sample by sample."""
        plan, chosen = self.plan, np.arange(len(self.plan)) if rows is None else rows
        if name == "image":
            images = self.images()
            return [images[row] for row in chosen.tolist()]
        if name == "crop":
            return [plan.crop(row) for row in chosen.tolist()]
        if name in self._stored:
            return [self._stored[name][row] for row in chosen.tolist()]
        return self._spec.dataset.values(name, plan.indices[chosen], plan.located.rows(chosen))

    def _make_values(self, rows: NDArray[np.intp]) -> None:
        for name in self._spec.stored:
            self._read(name, rows)
        function, reasons = self._spec.options.map_sample, self.plan.reasons
        for row in rows.tolist():
            if self._spec.targets and row not in reasons:
                self._follow(row)
        if function is not None:
            self._map(function, np.array([row for row in rows.tolist() if row not in reasons], np.intp))

    def _read(self, name: str, rows: NDArray[np.intp]) -> None:
        """Read a field of some rows."""
        plan, failed = self.plan, dict[int, IofastError]()
        located, check = plan.located.rows(rows), self._spec.options.check is not None
        values = self._spec.dataset.values(name, plan.indices[rows], located, check=check, failed=failed)
        for row, value in zip(rows.tolist(), values, strict=True):
            self._stored[name][row] = value
        for number, error in failed.items():
            row = int(rows[number])
            plan.reasons.setdefault(row, str(error).removeprefix(f"{plan.name(row)}: "))

    def _follow(self, row: int) -> None:
        """Move the targets of a sample with its image; after decoding, because the image's size may have changed."""
        located = self.plan.located
        crop, size = self.plan.crop(row), (int(located.width[row]), int(located.height[row]))
        for name, target in self._spec.targets.items():
            try:
                if self._stored[name][row] is not None:
                    self._stored[name][row] = target.follow(self._stored[name][row], crop, size)
            except DecodeError as error:
                self.plan.reasons.setdefault(row, f"field {name}: {error}")

    def _map(self, function: SampleFunction, rows: NDArray[np.intp]) -> None:
        """Call `map_sample`. What it raises is a fault of the program, not of the data, so it reaches the consumer.

        The error gets a note with the sample's name.
        """
        spec, plan = self._spec, self.plan
        columns = [self.values(name, rows) for name in spec.fields]
        positions = plan.parts.epochs.drawn_at(plan.positions[rows]).tolist()
        for row, position, *values in zip(rows.tolist(), positions, *columns, strict=True):
            try:
                rng = generator(spec.options.seed, plan.epoch, position, int(plan.attempts[row]))
                result = function(dict(zip(spec.fields, values, strict=True)), rng)
                if not isinstance(result, dict):
                    raise OptionError(f"map_sample must return a dictionary, found {type(result).__name__}")
            except Exception as error:
                error.add_note(f"in map_sample: {plan.name(row)}, position {plan.positions[row]} of epoch {plan.epoch}")
                raise
            self.mapped[row] = result
