"""How fast a dataset loads on this machine: time by stage of the kernel, images per second by number of workers.

All measurements use the same images and crops. Each round runs all of them in turn, so that a slow moment of the
machine affects all alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import iofast.dataset  # noqa: F401  first: without torch its error says what to install
from iofast import kernel
from iofast.beside import WARM, Beside, beside, tuned, wait
from iofast.boxes import SIZE, whole
from iofast.choices import Draw
from iofast.containers.base import Located
from iofast.containers.changed import refresh
from iofast.dataset import FastDataset
from iofast.errors import DecodeError, OptionError
from iofast.loader import FastLoader
from iofast.loader.spec import decode_options
from iofast.order import Population, Shuffled
from iofast.transforms import Pipeline, Transform
from iofast.transforms import compile as compile_transform

MAX_WORKERS = 256
PASSES = 3  # over the images, to time the stages
ROWS = 32  # images per slice, as in the loader
BUFFER = 8 * ROWS  # images in the output memory, as in a batch
STEPS_S = 2.0  # time for the steps beside the loader


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of `bench`.

    images   number of images, or all if there are fewer
    seconds  time for the rounds; there is at least one
    workers  numbers of threads to try
    device   where FastLoader puts its batches
    step_ms  length of the step that is run beside the loader; None for none
    """

    images: int = 2048
    seconds: float = 10.0
    batch_size: int = 256
    workers: tuple[int, ...] = (1,)
    pixels: Literal["exact", "fast"] = "exact"
    seed: int = 0
    device: str = "cpu"
    step_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("images", self.images), ("batch_size", self.batch_size)):
            if value < 1:
                raise OptionError(f"{name} must be 1 or more, found {value}")
        if not 0 < self.seconds < 86_400:
            raise OptionError(f"seconds must be more than 0 and less than a day, found {self.seconds}")
        if not self.workers or not all(1 <= workers <= MAX_WORKERS for workers in self.workers):
            raise OptionError(f"workers must be numbers of 1 to {MAX_WORKERS}, found {list(self.workers)}")
        if self.pixels not in ("exact", "fast"):
            raise OptionError(f"pixels must be exact or fast, found {self.pixels!r}")
        if self.step_ms is not None and not 0 < self.step_ms < 60_000:
            raise OptionError(f"step_ms must be more than 0 and less than a minute, found {self.step_ms}")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Results of `bench`.

    stages    microseconds per image on one thread, without the loader
    ways      images by the way they were decoded, without the loader
    loading   images per second through FastLoader, by number of workers
    decoding  images per second of libjpeg-turbo decoding them whole; 0 if it cannot
    beside    a step beside the loader with the most workers; None if none was asked for
    """

    images: int
    rounds: int
    stages: dict[str, float]
    ways: dict[str, int]
    loading: dict[int, float]
    decoding: dict[int, float]
    beside: Beside | None = None


def bench(dataset: FastDataset, transform: Sequence[Transform] | Pipeline, options: BenchOptions) -> BenchResult:
    """Measure. Raises the loader's errors, and `OptionError` for a transform without a fixed size."""
    pipeline = compile_transform(transform)
    if pipeline.size is None:
        raise OptionError("the transform must end in one size, such as T.RandomResizedCrop(224)")
    batches = -(-min(options.images, len(dataset)) // options.batch_size)
    images = min(batches * options.batch_size, len(dataset))  # whole batches, or all there are
    sample = FirstImages(dataset, pipeline, images, options)
    contenders: dict[tuple[str, int], Callable[[], float]] = {}
    for workers in options.workers:
        contenders["loading", workers] = _loading(dataset, pipeline, batches, workers, options)
        contenders["decoding", workers] = _decoding(sample, workers)
    figures = _in_turn(contenders, options.seconds)
    stages, ways = sample.stages()
    rates = {name: statistics.median(values) for name, values in figures.items()}
    return BenchResult(
        images=images,
        rounds=min(len(values) for values in figures.values()),
        stages=stages,
        ways=ways,
        loading={workers: rates["loading", workers] for workers in options.workers},
        decoding={workers: rates["decoding", workers] for workers in options.workers},
        beside=None
        if options.step_ms is None
        else _beside(dataset, pipeline, options.step_ms, rates["loading", max(options.workers)], options),
    )


class FirstImages:
    """The first `count` images of epoch 0, and the loader's crops of them."""

    def __init__(self, dataset: FastDataset, pipeline: Pipeline, count: int, options: BenchOptions) -> None:
        positions = np.arange(count, dtype=np.int64)
        order = Shuffled().bind(Population(len(dataset)), options.seed)
        self.reader = dataset.reader
        self.located: Located = self.reader.locate(dataset.resolve(order.indices(0, positions)))
        refresh(self.reader, self.located)
        draw = Draw(options.seed, 0, positions)
        self.boxes, self.flips = pipeline.plan(draw, self.located.width, self.located.height)
        assert pipeline.size is not None
        self.size: tuple[int, int] = pipeline.size
        self.options = decode_options(pipeline, options.pixels)
        self.count = count

    def stages(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return microseconds per image by stage, and images by way, on one thread.

        The fastest of a few passes counts, as other programs disturb the others. A first pass fills tables and caches.
        """
        out = np.empty((BUFFER, *self.size, 3), np.uint8)
        context = kernel.Context(self.options, timed="all")
        counts = [self.all(context, out) for _ in range(1 + PASSES)]
        context.close()
        spent = {
            name: min(after.nanoseconds[name] - before.nanoseconds[name] for before, after in pairwise(counts))
            for name in kernel.STAGES
        }
        ways = {name: counts[1].ways[name] - counts[0].ways[name] for name in kernel.WAYS}
        return {name: value / 1e3 / self.count for name, value in spent.items()}, ways

    def all(self, context: kernel.Context, out: NDArray[np.uint8]) -> kernel.Counts:
        """Decode all images slice by slice, and return the context's counts."""
        for start in range(0, self.count, ROWS):
            self.decode(context, self.located, slice(start, start + ROWS), (self.boxes, self.flips), out)
        return context.counts()

    def decode(
        self,
        context: kernel.Context,
        located: Located,
        rows: slice,
        plan: tuple[NDArray[np.int32], NDArray[np.uint8]],
        out: NDArray[np.uint8],
    ) -> None:
        """Decode some rows into `out`, used as a ring. Raises `DecodeError`."""
        boxes, flips = plan[0][rows], plan[1][rows]
        part = out[rows.start % len(out) :][: len(boxes)]
        status = np.zeros(len(part), np.int32)
        with self.reader.payloads(located, rows.start, rows.start + len(part)) as payloads:
            kernel.decode_batch(context, payloads, boxes, flips, part, status, 0, len(part))
            for failed in np.flatnonzero(status)[:1].tolist():
                name = self.reader.name(int(located.indices[rows.start + failed]))
                raise DecodeError(f"{name}: {kernel.failure(int(status[failed]), payloads, failed)}")


def _loading(
    dataset: FastDataset, pipeline: Pipeline, batches: int, workers: int, options: BenchOptions
) -> Callable[[], float]:
    """Return a function that measures images per second through FastLoader, over the first batches of epoch 0."""
    loader = FastLoader(
        dataset,
        options.batch_size,
        True,
        seed=options.seed,
        transform=pipeline,
        num_workers=workers,
        pixels=options.pixels,
        device=options.device,
    )
    beginning = loader.state_dict()

    def run() -> float:
        loader.load_state_dict(beginning)
        wait(options.device)
        start, images = time.perf_counter(), 0
        for number, (batch, _) in enumerate(loader, 1):
            images += len(batch)
            if number == batches:
                break
        wait(options.device)
        return images / (time.perf_counter() - start)

    return run


def _beside(
    dataset: FastDataset, pipeline: Pipeline, step_ms: float, images_per_s: float, options: BenchOptions
) -> Beside:
    """Run steps beside FastLoader with the most threads, over the same images again and again."""
    batches = STEPS_S * images_per_s / options.batch_size  # as many as the loader gives in that time
    steps = max(3, round(min(1e3 * STEPS_S / step_ms, batches)))
    some = np.random.default_rng(options.seed).permutation(len(dataset))[: options.images]
    loader = FastLoader(
        dataset,
        options.batch_size,
        order=np.resize(some, (steps + 2 * WARM) * options.batch_size),
        transform=pipeline,
        num_workers=max(options.workers),
        pixels=options.pixels,
        device=options.device,
    )
    return beside(loader, tuned(options.device, step_ms / 1e3), steps, options.device)


def _decoding(sample: FirstImages, workers: int) -> Callable[[], float]:
    """Return a function that measures images per second of libjpeg-turbo decoding whole images in `workers` threads.

    The kernel's clock times libjpeg-turbo alone. The result is 0 if libjpeg-turbo decodes nothing.
    """
    located = sample.located._replace(crc=None)
    options = kernel.DecodeOptions(filter="box", strict=False)  # the mean of all pixels needs them all
    contexts = [kernel.Context(options, timed="all", decoder="libjpeg") for _ in range(workers)]
    boxes = whole(located.width, located.height)
    boxes[:, SIZE] = 1
    flips = np.zeros(sample.count, np.uint8)
    buffers = [np.empty((BUFFER, 1, 1, 3), np.uint8) for _ in range(workers)]

    def decode(thread: int) -> float:
        before = contexts[thread].counts()
        for start in range(thread * ROWS, sample.count, workers * ROWS):
            rows = slice(start, start + ROWS)
            sample.decode(contexts[thread], located, rows, (boxes, flips), buffers[thread])
        after = contexts[thread].counts()
        seconds = (after.nanoseconds["libjpeg"] - before.nanoseconds["libjpeg"]) / 1e9
        return (after.ways["libjpeg"] - before.ways["libjpeg"]) / seconds if seconds else 0.0

    def run() -> float:
        with ThreadPoolExecutor(workers) as pool:
            return sum(pool.map(decode, range(workers)))

    return run


def _in_turn(
    contenders: dict[tuple[str, int], Callable[[], float]], seconds: float
) -> dict[tuple[str, int], list[float]]:
    """Run rounds until the time is over, behind one that fills the page cache and is not counted."""
    for run in contenders.values():
        run()
    figures: dict[tuple[str, int], list[float]] = {name: [] for name in contenders}
    end = time.monotonic() + seconds
    while True:
        for name, run in contenders.items():
            figures[name].append(run())
        if time.monotonic() > end:
            return figures
