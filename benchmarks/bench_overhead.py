"""What do order, error policy, statistics, telemetry and state cost FastLoader?

    python -m benchmarks.bench_overhead [--photos DIR] [--rounds 9] [--output FILE]

    everything        a shuffled epoch, on_error="replace", statistics, stall clock and telemetry page, a state a batch
    no statistics     the same with counters, clock and page replaced by nothing
    no order          the same as everything, in sequential order
    nothing           sequential, on_error="raise", no counters, no clock, no page, no state

All run in turn with the kernel, and with a kernel that does nothing, where the difference shows best: what it takes
there per image is compared with what an image takes with the kernel.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from unittest.mock import patch

from benchmarks import bench_load, measure, photographs
from iofast import FastDataset, FastLoader, kernel
from iofast.meter.clock import Pass
from iofast.meter.counters import StageCounter

CASES = ("everything", "no statistics", "no order", "nothing")


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Counters, clock and page do nothing."""
    nothing = dict.fromkeys(("waiting", "arrived", "got"), lambda *_, **__: None)
    counted = dict.fromkeys(("add", "observe"), lambda *_, **__: None)
    with patch.multiple(StageCounter, **counted), patch.multiple(Pass, **nothing):
        yield


def rate(dataset: FastDataset, case: str, *, decode: bool) -> Callable[[], float]:
    """Images a second of one epoch."""
    full = case not in ("no order", "nothing")
    policy = "raise" if case == "nothing" else "replace"
    options = {"transform": bench_load.CROP, "num_workers": bench_load.WORKERS, "on_error": policy}
    loader = FastLoader(dataset, bench_load.BATCH, shuffle=full, **options)

    def run() -> float:
        with contextlib.ExitStack() as stack:
            if case in ("no statistics", "nothing"):
                stack.enter_context(silent())
            if not decode:
                stack.enter_context(patch.object(kernel, "decode_batch", lambda *_: None))
            start = time.perf_counter()
            images = 0
            for batch, _ in loader:
                images += len(batch)
                if case != "nothing":
                    loader.state_dict()
            return images / (time.perf_counter() - start)

    run()
    return run


def page(figures: measure.Figures, photos: str) -> str:
    """The table and what follows from it."""
    rows = []
    decoding = 1e6 / statistics.median(figures["nothing, decoding"])
    bare = 1e6 / max(figures["nothing, no kernel"])
    for case in CASES:
        python = 1e6 / max(figures[f"{case}, no kernel"])
        ratio = measure.ratio(figures, f"{case}, decoding", "nothing, decoding")
        share = f"{(python - bare) / decoding:+.1%}" if case != "nothing" else ""
        rows.append((case, measure.spread(figures[f"{case}, decoding"]), f"{ratio:.3f}", f"{python:.2f}", share))
    header = ("", "images/s, decoding", "of nothing", "us an image, no kernel", "beyond nothing, of an image decoded")
    return f"""# What the loader's promises cost

{photos}; RandomResizedCrop(224) + flip, batches of {bench_load.BATCH}, {bench_load.WORKERS} workers.

{measure.table(header, rows)}

Decoding: median (least – most) of rounds in turn, and the median ratio. Without a kernel: the best round; the last
column compares what it takes beyond "nothing" with the {decoding:.1f} us that an image takes with the kernel.
"""


def main() -> None:
    arguments = measure.arguments(__doc__, rounds=9)
    with photographs.workplace(arguments.photos) as (folder, photos):
        source = photographs.link(photos, folder / "copies", bench_load.EPOCH)
        dataset = FastDataset(photographs.pack(source, folder / "packed.lmdb"))
        contenders = {}
        for case in CASES:
            contenders[f"{case}, decoding"] = rate(dataset, case, decode=True)
            contenders[f"{case}, no kernel"] = rate(dataset, case, decode=False)
        figures = measure.in_turn(contenders, arguments.rounds)
    measure.publish("overhead", page(figures, photographs.kind(arguments.photos)), arguments.output, figures)


if __name__ == "__main__":
    main()
