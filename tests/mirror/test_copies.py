"""One local copy: what is stored is what is read, whatever ends the process or the machine; and locks of its bytes."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_blocks import BLOCK

from iofast.mirror import copies
from iofast.mirror.copies import SparseCopy, description_of, file_size, prepare
from iofast.mirror.locks import END, locked_elsewhere, try_lock, unlock

SIZE = 3 * BLOCK + 1000
DATA = random.Random(0).randbytes(SIZE)


@pytest.fixture
def file(tmp_path: Path, small_blocks: None) -> Path:
    path = tmp_path / "a.copy"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    prepare(fd, {"url": "s3://b/a", "size": SIZE}, SIZE)
    os.close(fd)
    return path


def opened(path: Path) -> SparseCopy:
    return SparseCopy(os.open(path, os.O_RDWR), "s3://b/a", SIZE)


def block_of(number: int) -> memoryview:
    return memoryview(DATA)[number * BLOCK : (number + 1) * BLOCK]


def test_a_stored_block_is_here_at_its_own_offset_and_takes_its_own_space(file: Path) -> None:
    copy = opened(file)
    before = os.fstat(copy.fd).st_blocks
    assert not any(copy.is_here(block, 0) for block in range(4))
    copy.store(1, block_of(1))
    copy.store(3, block_of(3))
    again = opened(file)
    for each in (copy, again):
        assert [each.is_here(block, 0) for block in range(4)] == [False, True, False, True]
        assert os.pread(each.fd, BLOCK, BLOCK) == DATA[BLOCK : 2 * BLOCK]
        assert os.pread(each.fd, 1000, 3 * BLOCK) == DATA[3 * BLOCK :]
    assert [block for block, _ in again.stored()] == [1, 3]
    assert (os.fstat(copy.fd).st_blocks - before) * 512 < 2 * BLOCK
    with pytest.raises(ValueError, match="block 3 has 1000 bytes, found 65536"):
        copy.store(3, block_of(0))


def test_an_evicted_block_is_gone_for_whoever_asks_after_the_eviction(file: Path) -> None:
    copy, other = opened(file), opened(file)
    copy.store(0, block_of(0))
    assert copy.is_here(0, 0)
    assert other.is_here(0, 0)
    used = os.fstat(copy.fd).st_blocks
    copy.show(0, copy.hide(0))  # an eviction that is given up
    assert copy.is_here(0, 1)
    assert os.pread(copy.fd, BLOCK, 0) == block_of(0)
    copy.hide(0)
    copy.free(0)
    assert not copy.is_here(0, 2)
    assert not other.is_here(0, 2)
    assert os.fstat(copy.fd).st_blocks < used
    assert os.pread(copy.fd, BLOCK, 0) == bytes(BLOCK)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_process_killed_while_it_stores_leaves_the_block_absent(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    copy, calls = opened(file), 0
    write = os.pwrite

    def killed(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise KeyboardInterrupt  # no later line of `store` runs
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", killed)
    with pytest.raises(KeyboardInterrupt):
        copy.store(0, block_of(0))
    monkeypatch.undo()
    assert opened(file).stored() == []


def test_a_full_disk_is_an_error_and_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, calls = opened(file), 0
    write, before = os.pwrite, os.fstat(copy.fd).st_blocks

    def full(fd: int, data: memoryview, place: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data[:40_000], place)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        copy.store(0, block_of(0))
    monkeypatch.undo()
    assert not copy.is_here(0, 0)
    assert os.fstat(copy.fd).st_blocks == before


class TestAnotherBoot:
    """After a power failure the table may say more than what reached the disk."""

    @pytest.fixture
    def copy(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> SparseCopy:
        opened(file).store(1, block_of(1))
        monkeypatch.setattr(copies, "_BOOT", copies._BOOT ^ 2)
        return opened(file)

    def test_whole_blocks_are_used_after_a_comparison(self, copy: SparseCopy, file: Path) -> None:
        copy.show(1, copy.hide(1))  # vouches for nothing
        assert not copy.is_here(1, 0)
        assert not copy.is_valid(0)
        assert copy.is_valid(1)
        assert copy.is_here(1, 0)
        assert opened(file).is_here(1, 0)

    def test_lost_bytes_are_not(self, copy: SparseCopy) -> None:
        os.pwrite(copy.fd, bytes(4096), BLOCK + 8192)
        assert not copy.is_valid(1)
        assert not copy.is_here(1, 0)


@pytest.mark.parametrize("damage", ["short", "long", "text", "number", "list"])
def test_the_file_of_something_else_has_no_description(file: Path, damage: str) -> None:
    fd, end = os.open(file, os.O_RDWR), file_size(SIZE)
    assert description_of(fd) == {"url": "s3://b/a", "size": SIZE}
    if damage == "short":
        os.ftruncate(fd, 10)
    elif damage == "long":
        os.ftruncate(fd, end + 4096)
    else:
        text = {"text": b"\xff", "number": b'{"size": "x"}', "list": b"[1]"}[damage]
        os.pwrite(fd, text.ljust(4096), end - 4096)
    assert description_of(fd) is None
    os.close(fd)


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
