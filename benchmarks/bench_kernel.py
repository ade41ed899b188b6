"""How does the time of one image divide into stages, by transform, decoding path and instruction set?

python -m benchmarks.bench_kernel [--photos FOLDER] [--rounds 7]
times the kernel by its own clock, on one thread: read, check, scan, splice, entropy, transform, colour, libjpeg, axes,
resample (with the store into the batch). All rows run in turn, and the least of several passes counts.
"""

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks import measure
from benchmarks.photographs import link, pack
from iofast import FastDataset, kernel
from iofast import transforms as T
from iofast.bench import BUFFER, BenchOptions, FirstImages
from iofast.transforms import compile as compile_transform

IMAGES = 500
SIMD = {"avx512": ("avx512", "avx2", "scalar"), "avx2": ("avx2", "scalar"), "neon": ("neon", "scalar")}  # by machine

Times = dict[str, float]


def sample_of(path: Path, transform: list[T.Transform]) -> FirstImages:
    """All images of a container or folder."""
    return FirstImages(FastDataset(path), compile_transform(transform), IMAGES, BenchOptions())


class Row:
    """One row of a table: a sample and the context that decodes it."""

    def __init__(self, sample: FirstImages, decoder: str | None = None) -> None:
        self.sample = sample
        self.context = kernel.Context(sample.options, timed="all", decoder=decoder)
        self.out = np.empty((BUFFER, *sample.size, 3), np.uint8)
        self.counted = sample.all(self.context, self.out).nanoseconds
        self.least: Times = dict.fromkeys(kernel.STAGES, float("inf"))

    def run(self) -> None:
        """One pass over the sample; each stage's least microseconds per image are kept."""
        counted = self.sample.all(self.context, self.out).nanoseconds
        for name in kernel.STAGES:
            spent = (counted[name] - self.counted[name]) / 1e3 / self.sample.count
            self.least[name] = min(self.least[name], spent)
        self.counted = counted


def table(rows: dict[str, Row]) -> str:
    """Stages that took any time, as columns, with their sum."""
    least = {name: row.least for name, row in rows.items()}
    stages = [name for name in kernel.STAGES if any(times[name] for times in least.values())]
    lines = [
        [name, *(f"{times[stage]:.1f}" for stage in stages), f"{sum(times.values()):.1f}"]
        for name, times in least.items()
    ]
    return measure.table(("µs per image", *stages, "all"), lines)


def stages(photos: Path, folder: Path, passes: int, name: str) -> str:
    """Measure and describe the result as markdown."""
    source = link(photos, folder / "copies", IMAGES)
    packed = pack(source, folder / "256.lmdb")
    train: list[T.Transform] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    crops, evaluation = sample_of(packed, train), sample_of(packed, [T.Resize(256), T.CenterCrop(224)])
    mean = float(np.prod(crops.boxes[:, 2:4] - crops.boxes[:, 0:2], axis=1).mean())
    by_transform = {
        "256: RandomResizedCrop(224)": Row(crops),
        "256: Resize(256), CenterCrop(224)": Row(evaluation),
        "originals: RandomResizedCrop(224)": Row(sample_of(source, train)),
    }
    raw = sample_of(pack(source, folder / "rgb.lmdb", 256, "--format", "rgb"), train)
    by_transform["256, raw rgb: RandomResizedCrop(224)"] = Row(raw)
    decoders = {decoder: Row(crops, decoder) for decoder in ("segments", "splice", "libjpeg")}
    plain = pack(source, folder / "plain.lmdb", 256, "--restart", "none")
    decoders["rows (no markers)"] = Row(sample_of(plain, train))
    by_simd = {}
    for simd in SIMD.get(kernel.simd, ("scalar",)):
        with patch.dict(os.environ, IOFAST_SIMD=simd):
            by_simd[simd] = Row(crops, "segments")
    for _ in range(passes):
        for row in (*by_transform.values(), *decoders.values(), *by_simd.values()):
            row.run()
    return f"""# The kernel: microseconds per image by stage

One thread, 224 × 224 uint8 pixels out, checksums on, bilinear; each stage's least of {passes} passes over {IMAGES}
images, and their sum. The clock itself takes about 8 µs of it, most of them in `colour`: it is read for each row.
{name}, packed at quality 90 with restart markers; the short side is said. The mean training crop of the
256-pixel images has {mean:,.0f} pixels.

{table(by_transform)}

Ways to decode the training crops:

{table(decoders)}

Instruction sets:

{table(by_simd)}
"""


def main(bench: measure.Bench) -> None:
    with bench.workplace() as (folder, photos):
        text = stages(photos, folder, bench.rounds(7), bench.kind)
    bench.publish(text)


if __name__ == "__main__":
    measure.run(__doc__, {"kernel": main})
