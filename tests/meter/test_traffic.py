"""Counts of requests to object stores: sums, differences, quantiles, and what the telemetry page says of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.meter import Stages, TrafficStats
from iofast.meter import page as telemetry
from iofast.meter import traffic as module
from iofast.meter.page import LoaderInfo, PageHeader, Totals
from iofast.meter.traffic import AnswerTimes, Traffic

HEADER = PageHeader(1, 2, 3, "boot")


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


@given(st.lists(st.floats(0, 100), min_size=1, max_size=3000))
def test_quantiles_are_those_of_recent_answers(times: list[float]) -> None:
    """Of the last 1024 answers, but for the newest 63."""
    own = AnswerTimes()
    for each in times:
        own.add(each)
    recent = times[-1024 - 63 :]
    for share in (0.5, 0.99):
        found = own.quantile(share)
        assert found in recent
        if len(times) <= 64 or len(times) % 64 == 0:
            kept = sorted(times[-1024:])
            assert sum(each <= found for each in kept) >= share * len(kept)
            assert sum(each < found for each in kept) < share * len(kept)


def page(own: Traffic, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(telemetry, "traffic", own)
    figures = telemetry.figure_members(Totals(), Stages(is_remote=True), (), on_device=False)
    return {**telemetry.loader_members(LoaderInfo("train"), 1), **figures}


def test_the_page_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Traffic()
    _, (report,) = telemetry.from_json(telemetry.to_json(HEADER, [page(own, monkeypatch)]))
    assert report.traffic is None
    own.answered(1000, 0.25)
    own.was_read(3000)
    _, (report,) = telemetry.from_json(telemetry.to_json(HEADER, [page(own, monkeypatch)]))
    assert report.traffic == own.stats()
    own = Traffic()
    own.retries += 1  # no answer yet
    _, (report,) = telemetry.from_json(telemetry.to_json(HEADER, [page(own, monkeypatch)]))
    assert report.traffic == replace(TrafficStats(), retries=1)


@pytest.mark.parametrize("wrong", [[], [1], [1, 2, 3, 4], [-1, 0, 0, 0, 1, 1], ["x"] * 6, [1.5] * 6, 3, "text"])
def test_a_wrong_member_is_refused(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    members = page(Traffic(), monkeypatch) | {"traffic": json.loads(json.dumps(wrong))}
    with pytest.raises((ValueError, TypeError, IndexError, KeyError, AttributeError)):
        telemetry.from_json(telemetry.to_json(HEADER, [members]))


def test_this_process_has_one() -> None:
    assert isinstance(module.traffic, Traffic)
