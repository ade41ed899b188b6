"""Phases of a step by the host's clock: nested, in any thread, in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st
from stall_loaders import Time

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
