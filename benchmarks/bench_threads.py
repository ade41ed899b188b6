"""Where does Python become the limit? FastLoader with 8 to 128 threads, simulated on any machine.

python -m benchmarks.bench_threads [--photos FOLDER] [--threads 8 16 32 64 128] [--ranks 1 8] [--rounds 3]
measures what the kernel needs for a training crop with one thread, then replaces its decoding by a sleep as long,
without the GIL: any number of threads "decode" at once, on two cores too, and what is left is the work of Python. A
rank is a process of its own, so one of `--ranks` runs at a time. What a machine of many cores shares besides (memory,
caches, power) is not simulated.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import measure, photographs
from benchmarks.bench_load import BATCH, CROP
from iofast import FastDataset, FastLoader
from iofast.kernel import native_batch

SECONDS = 3.0  # of a run


def loader(path: Path, threads: int, ranks: int) -> FastLoader:
    """A shuffled loader of crops for one of `ranks`."""
    options = {"num_workers": threads, "rank": 0, "world_size": ranks, "batch_size": BATCH, "shuffle": True}
    return FastLoader(FastDataset(path), transform=CROP, **options)


def batches(made: FastLoader) -> Iterator[torch.Tensor]:
    """Batches of one epoch after another."""
    while True:
        for images, _ in made:
            yield images


def run(path: Path, threads: int, ranks: int) -> tuple[float, float]:
    """Images a second of one rank, and processor time in microseconds per image."""
    made = batches(loader(path, threads, ranks))
    for _ in range(max(4, threads // 4)):
        next(made)  # the first ones wait for threads to start
    images, begun, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < SECONDS:
        images += len(next(made))
    return images / (time.perf_counter() - begun), 1e6 * (time.process_time() - cpu) / images


@contextmanager
def asleep(seconds: float) -> Iterator[None]:
    """Let the kernel sleep `seconds` for an image instead of decoding it; rows stay as they are, and count as good."""
    native = native_batch._native
    real: Callable[..., None] = native.decode_batch

    def sleep(*columns: object) -> None:
        first, last = columns[-4:-2]
        assert isinstance(first, int)
        assert isinstance(last, int)
        time.sleep(seconds * (last - first))

    native.decode_batch = sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        native.decode_batch = real  # type: ignore[assignment]


def main() -> None:
    given = measure.arguments(__doc__, images=20_000, threads=[8, 16, 32, 64, 128], ranks=[1, 8], rounds=3)
    with photographs.workplace(given.photos) as (folder, photos):
        source = photographs.link(photos, folder / "copies", given.images)
        packed = photographs.pack(source, folder / "packed.lmdb")
        one = statistics.median(run(packed, 1, 1)[0] for _ in range(given.rounds))
        rows = []
        with asleep(1 / one):
            for ranks in given.ranks:
                for threads in given.threads:
                    found = [run(packed, threads, ranks) for _ in range(given.rounds)]
                    rate, cpu = (statistics.median(each) for each in zip(*found, strict=True))
                    share = rate / (threads * one)
                    rows.append((f"{threads}, {ranks} ranks", f"{rate:,.0f}", f"{share:.2f}", f"{cpu:.1f}"))
                    print(rows[-1], file=sys.stderr)
    measure.publish("threads", page(one, rows), given.output)


def page(one: float, rows: list[tuple[str, ...]]) -> str:
    """The result as markdown."""
    header = ("threads of a rank", "images/s of a rank", "of threads × one thread's rate", "Python, µs an image")
    return f"""# Many cores, simulated: where Python becomes the limit

Batches of {BATCH} random crops. One thread makes {one:,.0f} images/s here with the real kernel. Then the kernel sleeps
that time for each image instead of decoding, and any number of threads work at once. Python alone is measured, which
holds one core of a rank at most; memory, caches and power of a real machine are not.

{measure.table(header, rows)}
"""


if __name__ == "__main__":
    main()
