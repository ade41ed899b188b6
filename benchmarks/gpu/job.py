"""The surroundings of a part: its data, its device, its time, and its log."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.record import Figure, Lack, append
from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.beside import Beside
from iofast.machine import cores_of_rank

ONE_LINE = 300  # characters of a reason


@dataclass(frozen=True)
class Job:
    """`data` has the files of data.py; figures go to `log`. `quick`: a trial, whose figures mean nothing."""

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
        """Threads that decode."""
        return cores_of_rank()

    @property
    def batch(self) -> int:
        """Images of a batch, unless a part tries several sizes."""
        return 8 if self.quick else 256

    @property
    def size(self) -> int:
        """Pixels of a side of a finished image."""
        return 64 if self.quick else 224

    def left(self) -> float:
        """Seconds that the part may still take."""
        return self.seconds - (time.monotonic() - self.began)

    def dataset(self, name: str, images: int) -> FastDataset:
        """`images` samples of one of the sets, which repeat: an epoch is as long as a run needs."""
        there = len(FastDataset(self.data / name))
        return FastDataset(self.data / name, indices=np.arange(images) % there)

    def loader(self, name: str, images: int, batch: int | None = None, **options: Any) -> FastLoader:
        """A shuffled loader of whole batches on the device; see `dataset`."""
        options = {"shuffle": True, "drop_last": True, "device": self.device, **options}
        return FastLoader(self.dataset(name, images), batch or self.batch, **options)

    def training_loader(self, name: str, images: int, **options: Any) -> FastLoader:
        """Finished batches for a network in bfloat16, channels last."""
        options = {"dtype": torch.bfloat16, "memory_format": torch.channels_last, **options}
        return self.loader(name, images, transform=T.train(self.size), **options)

    def stall_figures(self, name: str, found: Beside, most: float | None) -> None:
        """Write down the stalls of a loop, of which at most `most` is asked."""
        self.figure(f"{name}: exposed stall, by iofast's clock", found.stall, "%", most=most)
        self.figure(f"{name}: exposed stall, beside a batch that stays", found.exposed, "%", most=most)

    def figure(
        self, name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None
    ) -> None:
        """Write down a figure. Its limits count for a GPU and a whole run only."""
        asks = self.cuda and not self.quick
        append(self.log, Figure(name, float(value), unit, least if asks else None, most if asks else None))

    def lacks(self, what: str, why: str) -> None:
        """Write down that something could not be measured."""
        append(self.log, Lack(what, one_line(why)))

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        """Call `run` if time is left. If it fails, note the reason; the part continues."""
        if self.left() <= 0:
            self.lacks(what, "the part's time was used up")
            return
        try:
            run()
        except Exception as error:  # of any library, driver or device
            traceback.print_exc()
            self.lacks(what, reason(error))


def reason(error: BaseException) -> str:
    """An exception's kind and message."""
    message = str(error).strip()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def one_line(text: str) -> str:
    """The first line that is not empty, without characters that break a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "")[:ONE_LINE].replace("|", "/")
