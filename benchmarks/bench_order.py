"""What does it cost to know which samples come next? Microseconds per 256 positions, by order, and what start-up costs.

python -m benchmarks.bench_order [--samples 1281167] [--rounds 15] [--output PAGE.md]
asks each order for batches of 256 in a row, and for every eighth batch of 256, as one of eight ranks does. The
processor time of the thread counts, and the least of the rounds' means over 64 batches, making of tables and blocks
included: what another program takes is not the order's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks import measure
from iofast.order import (
    Balanced,
    Blocks,
    Buckets,
    Mixed,
    Mode,
    Order,
    Population,
    Repeated,
    Sampled,
    Sequential,
    Shuffled,
    Weighted,
)

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
        "Sequential()": Sequential(),
        "Shuffled()": Shuffled(),
        "Blocks()": Blocks(),
        "Blocks(256, 1024)": Blocks(256, 1024),
        "Weighted(weights)": Weighted(np.random.default_rng(1).random(samples)),
        f"Balanced(), {CLASSES} classes": Balanced(),
        "Repeated(3)": Repeated(3),
        "Mixed([0.7, 0.3])": Mixed([0.7, 0.3]),
        f"Buckets of {len(SIZES)} sizes": Buckets(SIZES),
        "Sampled(range)": Sampled(range(samples)),
    }


def microseconds(order: Order, step: int) -> Callable[[], float]:
    """Mean processor time per batch over the first batches of an epoch that was not asked for before."""
    epoch = 0

    def run() -> float:
        nonlocal epoch
        epoch += 1
        order.indices(epoch, np.arange(1))  # a sampler's epoch is made once, and takes what the sampler takes
        starts = [batch * step % (order.length - BATCH) for batch in range(BATCHES)]
        batches = [np.arange(start, start + BATCH) for start in starts]
        before = time.thread_time()
        for positions in batches:
            order.indices(epoch, positions)
        return 1e6 * (time.thread_time() - before) / BATCHES

    return run


def bound(mode: Mode, of: Population) -> tuple[Order, float]:
    """The order, and the milliseconds until it had answered for a first batch: the least of three."""
    seconds = []
    for seed in range(3):
        before = time.thread_time()
        order = mode.bind(of, seed, BATCH * RANKS)
        order.indices(0, np.arange(BATCH))
        seconds.append(time.thread_time() - before)
    return order, 1e3 * min(seconds)


def main() -> None:
    parser = measure.parser(__doc__, photos=False)
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    of = population(arguments.samples)
    made = {name: bound(mode, of) for name, mode in modes(arguments.samples).items()}
    contenders = {
        (name, step): microseconds(order, step) for name, (order, _) in made.items() for step in (BATCH, BATCH * RANKS)
    }
    figures = measure.in_turn({f"{name} {step}": run for (name, step), run in contenders.items()}, arguments.rounds)
    rows = [
        [name, *(f"{min(figures[f'{name} {step}']):.0f}" for step in (BATCH, BATCH * RANKS)), f"{start:.1f}"]
        for name, (_, start) in made.items()
    ]
    header = ("order", "batches in a row", f"every {RANKS}th (a rank of {RANKS})", "ms to bind and answer first")
    text = f"""# Orders: microseconds per {BATCH} positions

{arguments.samples:,} samples. Processor time, least of {arguments.rounds} rounds of {BATCHES} batches each; one core
decodes {BATCH} photographs in some 35,000 µs.

{measure.table(header, rows)}

{measure.machine(figures)}
- Command: `python -m benchmarks.bench_order`
"""
    measure.publish("order", text, arguments.output)


if __name__ == "__main__":
    main()
