"""What do parts of a pack cost over one run, and Ray over parts?

python -m benchmarks.bench_parts [--photos FOLDER] [--images 16000] [--records 1000] [--parts 4] [--rounds 5]
packs the same photographs (with crops of them, to make `--images`) into tar shards of `--records` with two workers: in
one run; in `--parts` parts that are then joined; in parts of one shard each, the smallest, joined; and on Ray, whose
tasks are these smallest parts. Ray with one worker a task packs two parts at once. All runs are in this process, in
turn, and start no process: workers and Ray run already, and Ray's processes have their workers. So start-up is apart;
it is measured once, by itself. Parts are compared with one run before Ray starts: its threads slow down whatever the
process does. Asked: parts at most 3 % over one run, Ray at most 10 % over the same parts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.photographs import vary, workplace
from iofast.packing import PackOptions
from iofast.packing.pool import WorkerPool
from iofast.packing.progress import PackProgress
from iofast.packing.run import run

WORKERS = 2
PARTS_LIMIT, RAY_LIMIT = 1.03, 1.10
_OPTIONS = {"resize": 256, "max_errors": 0}


class Packs:
    """The contenders: each packs `source` into an empty folder and returns the seconds."""

    def __init__(self, source: Path, folder: Path, records: int, pool: WorkerPool) -> None:
        self.source, self.folder, self.pool = source, folder, pool
        self.options = {**_OPTIONS, "shard_records": records}

    def whole(self) -> float:
        """One run."""
        return self._timed(lambda target: self._run(target))

    def in_parts(self, count: int) -> Callable[[], float]:
        """So many parts, one after the other, then joined."""

        def pack(target: Path) -> None:
            for number in range(1, count + 1):
                self._run(target, part=f"{number}/{count}")
            self._run(target, finish=True)

        return lambda: self._timed(pack)

    def on_ray(self, cpus: int) -> Callable[[], float]:
        """All parts as tasks of Ray, `cpus` workers each."""

        def pack(target: Path) -> None:
            with WorkerPool(WORKERS, idle=True) as idle:
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


def page(turns: Sequence[measure.Figures], images: int, records: int, times: tuple[float, float]) -> str:
    """The result as markdown. `turns`: without Ray, with two workers a task, with one.

    `times`: seconds of Ray's start, and of the first run on it.
    """
    without, together, alone = turns
    (whole, parts, shards), (_, ray), (_, default) = turns

    def over(figures: measure.Figures, one: str, other: str) -> str:
        return f"{measure.ratio(figures, one, other):.3f} × {other}"

    rows = [
        [whole, measure.spread(without[whole], 2), "", ""],
        [parts, measure.spread(without[parts], 2), over(without, parts, whole), f"≤ {PARTS_LIMIT:.2f}"],
        [shards, measure.spread(without[shards], 2), over(without, shards, whole), ""],
        [f"{shards}, while Ray runs", measure.spread(together[shards], 2), "", ""],
        [ray, measure.spread(together[ray], 2), over(together, ray, shards), f"≤ {RAY_LIMIT:.2f}"],
        [default, measure.spread(alone[default], 2), over(alone, default, shards), ""],
    ]
    return f"""# Packing in parts, and on Ray

{images:,} images into tar shards of {records:,}, `--resize 256`, {WORKERS} workers, sources in the page cache,
{len(without[whole])} rounds in turn, without start-up.

{measure.table(("", "seconds: median (least – most)", "median of ratios", "asked"), rows)}

Start-up of Ray on this machine, which is not in the table: {times[0]:.1f} s; the first run on it, whose processes
import iofast and start workers: {times[1]:.1f} s.
"""


def main() -> None:
    arguments = measure.arguments(__doc__, images=16_000, records=1000, parts=4, rounds=5)
    images, records, rounds = arguments.images, arguments.records, arguments.rounds
    shards = -(-images // records)
    with workplace(arguments.photos) as (folder, photos), WorkerPool(WORKERS) as pool:
        packs = Packs(vary(photos, folder / "source", images), folder, records, pool)
        whole = {"one run": packs.whole, f"{arguments.parts} parts": packs.in_parts(arguments.parts)}
        smallest = {f"{shards} parts": packs.in_parts(shards)}
        packs.whole()  # reads everything once, and starts the workers
        without = measure.in_turn(whole | smallest, rounds)
        with running_ray() as started:
            full, single = packs.on_ray(WORKERS), packs.on_ray(1)
            first = full()
            full()  # on the other process of Ray, perhaps
            together = measure.in_turn({**smallest, f"Ray, {WORKERS} workers a task": full}, rounds)
            single()  # Ray's processes start other workers
            alone = measure.in_turn({**smallest, "Ray, 1 worker a task": single}, rounds)
    text = page((without, together, alone), images, records, (started, first))
    for figures in (together, alone):
        without.add(figures)
    measure.publish("parts", text, arguments.output, without)


if __name__ == "__main__":
    main()
