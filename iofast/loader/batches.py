"""One batch as a job for a loader's threads, from positions to tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.choices import generator
from iofast.errors import DecodeError
from iofast.loader.assemble import Batch, assemble
from iofast.loader.canvas import each_tensor
from iofast.loader.loader_stats import Contexts, Failure, noted
from iofast.loader.pixels import Pixels
from iofast.loader.plan import BatchPlans, LoaderParts
from iofast.loader.samples import Samples
from iofast.loader.there import SentJpegs
from iofast.prefetch import PrefetchJob
from iofast.work import Work

ATTEMPTS = 32  # replacements of one sample: if half of all are broken, one position in four billion uses them up
SYSTEMATIC = 8  # if that many fail together, the data is missing, and replacements would hide it


class FinishedBatch(NamedTuple):
    """A finished batch.

    valid     bool (N,): False for a sample that only fills the batch up
    work      pixel work that is left for the device
    damaged   rows whose JPEGs the device has found damaged, once it has decoded them; None if it decodes none
    redo      makes the batch again, after the CPU has decoded rows whose JPEGs the device found damaged; else None
    """

    batch: Batch
    valid: NDArray[np.bool_]
    failures: list[Failure]
    work: Work | None
    redo: Callable[[list[int]], FinishedBatch] | None = None
    damaged: Callable[[], list[int]] | None = None


class BatchJob(PrefetchJob[FinishedBatch, range]):
    """One batch, from positions to tensors, in slices of rows."""

    def __init__(
        self,
        parts: LoaderParts,
        contexts: Contexts,
        plans: BatchPlans,
        batch: int,
        ready: Callable[[int], None] | None = None,
    ) -> None:
        self._parts, self._contexts, self._plans, self._batch = parts, contexts, plans, batch
        self._epoch = plans.epoch
        self._ready = ready  # waits until the batch may be read

    def prepare(self) -> list[range]:
        begun = monotonic_ns()
        if self._ready is not None:
            self._ready(self._batch)
            self._contexts.stages.read.add(0, work_ns=monotonic_ns() - begun)
        _, self._valid = self._parts.epochs.batch(self._epoch, self._batch)
        self._samples = Samples(self._plans.take(self._batch))
        if (trace := self._contexts.trace) is not None:
            trace.add("planned", (self._epoch, self._batch), begun, monotonic_ns())
        rows, step = len(self._valid), self._parts.resources.slice
        return [range(start, min(start + step, rows)) for start in range(0, rows, step)]

    def run(self, part: range) -> None:
        begun, contexts = monotonic_ns(), self._contexts
        with contexts.one() as context:
            times = self._samples.make(context, contexts.stages, np.arange(part.start, part.stop))
        if contexts.trace is not None:
            contexts.trace.made((self._epoch, self._batch), begun, *times)

    def finish(self) -> FinishedBatch:
        samples, begun = self._samples, monotonic_ns()
        del self._samples  # the batch may wait for long, and the next one needs the memory
        made = self._completed(samples)
        if (trace := self._contexts.trace) is not None:
            trace.add("values", (self._epoch, self._batch), begun, monotonic_ns())
        pixels = samples.pixels
        if pixels is None or not isinstance(pixels.canvas, SentJpegs):
            return made
        self._contexts.on_device += len(samples.plan) - len(pixels.canvas.given)
        return made._replace(redo=partial(self._redone, samples, pixels, made.failures))

    def _redone(self, samples: Samples, pixels: Pixels, before: list[Failure], rows: list[int]) -> FinishedBatch:
        """The batch once more, of which the CPU decodes `rows`."""
        with self._contexts.one() as context:
            pixels.make_rest(context, self._contexts.stages, rows)
        made = self._completed(samples)
        return made._replace(failures=before + [each for each in made.failures if each not in before])

    def _completed(self, samples: Samples) -> FinishedBatch:
        valid, rows = self._valid, None
        failures: list[Failure] = []
        if samples.plan.reasons:
            failures = self._settle(samples)
            if samples.plan.reasons:  # rows to drop
                rows = np.array([row for row in range(len(samples.plan)) if row not in samples.plan.reasons], np.intp)
                valid = valid[rows]
        batch, work = assemble(samples, rows, valid, name_of(self._epoch, self._batch))
        if self._parts.resources.transfer is None:
            batch = mapped(self._parts, batch, self._epoch, self._batch)
        return FinishedBatch(batch, valid, failures, work)

    def _settle(self, samples: Samples) -> list[Failure]:
        """Raise an error, replace the failed samples, or leave their rows in `reasons` to be dropped. Return failures.

        Failures of samples that only fill the batch up are left out, because another rank counts them.
        """
        action, failed = self._parts.spec.options.on_error, sorted(samples.plan.reasons)
        failures = samples.failures(failed)
        if action == "raise" or len(failures) == len(samples.plan) >= SYSTEMATIC:
            raise _error(failures, len(samples.plan))
        filling = set(samples.plan.positions[~self._valid].tolist())
        if action == "replace":
            failures += self._replace(samples, failed)
        elif len(failed) == len(samples.plan):  # an empty batch would leave other ranks waiting
            failures += self._replace(samples, [0])
            self._valid[0] = False  # counts as fill: a single rank would have dropped it
        return [failure for failure in failures if failure.position not in filling]

    def _replace(self, samples: Samples, rows: list[int]) -> list[Failure]:
        """Draw other samples for `rows` until none fails. Return the failures on the way."""
        failures: list[Failure] = []
        for attempt in range(1, ATTEMPTS + 1):
            left = [row for row in rows if row in samples.plan.reasons]
            if not left:
                return failures
            with self._contexts.one() as context:
                samples.replace(context, self._contexts.stages, np.array(left), attempt)
            failures += samples.failures(left)
        if any(row in samples.plan.reasons for row in rows):
            last = failures[-1] if failures else "no other image has the size of this batch"
            raise DecodeError(f"{last}; the {ATTEMPTS} samples drawn for its place failed too")
        return failures


def name_of(epoch: int, batch: int) -> str:
    """The name of a batch in notes on errors."""
    return f"batch {batch} of epoch {epoch}"


def mapped(parts: LoaderParts, batch: Batch, epoch: int, number: int) -> Batch:
    """Batch `number` of an epoch as `output` asks for it, given to the user's `map_batch`, if there is one."""
    function, epochs = parts.spec.options.map_batch, parts.epochs
    if parts.spec.options.output == "numpy":
        batch = each_tensor(batch, torch.Tensor.numpy)  # the arrays share the tensors' memory
    if function is None:
        return batch
    position = int(epochs.drawn_at(epochs.schedule.positions(number)[0][:1])[0])
    arguments: dict[str, Callable[[], Any]] = {
        "rng": lambda: generator(epochs.seed, epoch, position, name="batch"),
        "epoch": lambda: epoch,
        "position": lambda: position,
    }
    with noted(f"in map_batch: {name_of(epoch, number)}"):
        result: Batch = function(batch, **{name: arguments[name]() for name in _parameters(function, [*arguments])})
        return result


def _parameters(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Those of `names` that are parameters of a user's function, after its first one and not bound by `partial`."""
    try:
        _, *others = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature, or without a parameter
        return []
    named = {each.name for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    bound = function.keywords if isinstance(function, partial) else {}
    return [name for name in names if name in named and name not in bound]


def _error(failures: list[Failure], of: int) -> DecodeError:
    if len(failures) == of > 1:
        return DecodeError(f"{failures[0]} (every sample of this batch failed)")
    more = f" (and {len(failures) - 1} more of this batch)" if len(failures) > 1 else ""
    return DecodeError(f"{failures[0]}{more}")
