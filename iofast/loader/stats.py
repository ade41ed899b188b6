"""What a loader has done so far, frozen: `FastLoader.stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iofast.stall import MeterStats
from iofast.telemetry import StageStats


@dataclass(frozen=True)
class LoaderStats:
    """Since the loader was made, over all epochs.

    images       decoded, whether their batch was returned or not
    ways         how many of them in which way; `kernel.Counts` says what the names mean
    decode       where JPEGs are decoded, and why there; "device" of `ways` counts those of the device
    changed      files of the dataset that were changed in place after it was indexed, as far as they were read since it
                 was opened: they are read as they are now
    errors       samples of the batches returned that could not be made, each attempt counted
    stages       read, decode (images: bytes, seconds of work), queue (batches: seconds that the consumer waited, how
                 full it was on average) and transfer to a GPU (batches: bytes, seconds of
                 copying, and seconds in which the training's stream waited for that, both by the GPU's clock)
    meter        the training loop's side: steps, and how long it waited; what `watch` measures
    num_workers  threads at work now, and how many batches they may be ahead
    depth
    cpu_share    share of this rank's cores that the threads computed on, 0 to 1; that of the device too, but not what
                 a library that decodes there has of its own
    """

    images: int
    ways: Mapping[str, int]
    decode: str
    changed: int
    errors: int
    stages: Mapping[str, StageStats]
    meter: MeterStats
    num_workers: int
    depth: int
    cpu_share: float

    def __str__(self) -> str:
        share = f"{self.images:,} images, {self.errors:,} errors, {self.num_workers} workers {self.depth} batches ahead"
        where = "" if self.decode == "on the CPU" else f", decoded {self.decode}"
        changed = f", {self.changed:,} changed files" if self.changed else ""
        return f"{share}{changed}, {self.cpu_share:.0%} of the cores{where}; {self.meter}"
