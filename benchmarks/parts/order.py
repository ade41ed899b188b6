"""What does it cost to know which samples come next? Microseconds per 256 positions by order, and start-up.

Batches of 256 in a row from each order, and every eighth batch of 256, as one of eight ranks gets them. The figure is
the thread's processor time, the least of the rounds' means over 64 batches, building tables and blocks included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import measure
from iofast import order as orders
from iofast.order import Mode, Order, Population

BATCH, BATCHES, RANKS, CLASSES = 256, 64, 8, 1000
SIZES = [(224, 224), (192, 256), (256, 192), (160, 320), (320, 160)]


def population(samples: int) -> Population:
    """Labels, sizes and parts as a large photograph set has them."""
    rng = np.random.default_rng(0)
    sides = rng.integers(200, 600, (2, samples), dtype=np.int32)
    return Population(
        samples,
        labels=lambda: np.arange(samples) * CLASSES // samples,
        sizes=lambda: (sides[0], sides[1]),
        parts=(samples - samples // 10, samples // 10),
    )


def modes(samples: int) -> dict[str, Mode]:
    """Every mode, with options as a user would choose them."""
    return {
        "Sequential()": orders.Sequential(),
        "Shuffled()": orders.Shuffled(),
        "Blocks()": orders.Blocks(),
        "Blocks(256, 1024)": orders.Blocks(256, 1024),
        "Weighted(weights)": orders.Weighted(np.random.default_rng(1).random(samples)),
        f"Balanced(), {CLASSES} classes": orders.Balanced(),
        "Repeated(3)": orders.Repeated(3),
        "Mixed([0.7, 0.3])": orders.Mixed([0.7, 0.3]),
        f"Buckets of {len(SIZES)} sizes": orders.Buckets(SIZES),
        "Grouped(64)": orders.Grouped(64),
        "Grouped(64, Blocks(1024, 4))": orders.Grouped(64, orders.Blocks(1024, 4)),
        "Sampled(range)": orders.Sampled(range(samples)),
    }


def microseconds(bound: Order, step: int) -> Callable[[], float]:
    """Mean processor time per batch over the first batches of a new epoch."""
    epoch = 0

    def run() -> float:
        nonlocal epoch
        epoch += 1
        bound.indices(epoch, np.arange(1))  # a sampler makes its epoch once, in its own time
        starts = [batch * step % (bound.length - BATCH) for batch in range(BATCHES)]
        batches = [np.arange(start, start + BATCH) for start in starts]
        before = time.thread_time()
        for positions in batches:
            bound.indices(epoch, positions)
        return 1e6 * (time.thread_time() - before) / BATCHES

    return run


def bind(mode: Mode, of: Population) -> tuple[Order, float]:
    """The order, and the milliseconds to bind it and get a first batch: the least of three."""
    seconds = []
    for seed in range(3):
        before = time.thread_time()
        bound = mode.bind(of, seed, BATCH * RANKS)
        bound.indices(0, np.arange(BATCH))
        seconds.append(time.thread_time() - before)
    return bound, 1e3 * min(seconds)


def order(bench: measure.Bench) -> None:
    """The part `order`."""
    samples, rounds = bench.size(1_281_167, 10_000), bench.rounds(15)
    of = population(samples)
    bound = {name: bind(mode, of) for name, mode in modes(samples).items()}
    steps = (BATCH, BATCH * RANKS)
    contenders = {f"{name} {step}": microseconds(each, step) for name, (each, _) in bound.items() for step in steps}
    figures = measure.in_turn(contenders, rounds)
    rows = [
        [name, *(f"{min(figures[f'{name} {step}']):.0f}" for step in steps), f"{start:.1f}"]
        for name, (_, start) in bound.items()
    ]
    header = ("order", "batches in a row", f"every {RANKS}th (a rank of {RANKS})", "ms to bind and answer first")
    bench.publish(
        f"""# Orders: microseconds per {BATCH} positions

{samples:,} samples. Processor time, least of {rounds} rounds of {BATCHES} batches each; one core decodes {BATCH}
photographs in some 35,000 µs.

{measure.table(header, rows)}
""",
        figures,
    )
