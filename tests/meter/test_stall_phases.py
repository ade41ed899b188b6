"""Phases of a step by the host's clock: sums that need no pairs, from any thread, in bounded memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from iofast.meter.phase import UNADDED, HostPhase


class Clock:
    """Nanoseconds that pass only when told."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**9)), max_size=60))
def test_openings_that_overlap_add_up(moves: list[tuple[int, int]]) -> None:
    clock = Clock()
    phase = HostPhase("forward", clock)
    since: dict[int, int] = {}
    spent = left = seen = 0
    for who, passing in moves:  # each of four consumers enters where it is outside, and leaves where it is inside
        clock.ns += passing
        if who not in since:
            since[who] = clock.ns
            phase.__enter__()
        else:
            spent += clock.ns - since.pop(who)
            left += 1
            phase.__exit__(None, None, None)
        totals = phase.totals()
        assert totals.entered == totals.timed == left
        assert totals.ns >= seen  # also while others are inside
        seen = totals.ns
        if not since:
            assert totals.ns == spent


def test_nobody_asks_and_the_memory_is_bounded() -> None:
    clock = Clock()
    phase = HostPhase("forward", clock)
    for _ in range(10 * UNADDED):
        with phase:
            clock.ns += 3
        assert len(phase._spent) <= UNADDED
    assert phase.totals() == (10 * UNADDED, 10 * UNADDED, 30 * UNADDED)


def test_threads_that_enter_and_add_up_at_once_lose_nothing() -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # or they would hardly meet
    try:
        used_at_once()
    finally:
        sys.setswitchinterval(usual)


def used_at_once() -> None:
    ticks: Iterator[int] = iter(range(10**9))
    phase = HostPhase("forward", lambda: next(ticks))
    seen: list[int] = []

    def use() -> None:
        for number in range(5000):
            with phase:
                pass
            if number % 3 == 0:
                seen.append(phase.totals().entered)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = phase.totals()
    assert totals.entered == totals.timed == 20_000
    assert totals.ns >= 20_000  # each took a tick at least
    assert max(seen) <= 20_000
