"""The results of a meter, frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stall:
    """The exposed stall: the share of step time, `low` to `high` (0 to 1), in which the device waited for a batch.

    The tier "inside" is measured in the process. `low` equals `high` once a step is measured; before, they are bounds.
    """

    low: float
    high: float
    tier: Literal["inside"] = "inside"


@dataclass(frozen=True)
class StepPhase:
    """A named part of the step: mean seconds per batch, and their share of the mean step."""

    seconds: float
    share: float | None


@dataclass(frozen=True)
class MeterStats:
    """Everything since the meter was made. A step lasts from one batch handed over to the next.

    device        "cpu", or the CUDA device whose clock measured `stall`, `transfer`, the steps and the phases
    epochs        passes that have handed over a batch
    batches       batches handed over; the first batch of an epoch ends no step
    images        samples handed over; None if a batch's number of samples is unknown
    step_median_s seconds, of the last 1024 steps
    step_mean_s   seconds, of all steps
    host_wait     share of step time that the training thread spent in next(); beside a GPU this may cost nothing
    stall         the exposed stall; on a CPU the host wait
    transfer      share of step time that the device waited for the copy of a batch: a part of the stall
    epoch_start_s mean seconds from iter() to the first batch, and of the last next(), in which a DataLoader ends its
                  workers; not a part of `host_wait` or `stall`
    phases        by the name given to `step`
    queued        share of the loop's time that its thread was ready to run and had no processor, by Linux's count: so
                  much longer are its steps because threads of the loader, or other programs, had the processors
    """

    device: str
    epochs: int
    batches: int
    steps: int
    images: int | None
    step_median_s: float | None
    step_mean_s: float | None
    host_wait: float | None
    stall: Stall
    transfer: float | None
    epoch_start_s: float | None
    phases: Mapping[str, StepPhase]
    queued: float | None = None

    @property
    def images_per_s(self) -> float | None:
        """Images per second of the steps; None before the first step, or if `images` is unknown."""
        return self.images / self.batches / self.step_mean_s if self.images and self.step_mean_s else None

    def __str__(self) -> str:
        if self.step_mean_s is None or self.step_median_s is None or self.host_wait is None:
            return f"{self.batches} batches, no step yet"
        parts = [f"{self.steps} steps of {1e3 * self.step_mean_s:.3g} ms (median {1e3 * self.step_median_s:.3g})"]
        if self.images_per_s is not None:
            parts.append(f"{self.images_per_s:.0f} images/s")
        if self.device == "cpu":
            parts.append(f"host wait {self.host_wait:.1%}")
        else:
            parts.append(f"stall {self.stall.high:.1%} on {self.device} (host wait {self.host_wait:.1%})")
        if self.queued:
            parts.append(f"queued {self.queued:.1%}")
        if self.transfer:
            parts.append(f"transfer {self.transfer:.1%}")
        if self.epoch_start_s is not None:
            parts.append(f"epoch start {self.epoch_start_s:.2f} s")
        for name, phase in self.phases.items():
            parts.append(
                f"{name} {1e3 * phase.seconds:.3g} ms" + ("" if phase.share is None else f" ({phase.share:.1%})")
            )
        return "; ".join(parts)
