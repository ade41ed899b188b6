"""Advice on coming batches: its ranges, order and bounds."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_sets import eventually, photographs, write_folder, write_lmdb

from iofast import open_reader
from iofast.containers.base import Located, Reader
from iofast.prefetch import readahead
from iofast.prefetch.readahead import FileAdvice, Groups, Readahead, ranges, reading

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="posix_fadvise: not on this system")

N, BATCH = 160, 4
COUNT = N // BATCH
Calls = list[tuple[int, int]]
places = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 200)), max_size=40)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Reader]:
    with open_reader(write_lmdb(tmp_path / "a.lmdb", photographs(40) * 4)) as reader:
        yield reader


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every (offset, length) of the advice."""
    made: Calls = []

    def advise(_: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            made.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(readahead, "cached", lambda *_: False)
    return made


def batches(reader: Reader, asked: list[int] | None = None) -> Callable[..., list[Located]]:
    """Batches of neighbours, last ones first; `asked` lists those that were located."""

    def located_of(batch: int) -> list[Located]:
        if asked is not None:
            asked.append(batch)
        return [reader.locate(np.arange(N - BATCH * (batch + 1), N - BATCH * batch))]

    return located_of


def covers(advised: Calls, located: Located) -> bool:
    bytes_there = {at for offset, length in advised for at in range(offset, offset + length)}
    wanted = zip(located.offset.tolist(), located.length.tolist(), strict=True)
    return all(bytes_there.issuperset(range(offset, offset + length)) for offset, length in wanted)


@given(places=places, gap=st.integers(0, 300))
def test_ranges_cover_the_places_and_no_wider_gap(places: list[tuple[int, int]], gap: int) -> None:
    offsets, lengths = np.array(places, np.uint64).reshape(-1, 2).T
    found = ranges(offsets, lengths, gap).tolist()
    wanted = {at for offset, length in places for at in range(offset, offset + length)}
    covered = {at for start, stop in found for at in range(start, stop)}
    assert wanted <= covered
    assert all(start in wanted and stop - 1 in wanted for start, stop in found), "none begins or ends beside a place"
    assert all(after - stop > gap for (_, stop), (after, _) in itertools.pairwise(found)), "sorted, apart"
    run = 0
    for at in range(min(covered, default=0), max(covered, default=0)):
        run = 0 if at in wanted else run + (at in covered)
        assert run <= gap


def test_dense_places_are_read_whole_and_scattered_ones_are_not() -> None:
    lengths = np.full(100, 27_000, np.uint64)
    half = np.arange(0, 200, 2, dtype=np.uint64) * 28_000  # every other record: the gaps come soon
    assert len(reading(half, lengths)) == 1
    thin = np.arange(0, 2000, 20, dtype=np.uint64) * 28_000  # one in twenty
    assert len(reading(thin, lengths)) == 100
    assert len(reading(np.array([0, 30_000, 90_000_000], np.uint64), lengths[:3])) == 2, "neighbours stay one read"


def test_advice_covers_the_places_in_pieces(container: Reader, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends with the file."""
    monkeypatch.setattr(readahead, "_largest_request", lambda _: 0)
    monkeypatch.setattr(readahead, "SMALL_PIECE", 5000)
    for located in (container.locate(np.array([159, 3, 90, 4, 3])), container.locate(np.arange(N))):
        calls.clear()
        list(FileAdvice(container).give([located]))
        assert covers(calls, located)
        size = os.path.getsize(container.path)  # type: ignore[attr-defined]
        assert all(length > 0 and offset + length <= size for offset, length in calls)
    assert max(length for _, length in calls) == 5000


def test_advice_on_a_folder_opens_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_reader(write_folder(tmp_path / "images", photographs(40)))
    located = reader.locate(np.arange(40))
    gone = tmp_path / "images" / "ant" / "00003.jpg"
    gone.unlink()
    before, most, lengths = len(os.listdir("/proc/self/fd")), [0], Calls()

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        if advice != os.POSIX_FADV_WILLNEED:
            return
        most[0] = max(most[0], len(os.listdir("/proc/self/fd")) - before)
        if fd > 1 << 20:  # in place of a file that cannot be opened
            raise OSError(9, "Bad file descriptor")
        assert os.fstat(fd).st_size == length
        lengths.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(readahead, "cached", lambda *_: False)
    list(FileAdvice(reader).give([located]))
    assert len(lengths) == 39
    assert 0 < most[0] <= readahead.FILES + 1  # with the one that lists descriptors
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_advice_on_what_is_in_memory(tmp_path: Path) -> None:
    path, offsets = tmp_path / "file", np.arange(0, 1 << 20, 1 << 14, dtype=np.uint64)
    with path.open("wb+") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not tell what is in memory")
        assert readahead.cached(file.fileno(), offsets)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert not readahead.cached(file.fileno(), offsets)


def test_advice_follows_the_order_up_to_its_depth(container: Reader, calls: Calls) -> None:
    located: list[int] = []
    ahead = Readahead(container, batches(container, located), COUNT, depth=6)
    time.sleep(0.02)
    assert located == [], "no advice before the first report"
    for come in range(COUNT):
        ahead.ask(come)
        assert eventually(lambda: located[-1:] >= [min(come + 1, COUNT - 1)])  # noqa: B023
        assert max(located) < come + 6
    assert located == list(range(COUNT)), "each once, in order"
    assert covers(calls, container.locate(np.arange(N)))
    assert eventually(lambda: not ahead._thread.is_alive()), "the last batch ends the thread"
    ahead.close()
    assert ahead.error is None
    located.clear()
    ahead = Readahead(container, batches(container, located), COUNT, depth=2)
    ahead.ask(30)  # a consumer that overtook the advice
    assert eventually(lambda: 30 in located)
    assert min(located) == 30
    ahead.close()


def test_advice_keeps_within_its_bytes(container: Reader, calls: Calls) -> None:
    sizes = [int(batches(container)(batch)[0].length.sum()) for batch in range(COUNT)]
    budget = 3 * max(sizes)
    ahead = Groups(batches(container), COUNT, COUNT, budget, FileAdvice(container))
    for come in range(20):
        ahead.reach(come)
        while ahead.group():
            pass
        assert sum(sizes[come : ahead._next]) <= budget < sum(sizes[come : ahead._next]) + 2 * max(sizes)


def test_errors_end_the_advice_and_nothing_else(
    container: Reader, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a damaged container, or of a machine without threads."""

    def fails(*_: object) -> Any:
        raise RuntimeError("a fault")

    for _ in range(2):
        ahead = Readahead(container, fails, 10)
        ahead.ask(0)
        assert eventually(lambda: str(ahead.error) == "a fault")  # noqa: B023
        ahead.ask(1)
        ahead.close()
        assert calls == []
        monkeypatch.setattr("iofast.prefetch.threads.start_thread", fails)


def test_the_thread_ends_with_close_and_with_its_owner(container: Reader, calls: Calls) -> None:
    def threads() -> int:
        return sum(thread.name == "iofast-readahead" for thread in threading.enumerate())

    before = threads()
    for _ in range(50):
        ahead = Readahead(container, batches(container), COUNT, depth=2)
        ahead.ask(0)
        ahead.close()
        ahead.close()
    assert threads() <= before, "those of earlier tests may end meanwhile"
    ahead = Readahead(container, batches(container), COUNT, depth=2)
    ahead.ask(0)
    assert eventually(lambda: bool(calls))
    del ahead
    gc.collect()
    assert eventually(lambda: threads() <= before)


def test_close_does_not_wait_for_long_advice(container: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with a full queue blocks each call; the rest of a group is dropped."""
    for gap in ("WIDE_GAP", "GAP"):
        monkeypatch.setattr(readahead, gap, 0)
    made: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: made.append(1) or time.sleep(0.1))
    monkeypatch.setattr(readahead, "cached", lambda *_: False)
    scattered = container.locate(np.arange(0, N, 2))
    ahead = Readahead(container, lambda *_: [scattered], 5)
    ahead.ask(0)
    assert eventually(lambda: len(made) > 0)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert len(made) < len(scattered.indices)


def test_a_live_readahead_lets_the_interpreter_exit(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", photographs(40))
    program = f"""
import numpy as np, os
from iofast import open_reader, open_writer
from iofast.prefetch.readahead import Readahead
reader = open_reader({os.fspath(path)!r})
ahead = Readahead(reader, lambda batch: [reader.locate(np.arange(10))], 1000, depth=4)
ahead.ask(0)
child = os.fork()
if child == 0:
    ahead.ask(9)
    ahead.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\n", "")
