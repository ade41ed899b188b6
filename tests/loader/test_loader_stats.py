"""`FastLoader.stats`: every decoded image counts once, also of abandoned epochs."""

from __future__ import annotations

import gc
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from device_model import lend
from kernel_images import jpeg, photo
from loader_sets import write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T
from iofast.loader import delivery
from iofast.loader.delivery import on_device

CROP = [T.RandomResizedCrop(24)]


@pytest.fixture
def dataset(tmp_path: Path) -> FastDataset:
    kinds: list[dict[str, Any]] = [{"progressive": True}, {"restart_marker_blocks": 1}, {}]
    images = [jpeg(photo(60, 40, number), **kinds[number % 3]) for number in range(12)]
    return FastDataset(write_numbered(tmp_path / "set.lmdb", images))


def test_each_image_of_each_epoch_is_counted_by_its_way(dataset: FastDataset) -> None:
    loader = FastLoader(dataset, 5, transform=CROP, num_workers=3)
    assert loader.stats.images == 0
    for epoch in (1, 2, 3):
        for _ in loader:
            pass
        stats = loader.stats
        assert stats.images == sum(stats.ways.values()) == 12 * epoch
    assert repr(stats) == f"LoaderStats({stats})"
    assert "<tr><th>images</th><td>36</td></tr>" in stats._repr_html_()
    assert stats.ways["libjpeg"] >= 12
    if stats.ways["rows"]:  # our own decoder: a machine with vector loops for it
        assert (stats.ways["segments"], stats.ways["rows"], stats.ways["libjpeg"]) == (12, 12, 12)


def test_abandoned_and_simultaneous_epochs_are_counted(dataset: FastDataset) -> None:
    loader = FastLoader(dataset, 4, transform=CROP, num_workers=2, prefetch=1)
    iterators = [iter(loader), iter(loader)]
    for each in iterators:
        next(each)
    assert 8 <= loader.stats.images <= 24
    del iterators, each
    gc.collect()
    counted = loader.stats.images
    assert 8 <= counted == loader.stats.images <= 24


def test_what_the_thread_of_a_device_computes_counts_too(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*given: Any) -> Any:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return on_device(*given)

    loader = FastLoader(dataset, 4, transform=CROP, num_workers=1)
    lend(loader)
    monkeypatch.setattr(delivery, "on_device", busy)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    going_on = loader._tally.sum()[1]
    assert next(batches, None) is None
    times = loader._tally.sum()[1]
    for each in (going_on, times):
        assert 0.15 <= each.cpu_s < 5
        assert (each.batches, each.made) == (3, 3)
    assert 0 < loader.stats.cpu_share <= 1


def test_an_epoch_that_ends_in_the_garbage_collection_of_stats() -> None:
    """An abandoned iterator in a cycle, as of a traceback, may be collected at any point of `stats`."""
    program = """
        import gc
        from iofast import kernel
        from iofast.loader.loader_stats import Contexts, Epoch, Tally
        from iofast.prefetch.times import PrefetchTimes
        from iofast.meter import Stages

        tally = Tally()
        gc.freeze()  # torch has 170,000 objects: 0.1 s for each collection

        class Threads:
            def times(self):
                return PrefetchTimes()

        def going_through():
            contexts, threads = Contexts(kernel.DecodeOptions(), Stages()), Threads()
            contexts.context(0)
            epoch = Epoch(contexts)
            tally.begin(epoch)
            epoch.made_by(threads)
            try:
                yield
            finally:
                epoch.end()

        class Box:
            pass

        going_on = going_through()
        next(going_on)
        for n in range(1, 300):
            gc.disable()
            gc.collect()
            box = Box()
            box.me, box.epoch = box, going_through()
            next(box.epoch)
            del box
            gc.set_threshold(gc.get_count()[0] + n)
            gc.enable()
            tally.sum()
        print("done")
    """
    run = forked.run([sys.executable, "-c", textwrap.dedent(program)])
    assert (run.stdout, run.stderr) == ("done\n", "")
