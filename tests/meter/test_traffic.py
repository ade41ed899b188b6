"""Counts of requests to object stores: sums, differences, quantiles, and what the telemetry page says of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.meter import LoaderInfo, Slot, Stages, Totals, TrafficStats, pages
from iofast.meter import traffic as module
from iofast.meter.traffic import Traffic


def test_nothing_asked_is_none() -> None:
    assert Traffic().stats() is None


def test_sums() -> None:
    own = Traffic()
    own.answered(1000, 0.25)
    own.answered(3000, 0.5)
    own.was_read(16_000)
    own.retries += 1
    assert own.stats() == TrafficStats(2, 4000, 1, 16_000, 0.25, 0.5)
    assert own.stats().hit_rate == 0.75  # type: ignore[union-attr]
    words = "2 requests for 0 MB, 250 ms (99 %: 500 ms), 75% from the cache, 1 repeated"
    assert str(own.stats()) == words


def test_more_fetched_than_read_is_no_negative_rate() -> None:
    assert TrafficStats(bytes=20, read=10).hit_rate == 0.0
    assert TrafficStats(bytes=20).hit_rate is None


def test_differences_and_sums() -> None:
    before, now = TrafficStats(1, 10, 2, 40, 0.5, 0.6), TrafficStats(5, 30, 3, 90, 0.1, 0.2)
    assert now.since(before) == TrafficStats(4, 20, 1, 50, 0.1, 0.2)
    assert now.plus(before) == TrafficStats(6, 40, 5, 130, 0.5, 0.6)
    assert now.plus(TrafficStats()).p99_s == 0.2


@given(st.lists(st.floats(0, 100), min_size=1, max_size=1500))
def test_quantiles_are_those_of_recent_answers(times: list[float]) -> None:
    own = Traffic()
    for each in times:
        own.answered(1, each)
    stats, recent = own.stats(), sorted(times[-1024:])
    assert stats is not None
    for share, found in ((0.5, stats.median_s), (0.99, stats.p99_s)):
        assert found is not None
        assert sum(each <= found for each in recent) >= share * len(recent)
        assert sum(each < found for each in recent) < share * len(recent)


def test_the_page_has_it_for_a_loader_of_a_store(own_page: object, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Traffic()
    monkeypatch.setattr("iofast.meter.page_files.traffic", own)
    own.answered(1000, 0.25)
    own.was_read(3000)
    for is_remote in (True, False):
        Slot(LoaderInfo("train")).write(Totals(), Stages(is_remote=is_remote))
    ((stored, local),) = (page.loaders for page in pages())
    assert (stored.traffic, local.traffic) == (own.stats(), None)


def test_this_process_has_one() -> None:
    assert isinstance(module.traffic, Traffic)
