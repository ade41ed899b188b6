"""How a batch is divided between CPU and device: which positions, how many, and what is worth it. No clock, no torch.

Rates are in images per second: `cpu` of all decoding threads, `parts` of the same threads taking parts of JPEGs for the
device, `device` of the device.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError, shown

WHOLE = 1000  # shares are whole numbers of it, so that a state holds them exactly
WORTH = 1.15  # a split is chosen where it is so much faster than one of the two alone: it is the most that can go wrong
_LEAST = 1.05  # and the device alone where it is so much faster than the CPU


@dataclass(frozen=True)
class Split:
    """`decode="split"` with numbers of one's own.

    cpu    share of each batch that the CPU decodes, 0 to 1; None = measured before the first batch, so that CPU and
           device finish together
    cores  share of this rank's cores that decoding may take, above 0 up to 1: with num_workers="auto" there are no more
           threads. The training loop needs some to keep the device busy
    """

    cpu: float | None = None
    cores: float = 0.75

    def __post_init__(self) -> None:
        for name, value, low in (("cpu", self.cpu, 0.0), ("cores", self.cores, 1e-9)):
            if value is None and name == "cpu":
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= value <= 1:
                above = "0 to 1" if name == "cpu" else "above 0, up to 1"
                raise OptionError(f"{name} of a Split must be a share, {above}, found {shown(value)}")

    @property
    def share(self) -> int | None:
        """`cpu` in thousandths."""
        return None if self.cpu is None else round(self.cpu * WHOLE)


class Rates(NamedTuple):
    """Images per second."""

    cpu: float
    parts: float
    device: float


def on_cpu(places: NDArray[np.int64], share: int) -> NDArray[np.bool_]:
    """Which places in a global batch the CPU decodes: `share` thousandths, evenly spread; nothing else counts."""
    mask: NDArray[np.bool_] = (places + 1) * share // WHOLE != places * share // WHOLE
    return mask


def balanced(rates: Rates) -> int:
    """The CPU's share with which both finish together: the threads make the device's parts beside their own images.

    All or nothing where that is faster: to make the parts of small images takes as long as to decode them.
    """
    spared = 1 / rates.cpu - 1 / rates.parts
    device = (1 / rates.cpu) / max(1 / rates.device + spared, 1e-12)
    together = round(WHOLE * min(max(1 - device, 0.0), 1.0))
    return max((together, 0, WHOLE), key=lambda share: speed(rates, share))


def speed(rates: Rates, share: int) -> float:
    """Images per second where the CPU decodes `share` of them: the slower one's time counts."""
    cpu = share / WHOLE
    return 1 / max((1 - cpu) / rates.device, cpu / rates.cpu + (1 - cpu) / rates.parts)


def chosen(rates: Rates) -> int:
    """The share that "auto" takes: all on the CPU or on the device, or the balanced one where it is worth it."""
    alone, split = max(speed(rates, 0), speed(rates, WHOLE)), balanced(rates)
    if speed(rates, split) >= WORTH * alone:
        return split
    return 0 if speed(rates, 0) >= _LEAST * speed(rates, WHOLE) else WHOLE


def explained(rates: Rates, share: int) -> str:
    """What was measured, and what follows from it, in a line."""
    figures = f"CPU {rates.cpu:,.0f}/s, device {speed(rates, 0):,.0f}/s"
    if 0 < share < WHOLE:
        return f"{share / WHOLE:.1%} on the CPU, the rest on the device: {figures}, both {speed(rates, share):,.0f}/s"
    split = f"both at most {speed(rates, balanced(rates)):,.0f}/s"
    return f"on the {'CPU' if share else 'device'}: {figures}, {split}"
