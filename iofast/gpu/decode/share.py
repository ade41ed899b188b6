"""How a batch is divided between CPU and device: which positions, how many, and whether it pays. No clock, no torch.

Rates are in images per second: `cpu` of all decoding threads, `parts` of the same threads preparing JPEGs for the
device, `device` of the device.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iofast.errors import OptionError, shown

WHOLE = 1000  # shares are whole thousandths, so that a state stores them exactly
WORTH = 1.15  # "auto" splits a batch only if that is so much faster than CPU or device alone
_LEAST = 1.05  # and uses the device alone only if that is so much faster than the CPU


@dataclass(frozen=True)
class Split:
    """`decode="split"` with chosen numbers.

    cpu    share of each batch that the CPU decodes, 0 to 1; None = measured before the first batch, so that CPU and
           device finish together
    cores  share of this rank's cores that num_workers="auto" may use for decoding, above 0, up to 1; the training loop
           needs the others to keep the device busy
    """

    cpu: float | None = None
    cores: float = 0.75

    def __post_init__(self) -> None:
        if self.cpu is not None:
            _require_share("cpu", self.cpu, 0.0, "0 to 1")
        _require_share("cores", self.cores, 1e-9, "above 0, up to 1")

    @property
    def share(self) -> int | None:
        """`cpu` in thousandths."""
        return None if self.cpu is None else round(self.cpu * WHOLE)


def _require_share(name: str, value: object, least: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not least <= value <= 1:  # type: ignore[operator]
        raise OptionError(f"{name} of a Split must be a share, {expected}, found {shown(value)}")


class Rates(NamedTuple):
    """Images per second."""

    cpu: float
    parts: float
    device: float


def on_cpu(places: NDArray[np.int64], share: int) -> NDArray[np.bool_]:
    """Return which places in a global batch the CPU decodes: `share` thousandths, evenly spread."""
    mask: NDArray[np.bool_] = (places + 1) * share // WHOLE != places * share // WHOLE
    return mask


def balanced(rates: Rates) -> int:
    """Return the CPU's share with which CPU and device finish together, or 0 or `WHOLE` where that is faster.

    The threads prepare the device's JPEGs beside their own images; for small images that costs as much as decoding.
    """
    saved = 1 / rates.cpu - 1 / rates.parts  # seconds of CPU time per image that the device decodes
    device = (1 / rates.cpu) / max(1 / rates.device + saved, 1e-12)
    together = round(WHOLE * min(max(1 - device, 0.0), 1.0))
    return max((together, 0, WHOLE), key=lambda share: speed(rates, share))


def speed(rates: Rates, share: int) -> float:
    """Return images per second if the CPU decodes `share` thousandths: the slower side counts."""
    cpu = share / WHOLE
    return 1 / max((1 - cpu) / rates.device, cpu / rates.cpu + (1 - cpu) / rates.parts)


def chosen(rates: Rates) -> int:
    """Return the share for "auto": the balanced one if it pays, else all on CPU or device."""
    split, alone = balanced(rates), max(speed(rates, 0), speed(rates, WHOLE))
    if speed(rates, split) >= WORTH * alone:
        return split
    return 0 if speed(rates, 0) >= _LEAST * speed(rates, WHOLE) else WHOLE


def explained(rates: Rates, share: int) -> str:
    """Return the choice and the rates behind it in one line."""
    figures = f"CPU {rates.cpu:,.0f}/s, device {speed(rates, 0):,.0f}/s"
    if 0 < share < WHOLE:
        return f"{share / WHOLE:.1%} on the CPU, the rest on the device: {figures}, both {speed(rates, share):,.0f}/s"
    split = f"both at most {speed(rates, balanced(rates)):,.0f}/s"
    return f"on the {'CPU' if share else 'device'}: {figures}, {split}"
