"""Locks of one opening, seen by another."""

import os

from hypothesis import example, given
from hypothesis import strategies as st

from iofast.mirror.locks import END, locked_elsewhere, try_lock, unlock


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=30), st.integers(0, 12), st.integers(0, 14))
@example([(True, byte) for byte in (3, 4, 5)], 4, 5)
def test_a_byte_is_locked_by_one_opening_at_a_time(steps: list[tuple[bool, int]], start: int, stop: int) -> None:
    """Neighbouring bytes of one opening are one lock to the kernel."""
    fd = os.memfd_create("locks")
    first, second, third = (os.open(f"/proc/self/fd/{fd}", os.O_RDWR) for _ in range(3))
    locked: dict[int, set[int]] = {first: set(), second: set()}
    for is_first, byte in steps:
        own, other = (first, second) if is_first else (second, first)
        if byte in locked[own]:
            unlock(own, byte)
            locked[own].remove(byte)
        else:
            assert try_lock(own, byte) == (byte not in locked[other])
            locked[own] |= {byte} - locked[other]
    inside = set(range(start, stop))
    assert locked_elsewhere(third, start, stop) == (locked[first] | locked[second]) & inside
    assert locked_elsewhere(first, start, stop) == locked[second] & inside
    for each in (fd, first, second, third):
        os.close(each)


def test_locks_of_the_whole_range_end_with_their_opening() -> None:
    fd = os.memfd_create("locks")
    first = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    assert all(try_lock(first, byte) for byte in (0, 1 << 40, END - 1))
    assert locked_elsewhere(fd, 0) == {0, 1 << 40, END - 1}
    os.close(first)
    assert locked_elsewhere(fd, 0) == set()
    os.close(fd)
