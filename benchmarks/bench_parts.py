"""What do parts of a pack cost over one run, and Ray over parts?

python -m benchmarks.bench_parts [--photos FOLDER] [--images 4000] [--records 1000] [--rounds 5]
packs the same photographs (linked to make `--images`) into tar shards of `--records` with two workers: in one run, in
parts of one shard each that are then joined, and on Ray, whose tasks are these parts. All runs are in this process, in
turn, and start no process: workers and Ray run already, and Ray's process has its workers. So start-up is apart; it is
measured once, by itself. Asked: parts at most 3 % over one run, Ray at most 10 % over parts. Ray with one worker a
task, so that two parts are packed at once, is shown beside them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.photographs import link, workplace
from iofast.packing import PackOptions
from iofast.packing.pool import IdlePool, WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run

WORKERS = 2
PARTS_LIMIT, RAY_LIMIT = 1.03, 1.10
_OPTIONS = {"resize": 256, "max_errors": 0}


class Packs:
    """The contenders: each packs `source` into an empty folder and returns the seconds."""

    def __init__(self, source: Path, folder: Path, records: int, parts: int, pool: WorkerPool) -> None:
        self.source, self.folder, self.parts, self.pool = source, folder, parts, pool
        self.options = {**_OPTIONS, "shard_records": records}

    def whole(self) -> float:
        """One run."""
        return self._timed(lambda target: self._run(target))

    def in_parts(self) -> float:
        """All parts, one after the other, then joined."""

        def pack(target: Path) -> None:
            for number in range(1, self.parts + 1):
                self._run(target, part=f"{number}/{self.parts}")
            self._run(target, finish=True)

        return self._timed(pack)

    def on_ray(self, cpus: int) -> Callable[[], float]:
        """All parts as tasks of Ray, `cpus` workers each."""

        def pack(target: Path) -> None:
            with IdlePool(WORKERS) as idle:
                options = PackOptions(**self.options, on="ray", ray_cpus=cpus)
                run(self.source, target, options, PackProgress(), idle)

        return lambda: self._timed(pack)

    def _run(self, target: Path, **options: object) -> None:
        run(self.source, target, PackOptions(**self.options, **options), PackProgress(), self.pool)

    def _timed(self, pack: Callable[[Path], None]) -> float:
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        os.sync()  # so that no run pays for the bytes of the one before
        start = time.perf_counter()
        pack(out / "train.tar")
        return time.perf_counter() - start


@contextlib.contextmanager
def running_ray() -> Iterator[float]:
    """Ray of `WORKERS` processors on this machine; yields the seconds of its start."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_TMPDIR": folder, "HOME": folder}  # it writes a token into the home
        start = time.perf_counter()
        import ray

        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init("local", num_cpus=WORKERS, object_store_memory=100 << 20, **quiet)
        try:
            yield time.perf_counter() - start
        finally:
            ray.shutdown()


def page(figures: measure.Figures, images: int, records: int, started: float, first: float) -> str:
    """The result as markdown."""
    whole, parts, ray, apart = figures
    over = {name: measure.ratio(figures, name, whole if name == parts else parts) for name in (parts, ray, apart)}
    rows = [
        [whole, measure.spread(figures[whole], 2), "", ""],
        [parts, measure.spread(figures[parts], 2), f"{over[parts]:.3f} × one run", f"≤ {PARTS_LIMIT:.2f}"],
        [ray, measure.spread(figures[ray], 2), f"{over[ray]:.3f} × parts", f"≤ {RAY_LIMIT:.2f}"],
        [apart, measure.spread(figures[apart], 2), f"{over[apart]:.3f} × parts", ""],
    ]
    return f"""# Packing in parts, and on Ray

{images:,} images into tar shards of {records:,}, `--resize 256`, {WORKERS} workers, sources in the page cache,
{len(figures[whole])} rounds in turn, without start-up.

{measure.table(("", "seconds: median (least – most)", "median of ratios", "asked"), rows)}

Start-up of Ray on this machine, which is not in the table: {started:.1f} s; the first run on it, whose processes import
iofast and start workers: {first:.1f} s.
"""


def main() -> None:
    arguments = measure.arguments(__doc__, images=4000, records=1000, rounds=5)
    parts = -(-arguments.images // arguments.records)
    with workplace(arguments.photos) as (folder, photos), WorkerPool(WORKERS) as pool:
        packs = Packs(link(photos, folder / "source", arguments.images), folder, arguments.records, parts, pool)
        contenders = {
            "one run": packs.whole,
            f"{parts} parts, joined": packs.in_parts,
        }
        for contender in contenders.values():  # reads everything once, and starts the workers
            contender()
        with running_ray() as started:
            contenders[f"Ray, {WORKERS} workers a task"] = packs.on_ray(WORKERS)
            contenders["Ray, 1 worker a task"] = packs.on_ray(1)
            first = max(packs.on_ray(cpus)() for cpus in (1, WORKERS))
            figures = measure.in_turn(contenders, arguments.rounds)
    measure.publish(
        "parts", page(figures, arguments.images, arguments.records, started, first), arguments.output, figures
    )


if __name__ == "__main__":
    main()
