"""`FastLoader.stats`: every decoded image counts once; and `loader.trace`: a file with the spans of each batch."""

import gc
import json
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from device_model import lend
from kernel_images import jpeg, photo
from loader_sets import photographs, write_numbered

from iofast import FastDataset, FastLoader, kernel
from iofast import transforms as T
from iofast.loader import delivery
from iofast.loader.delivery import on_device
from iofast.loader.loader_stats import Contexts, Tally
from iofast.meter import Stages

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


def test_an_epoch_that_ends_while_it_is_summed() -> None:
    """The garbage collector may end an abandoned iterator in a cycle at any point of `stats`."""
    tally, epoch = Tally(), Contexts(kernel.DecodeOptions(), Stages())
    tally.begin(epoch)

    class Ending:
        def counts(self) -> kernel.Counts:
            epoch._contexts = []  # it is counted once
            epoch.end()
            return kernel.Counts({}, {})

    epoch._contexts.append(Ending())  # type: ignore[arg-type]
    assert tally.sum() == tally.sum()
    assert epoch.ended


def test_what_the_thread_of_a_device_computes_counts_too(dataset: FastDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*given: Any) -> Any:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return on_device(*given)

    loader = FastLoader(dataset, 4, transform=CROP, num_workers=1)
    lend(loader)
    monkeypatch.setattr(delivery, "on_device", busy)
    assert len(list(loader)) == 3
    assert 0.15 <= loader._tally.sum().cpu_s < 5
    assert 0 < loader.stats.cpu_share <= 1


Event = dict[str, Any]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("trace") / "set.lmdb", photographs(200)))


def loader_of(many: FastDataset, **options: Any) -> FastLoader[Any]:
    return FastLoader(many, 60, **{"transform": [T.RandomResizedCrop(24)], "num_workers": 2, **options})


def by_batch(path: Path) -> dict[tuple[int, int], list[Event]]:
    """The spans of a finished trace."""
    found = defaultdict(list)
    for event in json.loads(path.read_text()):
        if event["ph"] == "X":
            found[event["args"]["epoch"], event["args"]["batch"]].append(event)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stages_of_each_batch_are_in_order(many: FastDataset, tmp_path: Path, workers: int) -> None:
    loader = loader_of(many, num_workers=workers)
    with loader.trace(tmp_path / "trace.json"):
        assert len(list(loader)) == len(list(loader)) == 4
    found = by_batch(tmp_path / "trace.json")
    assert sorted(found) == [(epoch, batch) for epoch in (0, 1) for batch in range(4)]
    for (_, batch), events in found.items():
        ends = {stage: [e["ts"] + e["dur"] for e in events if e["cat"] == stage] for stage in STAGES}
        begins = {stage: [e["ts"] for e in events if e["cat"] == stage] for stage in STAGES}
        slices = -(-(60 if batch < 3 else 20) // loader._resources.slice)
        expected = {"read": slices, "decoded": slices, "values": slices + 1}
        assert {stage: len(each) for stage, each in ends.items()} == dict.fromkeys(STAGES, 1) | expected
        assert max(ends["planned"]) <= min(begins["read"]) + 0.01
        assert all(end <= begin + 0.01 for end, begin in zip(ends["read"], begins["decoded"], strict=True))
        assert max(ends["decoded"]) <= max(begins["values"]) + 0.01  # the last one makes the batch of the slices
        assert max(ends["values"]) <= min(begins["handed over"]) + 0.01
        assert ends["waited"] == pytest.approx(begins["handed over"], abs=0.01)
        assert all(event["name"] == f"{batch} {event['cat']}" and event["dur"] >= 0 for event in events)
        by_consumer = {event["cat"] for event in events if event["tid"] == threading.get_native_id()}
        assert by_consumer == (set(STAGES) if workers == 0 else {"waited", "handed over"})
    names = {e["args"]["name"] for e in json.loads((tmp_path / "trace.json").read_text()) if e["name"] == "thread_name"}
    assert {name.partition("-")[0] for name in names} == {"MainThread", *["iofast"] * workers}
    for thread in {event["tid"] for events in found.values() for event in events} if workers else ():
        times = sorted((e["ts"], e["ts"] + e["dur"]) for events in found.values() for e in events if e["tid"] == thread)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(times)), "they can be shown on one track"


STAGES = ("planned", "read", "decoded", "values", "waited", "handed over")


def test_a_trace_begins_with_an_epoch_and_ends_when_it_is_closed(many: FastDataset, tmp_path: Path) -> None:
    loader = loader_of(many)
    batches = iter(loader)
    next(batches)
    trace = loader.trace(tmp_path / "trace.json")
    list(batches)
    trace.close()
    assert by_batch(tmp_path / "trace.json") == {}
    trace = loader.trace(tmp_path / "other.json")
    batches = iter(loader)
    next(batches)
    trace.close()
    list(batches)
    list(loader)
    found = by_batch(tmp_path / "other.json")
    assert {epoch for epoch, _ in found} == {1}
    assert {event["cat"] for event in found[1, 0]} == set(STAGES)
    loader.trace(tmp_path / "open.json")
    list(loader)
    with pytest.raises(FileNotFoundError, match=r"none.trace\.json"):
        loader.trace(tmp_path / "none" / "trace.json")
    del loader, batches  # which ends the trace that nobody closes
    assert len(by_batch(tmp_path / "open.json")) == 4
