"""One batch, from positions to tensors: the work that a loader's threads do. And how fast CPU and device do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic_ns, perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from iofast.choices import generator
from iofast.errors import DecodeError
from iofast.gpu import Bus, Direct, Transfer
from iofast.gpu.decode import WHOLE, Divided, Rates
from iofast.loader.assemble import Batch, assemble
from iofast.loader.loader_stats import Contexts, Failure, noted
from iofast.loader.mapping import asked_for
from iofast.loader.samples import LoaderParts, Samples
from iofast.meter import Stages
from iofast.prefetch import Limits, Prefetch, PrefetchJob
from iofast.work import Work

BATCHES = 3  # looked at, at least; one before them fills caches and makes contexts, and is not timed
ROUNDS = 2  # slices for each thread, at least: where many stand idle, the others run faster
ATTEMPTS = 32  # replacements of one sample: where half of all are broken, one position in four billion uses them up

SYSTEMATIC = 8  # of so many all fail only where the data is not there, and drawing others would hide it


class MadeBatch(NamedTuple):
    """A finished batch; `valid` (bool, (N,)) is False where a sample only fills up. `work` is what its pixels are still
    to have done on their device. Where that is to decode images too, `rest` makes the batch there, and there is none
    before."""

    batch: Batch
    valid: NDArray[np.bool_]
    failures: list[Failure]
    work: Work | None
    rest: Callable[[Bus], MadeBatch] | None = None
    decoded: bool = False  # images are on the device already


class Slice(NamedTuple):
    """Rows [start, stop) of a batch: what a thread does in one go."""

    start: int
    stop: int


class BatchJob(PrefetchJob[MadeBatch, Slice]):
    """One batch, from positions to tensors."""

    def __init__(
        self, parts: LoaderParts, contexts: Contexts, epoch: int, batch: int, share: int | None = None
    ) -> None:
        self._parts, self._contexts, self._epoch, self._batch = parts, contexts, epoch, batch
        self._share = share  # thousandths that the CPU decodes, if not the loader's

    def prepare(self) -> list[Slice]:
        positions, self._valid = self._parts.epochs.batch(self._epoch, self._batch)
        self._samples = Samples(self._parts, self._epoch, positions, share=self._share)
        rows, step = len(positions), self._parts.resources.slice
        return [Slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def run(self, number: int, part: Slice) -> None:
        self._samples.make(self._contexts.context(number), self._contexts.stages, *part)

    def finish(self) -> MadeBatch:
        samples = self._samples
        del self._samples  # the batch may wait for long, and its bytes are wanted for the next
        if isinstance(samples.canvas, Divided):
            return MadeBatch(((), ()), self._valid, [], None, partial(self._on_device, samples, samples.canvas))
        return self._completed(samples)

    def _on_device(self, samples: Samples, canvas: Divided, bus: Bus) -> MadeBatch:
        """The rest of a batch that is decoded on its device, in the thread that works for it."""
        begun = monotonic_ns()
        failed = canvas.decode_there(self._parts.resources.decoding.decoder())
        self._contexts.on_device += canvas.there
        self._contexts.stages.decode.add(0, work_ns=monotonic_ns() - begun)
        if failed:
            with self._contexts.spare() as context:
                samples.decode_rest(context, failed)
        return self._completed(samples, bus)

    def _completed(self, samples: Samples, bus: Bus | None = None) -> MadeBatch:
        valid, rows = self._valid, None
        failures: list[Failure] = []
        if samples.reasons:
            failures = self._settle(samples)
            if samples.reasons:  # to be left out
                rows = np.array([row for row in range(len(samples)) if row not in samples.reasons], np.intp)
                valid = valid[rows]
        if bus is not None and isinstance(samples.canvas, Divided):
            samples.canvas.gather(bus)
        batch, work = assemble(samples, rows, valid, name_of(self._epoch, self._batch))
        if self._parts.resources.way is None:
            batch = mapped(self._parts, batch, self._epoch, self._batch)
        return MadeBatch(batch, valid, failures, work, decoded=bus is not None)

    def _settle(self, samples: Samples) -> list[Failure]:
        """Raise, or draw other samples, or leave in `reasons` which rows are to be left out. What failed, but filling:
        that is another rank's, which counts it."""
        failures, action = samples.failures(), self._parts.spec.options.on_error
        if action == "raise" or len(failures) == len(samples) >= SYSTEMATIC:
            raise _error(failures, len(samples))
        filling = set(samples.positions[~self._valid].tolist())
        if action == "replace":
            failures += self._replace(samples, sorted(samples.reasons))
        elif len(samples.reasons) == len(samples):  # no batch is empty: other ranks wait for this one's
            failures += self._replace(samples, [0])
            self._valid[0] = False  # it only fills up: one rank with the whole global batch would do without
        return [failure for failure in failures if failure.position not in filling]

    def _replace(self, samples: Samples, rows: list[int]) -> list[Failure]:
        """Draw other samples for `rows` until none fails; the failures on the way."""
        failures: list[Failure] = []
        for attempt in range(1, ATTEMPTS + 1):
            left = np.array([row for row in rows if row in samples.reasons], np.intp)
            if not len(left):
                return failures
            others = Samples(self._parts, self._epoch, samples.positions[left], attempt, samples)
            with self._contexts.spare() as context:
                others.make(context, self._contexts.stages, 0, len(others))
            failures += others.failures()
            good = np.array([row for row in range(len(left)) if row not in others.reasons], np.intp)
            samples.take(left[good], others, good)
        if any(row in samples.reasons for row in rows):
            last = failures[-1] if failures else "no other image has the size of this batch"
            raise DecodeError(f"{last}; the {ATTEMPTS} samples drawn for its place failed too")
        return failures


def name_of(epoch: int, batch: int) -> str:
    """What notes on errors call a batch."""
    return f"batch {batch} of epoch {epoch}"


def mapped(parts: LoaderParts, batch: Batch, epoch: int, number: int) -> Batch:
    """What the user's `map_batch` makes of batch `number` of an epoch."""
    function, epochs = parts.spec.options.map_batch, parts.epochs
    if function is None:
        return batch
    position = int(epochs.drawn_at(epochs.schedule.positions(number)[0][:1])[0])
    about: dict[str, Callable[[], Any]] = {
        "rng": lambda: generator(epochs.seed, epoch, position, name="batch"),
        "epoch": lambda: epoch,
        "position": lambda: position,
    }
    with noted(f"in map_batch: {name_of(epoch, number)}"):
        made: Batch = function(batch, **{name: about[name]() for name in asked_for(function, [*about])})
        return made


def _error(failures: list[Failure], of: int) -> DecodeError:
    all_of_them = " (every sample of this batch failed)" if len(failures) == of > 1 else ""
    more = f" (and {len(failures) - 1} more of this batch)" if len(failures) > 1 else ""
    return DecodeError(f"{failures[0]}{all_of_them or more}")


def measure(parts: LoaderParts, epoch: int, batch: int) -> Rates:
    """Rates of the batches from `batch` on. Samples that cannot be decoded count as if they were.

    Raises `OptionError` where the device has no decoder that works.
    """
    way, limits = parts.resources.way, parts.resources.limits
    if way is None:
        raise RuntimeError("measured for a device that is none")
    contexts, slices = Contexts(parts.spec.decode, Stages()), limits.slices
    wanted = 1 + max(BATCHES, -(-ROUNDS * _workers(limits) // slices))
    batches = range(batch, min(batch + wanted, parts.epochs.schedule.count))
    cpu, _ = _made(parts, contexts, WHOLE, epoch, batches)
    taken_apart, samples = _made(parts, contexts, 0, epoch, batches)
    way.begin()
    device = way.issue(partial(_decoded, parts, [made.canvas for made in samples])).value
    return Rates(cpu, taken_apart, device)


def _workers(limits: Limits) -> int:
    """Threads that find something to do in the batches that are in the making at a time."""
    return min(limits.max_workers, limits.max_depth * limits.slices)


class _Job(BatchJob):
    """A batch up to where its images are pixels, or parts."""

    def finish(self) -> Samples:  # type: ignore[override]
        samples = self._samples
        del self._samples
        return samples


def _made(
    parts: LoaderParts, contexts: Contexts, share: int, epoch: int, batches: range
) -> tuple[float, list[Samples]]:
    """Images per second where every thread has work all the time, and what was made for the device.

    By the time for which threads were at work, not by the clock between two results: sixteen threads have the slices of
    two batches at once, so that both come together, and three batches would seem to take as long as two.
    """
    first, _ = _run(parts, contexts, share, epoch, batches[:1])
    samples, rate = _run(parts, contexts, share, epoch, batches[1:] or batches)
    return rate, [*first, *samples]


def _run(parts: LoaderParts, contexts: Contexts, share: int, epoch: int, batches: range) -> tuple[list[Samples], float]:
    """What was made for the device, and images per second. No more batches are there at a time than in training."""
    limits = parts.resources.limits
    made: Prefetch[Samples, Slice] = Prefetch(
        lambda batch: _Job(parts, contexts, epoch, batch, share),  # type: ignore[arg-type, return-value]
        batches.stop,
        num_workers=min(_workers(limits), len(batches) * limits.slices),
        depth=min(limits.max_depth, len(batches)),
        start=batches.start,
    )
    kept, images = list[Samples](), 0
    try:
        for samples in made:
            images += len(samples)
            if share != WHOLE:
                kept.append(samples)
        work_s = made.times().work_s
    finally:
        made.close()
    return kept, images * max(1, made.num_workers) / max(work_s, 1e-9)


def _decoded(parts: LoaderParts, canvases: list[object], bus: Bus) -> float:
    """Images per second of the device: decoded, cropped and resampled, a batch after the other."""
    decoder = parts.resources.decoding.decoder()
    divided = [canvas for canvas in canvases if isinstance(canvas, Divided)]
    divided[0].decode_there(decoder)  # compiles kernels, allocates
    begun, count = perf_counter(), 0
    for canvas in divided[1:] or divided:
        canvas.decode_there(decoder)
        count += canvas.there
    _wait(parts.resources.way, bus.device)
    return max(count, 1) / max(perf_counter() - begun, 1e-9)


def _wait(way: Transfer | Direct | None, device: torch.device) -> None:
    if isinstance(way, Transfer) and device.type == "cuda":
        torch.cuda.current_stream().synchronize()
