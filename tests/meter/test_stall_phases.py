"""Phases of a step by the host's clock, and the number of samples in a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st
from stall_loaders import Time

from iofast.meter import LoaderInfo, StallClock
from iofast.meter.loop import _Batches, samples
from iofast.meter.phase import UNADDED, HostPhase


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**9)), max_size=60))
def test_overlapping_uses_add_up(moves: list[tuple[int, int]]) -> None:
    clock = Time()
    phase = HostPhase("forward", clock)
    since: dict[int, int] = {}
    spent = left = seen = 0
    for consumer, passing in moves:  # each of four consumers enters if it is outside, and leaves if it is inside
        clock.ns += passing
        if consumer not in since:
            since[consumer] = clock.ns
            phase.__enter__()
        else:
            spent += clock.ns - since.pop(consumer)
            left += 1
            phase.__exit__(None, None, None)
        totals = phase.totals()
        assert totals.entered == totals.timed == left
        assert totals.ns >= seen  # also while others are inside
        seen = totals.ns
        if not since:
            assert totals.ns == spent


def test_memory_is_bounded_if_totals_are_never_read() -> None:
    clock = Time()
    phase = HostPhase("forward", clock)
    for _ in range(10 * UNADDED):
        with phase:
            clock.ns += 3
        assert len(phase._spent) <= UNADDED
    assert phase.totals() == (10 * UNADDED, 10 * UNADDED, 30 * UNADDED)


def test_threads_lose_nothing() -> None:
    ticks: Iterator[int] = iter(range(10**9))
    phase = HostPhase("forward", lambda: next(ticks))
    seen: list[int] = []

    def use() -> None:
        for number in range(5000):
            with phase:
                pass
            if number % 3 == 0:
                seen.append(phase.totals().entered)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # with the usual one the threads would hardly meet
    try:
        at_once(*[use] * 4)
    finally:
        sys.setswitchinterval(interval)
    totals = phase.totals()
    assert totals.entered == totals.timed == 20_000
    assert totals.ns >= 20_000  # each took a tick at least
    assert max(seen) <= 20_000


BATCHES: tuple[tuple[object, int | None], ...] = (
    (torch.zeros(5, 2), 5),
    ((torch.zeros(5, 2), torch.zeros(7)), 5),
    ([torch.zeros(3, 2), torch.zeros(7)], 3),
    ([np.zeros((4, 3, 2, 2)), np.zeros(4)], 4),
    ({"path": "x", "image": torch.zeros(6, 1)}, 6),
    ({"image": torch.zeros(9, 1), "path": "x"}, 9),
    ((3, "text", None, {"deep": [torch.zeros(2)]}), 2),
    (([torch.zeros(3, 9, 9), torch.zeros(3, 5, 5)], torch.zeros(2)), 2),
    (([], torch.zeros(8)), 8),
    (torch.tensor(1.0), None),
    ((torch.tensor(1.0), torch.zeros(4)), 4),
    ((torch.zeros(1), torch.zeros(4)), 1),
    ("text", None),
    (b"bytes", None),
    (None, None),
    ([], None),
    ((), None),
    ({}, None),
    ({"other": torch.zeros(3, 2)}, 3),
    ([[[[[[torch.zeros(3)]]]]]], None),
    (torch.zeros(0, 3), 0),
)


@pytest.mark.parametrize(("batch", "expected"), BATCHES)
def test_samples_of_a_batch(batch: object, expected: int | None) -> None:
    assert samples(batch) == expected


@given(st.lists(st.sampled_from(range(len(BATCHES))), min_size=1, max_size=12))
def test_any_sequence_of_batches(numbers: list[int]) -> None:
    """Each batch comes twice, so that the remembered place is right, and then wrong."""
    pairs = [BATCHES[number] for number in numbers for _ in range(2)]
    clock = StallClock(LoaderInfo("mixed"), device="cpu")
    counts: list[int | None] = []
    batches = _Batches([batch for batch, _ in pairs], clock)
    batches._pass = SimpleNamespace(got=counts.append, waiting=lambda: None, left=lambda: None)  # type: ignore[assignment]
    assert all(found is batch for found, (batch, _) in zip(batches, pairs, strict=True))
    assert counts == [expected for _, expected in pairs]
