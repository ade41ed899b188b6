"""How fast CPU and device decode here: the first batches of an epoch, made once by each and thrown away."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import torch

from iofast.gpu import Bus, Direct, Transfer
from iofast.loader.batches import BatchJob, Slice
from iofast.loader.divided import Divided
from iofast.loader.plan import LoaderPlan
from iofast.loader.prefetch import Prefetch
from iofast.loader.samples import Samples
from iofast.loader.split import WHOLE, Rates
from iofast.loader.tally import Contexts
from iofast.telemetry import Stages

BATCHES = 3  # looked at, at least; one before them fills caches and makes contexts, and is not timed
ROUNDS = 2  # slices for each thread, at least: where many stand idle, the others run faster


def measure(plan: LoaderPlan, epoch: int, batch: int) -> Rates:
    """Rates of the batches from `batch` on. Samples that cannot be decoded count as if they were.

    Raises `OptionError` where the device has no decoder that works.
    """
    way = plan.way
    if way is None:
        raise RuntimeError("measured for a device that is none")
    contexts, slices = Contexts(plan.decode, Stages()), plan.limits.slices
    wanted = 1 + max(BATCHES, -(-ROUNDS * _workers(plan) // slices))
    batches = range(batch, min(batch + wanted, plan.schedule.count))
    cpu, _ = _made(plan, contexts, WHOLE, epoch, batches)
    parts, samples = _made(plan, contexts, 0, epoch, batches)
    way.begin()
    device = way.issue(partial(_decoded, plan, [made.canvas for made in samples])).value
    return Rates(cpu, parts, device)


def _workers(plan: LoaderPlan) -> int:
    """Threads that find something to do in the batches that are in the making at a time."""
    return min(plan.limits.max_workers, plan.limits.max_depth * plan.limits.slices)


class _Job(BatchJob):
    """A batch up to where its images are pixels, or parts."""

    def finish(self) -> Samples:  # type: ignore[override]
        samples = self._samples
        del self._samples
        return samples


def _made(plan: LoaderPlan, contexts: Contexts, share: int, epoch: int, batches: range) -> tuple[float, list[Samples]]:
    """Images per second where every thread has work all the time, and what was made for the device.

    By the time for which threads were at work, not by the clock between two results: sixteen threads have the slices of
    two batches at once, so that both come together, and three batches would seem to take as long as two.
    """
    first, _ = _run(plan, contexts, share, epoch, batches[:1])
    samples, rate = _run(plan, contexts, share, epoch, batches[1:] or batches)
    return rate, [*first, *samples]


def _run(plan: LoaderPlan, contexts: Contexts, share: int, epoch: int, batches: range) -> tuple[list[Samples], float]:
    """What was made for the device, and images per second. No more batches are there at a time than in training."""
    made: Prefetch[Samples, Slice] = Prefetch(
        lambda batch: _Job(plan, contexts, epoch, batch, share),  # type: ignore[arg-type, return-value]
        batches.stop,
        num_workers=min(_workers(plan), len(batches) * plan.limits.slices),
        depth=min(plan.limits.max_depth, len(batches)),
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


def _decoded(plan: LoaderPlan, canvases: list[object], bus: Bus) -> float:
    """Images per second of the device: decoded, cropped and resampled, a batch after the other."""
    decoder = plan.decoding.decoder()
    divided = [canvas for canvas in canvases if isinstance(canvas, Divided)]
    divided[0].decode_there(decoder)  # compiles kernels, allocates
    begun, count = perf_counter(), 0
    for canvas in divided[1:] or divided:
        canvas.decode_there(decoder)
        count += canvas.there
    _wait(plan.way, bus.device)
    return max(count, 1) / max(perf_counter() - begun, 1e-9)


def _wait(way: Transfer | Direct | None, device: torch.device) -> None:
    if isinstance(way, Transfer) and device.type == "cuda":
        torch.cuda.current_stream().synchronize()
