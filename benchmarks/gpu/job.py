"""The surroundings of a part: its data, its device, its time, and its log.

    python -m benchmarks.gpu.job PART --data FOLDER --log FILE

Figures and what could not be measured are written line by line, so that an interrupted part loses nothing.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.beside import Beside
from iofast.machine import cores_of_rank

ONE_LINE = 300  # characters of a reason
DONE = "everything.made"  # a file that marks the data of all parts as complete


@dataclass(frozen=True)
class Figure:
    """One number; `least` and `most` are its goals, if any."""

    name: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goals are met; None without one."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def asked(self) -> str:
        """The goals in words."""
        words = [("at least", self.least), ("at most", self.most)]
        return ", ".join(f"{word} {written(value, self.unit)}" for word, value in words if value is not None)


@dataclass(frozen=True)
class Lack:
    """Something that could not be measured, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """The result of a part; `ended`: how it ended, if not by itself."""

    figures: tuple[Figure, ...] = ()
    lacks: tuple[Lack, ...] = ()
    seconds: float = 0.0
    ended: str = ""


def written(value: float, unit: str) -> str:
    """A number with its unit: shares as per cent, large numbers whole, small ones with three digits."""
    if unit == "%":
        return f"{value:.2%}"
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits}{unit}" if unit == "×" else f"{digits} {unit}".rstrip()


def append(path: Path, record: Figure | Lack) -> None:
    """Append a record to the file of a part; it survives whatever happens afterwards."""
    with path.open("a") as file:
        file.write(json.dumps({type(record).__name__: asdict(record)}) + "\n")


def read(path: Path) -> tuple[tuple[Figure, ...], tuple[Lack, ...]]:
    """The records of a part, without a last line that was cut off."""
    figures: list[Figure] = []
    lacks: list[Lack] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            said: dict[str, dict[str, Any]] = json.loads(line)
        except ValueError:
            continue
        if "Figure" in said:
            figures.append(Figure(**said["Figure"]))
        else:
            lacks.append(Lack(**said["Lack"]))
    return tuple(figures), tuple(lacks)


@dataclass(frozen=True)
class Job:
    """`data` has the files of data.py, made of `photos`; figures go to `log`. `quick`: a trial: they mean nothing."""

    data: Path
    log: Path
    device: torch.device
    seconds: float
    quick: bool = False
    photos: Path | None = None
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


def main() -> int:
    parser = argparse.ArgumentParser(description="One part of bench_gpu.py, in this process.")
    parser.add_argument("part")
    parser.add_argument("--data", type=Path, required=True, help="folder of what the parts work on")
    parser.add_argument("--log", type=Path, required=True, help="file that figures are added to")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--seconds", type=float, default=60.0, help="what it may take")
    parser.add_argument("--photos", type=Path, help="photographs, for the part `data`")
    parser.add_argument("--quick", action="store_true")
    asked = vars(parser.parse_args())
    part = asked.pop("part")
    job = Job(**asked)
    try:
        importlib.import_module(f"benchmarks.gpu.{part}").run(job)
    except Exception as error:
        traceback.print_exc()
        job.lacks(f"{part}, from some point on", reason(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
