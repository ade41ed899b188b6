"""`loader.trace`: a file with the spans of each batch, in order and on the threads that made it."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from loader_sets import photographs, write_numbered

from iofast import FastDataset, FastLoader
from iofast import transforms as T

Event = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FastDataset:
    return FastDataset(write_numbered(tmp_path_factory.mktemp("trace") / "set.lmdb", photographs(200)))


def loader_of(dataset: FastDataset, **options: Any) -> FastLoader[Any]:
    return FastLoader(dataset, 60, **{"transform": [T.RandomResizedCrop(24)], "num_workers": 2, **options})


def spans(path: Path) -> list[Event]:
    """The spans of a finished trace."""
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def by_batch(path: Path) -> dict[tuple[int, int], list[Event]]:
    found = defaultdict(list)
    for event in spans(path):
        found[event["args"]["epoch"], event["args"]["batch"]].append(event)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_the_stages_of_each_batch_are_in_order(dataset: FastDataset, tmp_path: Path, workers: int) -> None:
    loader = loader_of(dataset, num_workers=workers)
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


STAGES = ("planned", "read", "decoded", "values", "waited", "handed over")


def test_spans_are_on_the_threads_that_did_the_work(dataset: FastDataset, tmp_path: Path) -> None:
    loader = loader_of(dataset)
    with loader.trace(tmp_path / "trace.json"):
        list(loader)
    events = json.loads((tmp_path / "trace.json").read_text())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    consumer = threading.get_native_id()
    for event in spans(tmp_path / "trace.json"):
        by_consumer = event["cat"] in ("waited", "handed over")
        assert (event["tid"] == consumer) == by_consumer
        assert names[event["tid"]].startswith("MainThread" if by_consumer else "iofast-")
    for thread in names:  # spans of a thread do not overlap, so that they can be shown on one track
        times = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans(tmp_path / "trace.json") if e["tid"] == thread)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(times))


def test_a_trace_begins_with_an_epoch_and_ends_when_it_is_closed(dataset: FastDataset, tmp_path: Path) -> None:
    loader = loader_of(dataset)
    batches = iter(loader)
    next(batches)
    trace = loader.trace(tmp_path / "trace.json")
    list(batches)
    assert spans_so_far(tmp_path / "trace.json", trace) == []
    trace = loader.trace(tmp_path / "other.json")
    batches = iter(loader)
    next(batches)
    trace.close()
    list(batches)
    list(loader)
    assert {epoch for epoch, _ in by_batch(tmp_path / "other.json")} == {1}
    assert {event["cat"] for event in spans(tmp_path / "other.json") if event["args"]["batch"] == 0} == set(STAGES)


def spans_so_far(path: Path, trace: Any) -> list[Event]:
    trace.close()
    return spans(path)


def test_a_trace_that_nobody_closes_is_ended_with_its_loader(dataset: FastDataset, tmp_path: Path) -> None:
    loader = loader_of(dataset)
    loader.trace(tmp_path / "trace.json")
    list(loader)
    del loader
    assert len(by_batch(tmp_path / "trace.json")) == 4


def test_a_file_that_cannot_be_written(dataset: FastDataset, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.trace\.json"):
        loader_of(dataset).trace(tmp_path / "none" / "trace.json")
