"""What a part is given: its data, its device, its time, and where it writes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.record import Figure, Lack, append
from iofast import FastDataset
from iofast.machine import cores_of_rank

ONE_LINE = 300  # characters of a reason


@dataclass(frozen=True)
class Job:
    """`data` has what data.py makes; figures go to `log`. `quick`: a run that shows that the program works, no more."""

    data: Path
    log: Path
    device: torch.device
    seconds: float
    quick: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def cuda(self) -> bool:
        """Whether figures are a GPU's."""
        return self.device.type == "cuda"

    @property
    def cores(self) -> int:
        """So many threads decode."""
        return cores_of_rank()

    @property
    def batch(self) -> int:
        """Images of a batch, where a part does not try several."""
        return 8 if self.quick else 256

    @property
    def size(self) -> int:
        """Pixels of a side of a finished image."""
        return 64 if self.quick else 224

    def left(self) -> float:
        """Seconds that the part may still take."""
        return self.seconds - (time.monotonic() - self.began)

    def dataset(self, name: str, images: int) -> FastDataset:
        """`images` samples of one of the sets, each as often as that takes: an epoch is as long as a run needs."""
        there = len(FastDataset(self.data / name))
        return FastDataset(self.data / name, indices=np.arange(images) % there)

    def figure(
        self, name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None
    ) -> None:
        """Write down a figure. What is asked is asked of a GPU, and of a whole run."""
        asks = self.cuda and not self.quick
        append(self.log, Figure(name, float(value), unit, least if asks else None, most if asks else None))

    def lacks(self, what: str, why: str) -> None:
        """Write down that something could not be measured."""
        append(self.log, Lack(what, one_line(why)))

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        """`run` may fail, and the part goes on. Where no time is left it is not begun."""
        try:
            if self.left() <= 0:
                raise LateError("the part's time was used up")
            run()
        except Exception as error:  # of any library, driver or device
            if not isinstance(error, LateError):
                traceback.print_exc()
            self.lacks(what, reason(error))


class LateError(Exception):
    """There is no time left for what was to be done."""


def reason(error: BaseException) -> str:
    """What an exception says."""
    said = str(error).strip()
    return said if isinstance(error, LateError) else f"{type(error).__name__}: {said}" if said else type(error).__name__


def one_line(text: str) -> str:
    """The first line that says something, without what would break a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "")[:ONE_LINE].replace("|", "/")
