"""A step of training beside a loader: how much longer it takes than with a batch that stays on the device."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from iofast.meter import MeterStats, watch

Step = Callable[[Any], None]

WARM = 10  # steps before those that are measured
_TRIED_S = 0.2  # matrix products are repeated for as long, to learn how long one takes


@dataclass(frozen=True, slots=True)
class Beside:
    """Steps with one batch that stays, and the same steps with a loader's batches.

    step_s    seconds of a step with the batch that stays
    beside_s  seconds of a step with the loader's batches, waiting included
    stall     share of `beside_s` in which the device waited for a batch, by its own clock
    images    images a second with the loader
    """

    step_s: float
    beside_s: float
    stall: float
    images: float

    @property
    def exposed(self) -> float:
        """Share of the loop's time that the loader costs, waiting or not; below 0 by noise alone."""
        return 1 - self.step_s / self.beside_s

    @property
    def interference(self) -> float:
        """How much longer a step takes, its wait aside, because the loader uses processors, device and bus."""
        return self.beside_s * (1 - self.stall) / self.step_s - 1


def beside(loader: Iterable[Any], step: Step, steps: int, device: str | torch.device, warm: int = WARM) -> Beside:
    """Measure `steps` steps; those with the batch that stays are run before and after."""
    pass_ = iter(loader)
    held = next(pass_)
    _leave(pass_)
    before = _seconds(device, itertools.repeat(held), step, steps, warm)
    batches = iter(meter := watch(loader, device=str(device)))
    for _ in range(warm):
        step(next(batches))
    wait(device)
    begun = meter.stats
    loop = _seconds(device, batches, step, steps, 0)
    ended = meter.stats
    _leave(batches)
    after = _seconds(device, itertools.repeat(held), step, steps, warm)
    return Beside((before + after) / 2 / steps, loop / steps, window(begun, ended), len(held[0]) * steps / loop)


def tuned(device: str | torch.device, seconds: float) -> Step:
    """A step of about `seconds` on the device: matrix products, and each image of the batch read once."""
    side, dtype = (4096, torch.bfloat16) if torch.device(device).type == "cuda" else (128, torch.float32)
    one, two = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out, sink = torch.empty_like(one), torch.zeros((), device=device)

    def product(_: Any) -> None:
        torch.mm(one, two, out=out)

    tries = max(1, round(_TRIED_S / max(_seconds(device, itertools.repeat(None), product, 1, 1), 1e-9)))
    times = repeats(seconds, _seconds(device, itertools.repeat(None), product, tries, 0) / tries)

    def step(batch: Any) -> None:
        sink.add_(batch[0].sum(dtype=torch.float32))
        for _ in range(times):
            product(batch)

    return step


def repeats(seconds: float, one: float) -> int:
    """How often something that takes `one` second each has to be done."""
    return max(1, round(seconds / max(one, 1e-9)))


def window(begun: MeterStats, ended: MeterStats) -> float:
    """The stall between two readings of one meter."""
    times = [(each.step_mean_s or 0.0) * each.steps for each in (begun, ended)]
    waits = [each.stall.high * each_time for each, each_time in zip((begun, ended), times, strict=True)]
    if times[1] <= times[0]:
        raise RuntimeError(f"the meter saw no step: {begun.steps} before, {ended.steps} after")
    return (waits[1] - waits[0]) / (times[1] - times[0])


def wait(device: str | torch.device) -> None:
    """Wait until the device has done all its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(device: str | torch.device, batches: Iterator[Any], step: Step, steps: int, warm: int) -> float:
    for _ in range(warm):
        step(next(batches))
    wait(device)
    begun = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    wait(device)
    return time.perf_counter() - begun


def _leave(batches: Iterator[Any]) -> None:
    """End a pass that is not at its end."""
    getattr(batches, "close", lambda: None)()
