"""The folder of copies: its limit, what is evicted and what never, and folders that cannot be used."""

import asyncio
import os
import random
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from at_once import at_once, in_child
from small_blocks import BLOCK

from iofast.errors import OptionError, StateError
from iofast.mirror import cache, copies
from iofast.mirror.cache import BlockCache
from iofast.mirror.copies import SparseCopy

pytestmark = pytest.mark.usefixtures("small_blocks")


def filled(own: BlockCache, name: str, blocks: int) -> SparseCopy:
    """A copy with blocks 0, 1, … of random bytes, stored one second after another."""
    copy = own.open(f"s3://b/{name}", '"1"', blocks * BLOCK)
    for block in range(blocks):
        assert asyncio.run(own.reserve(BLOCK, ()))
        copy.store(block, memoryview(random.Random(block).randbytes(BLOCK)))
        os.pwrite(copy.fd, (1000 + block).to_bytes(4, "little"), copy._place(block) + 12)
    return copy


def full(folder: Path, blocks: int) -> tuple[BlockCache, SparseCopy]:
    own = BlockCache(folder, blocks * BLOCK)
    return own, filled(own, "a", blocks)


def blocks(copy: SparseCopy) -> list[int]:
    return [block for block, _ in copy.stored()]


def make_room(own: BlockCache, size: int) -> bool:
    return asyncio.run(own.make_room(size, ()))


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_AT_A_TIME", 2)
    monkeypatch.setattr(cache, "_PATIENCE", 30.0)  # a loaded machine takes long for little


def test_processes_share_the_copy_of_one_version(folder: Path) -> None:
    own, other = BlockCache(folder, 10 * BLOCK), BlockCache(folder, 10 * BLOCK)
    copy = filled(own, "a", 2)
    assert own.open("s3://b/a", '"1"', 2 * BLOCK) is copy
    assert blocks(other.open("s3://b/a", '"1"', 2 * BLOCK)) == [0, 1]
    assert blocks(other.open("s3://b/a", '"2"', 2 * BLOCK)) == []
    assert other.used() == own.used() == 2 * BLOCK


@pytest.mark.usefixtures("few_at_a_time")
class TestEviction:
    def test_without_an_order_the_oldest_go_first(self, folder: Path) -> None:
        """But the index of a set and blocks on their way stay."""
        own, copy = full(folder, 7)
        assert asyncio.run(own.reserve(BLOCK, ()))
        assert blocks(copy) == [2, 3, 4, 5, 6]
        assert own.used() == 6 * BLOCK
        copy.kept.add(2)
        assert asyncio.run(own.reserve(2 * BLOCK, {(copy, 4)}))
        assert blocks(copy) == [2, 4, 6]

    def test_with_an_order_the_newest_that_is_not_needed(self, folder: Path) -> None:
        class Coming:
            def blocks(self) -> set[tuple[str, int]]:
                return {("s3://b/a", 3), ("s3://b/other", 1)}

        (own, copy), coming = full(folder, 5), Coming()
        own.add_needs(coming)
        assert make_room(own, BLOCK)
        assert blocks(copy) == [0, 1, 3]

    def test_copies_that_nobody_has_open_go_before_all_others(self, folder: Path) -> None:
        own = BlockCache(folder, 6 * BLOCK)
        filled(own, "older", 1)
        ((older, _),) = own.files()
        filled(own, "old", 1)
        os.utime(older, (1, 1))
        copy = filled(own, "a", 4)
        assert make_room(own, BLOCK)
        assert not older.exists()
        assert len(blocks(copy)) == 4
        assert own.used() == pytest.approx(5 * BLOCK, abs=16 << 10)  # files have a table, too

    def test_copies_that_another_process_has_open_are_not_touched(self, folder: Path) -> None:
        _other, theirs = full(folder, 4)
        own = BlockCache(folder, 4 * BLOCK)
        assert not asyncio.run(own.reserve(BLOCK, ()))
        assert blocks(theirs) == [0, 1, 2, 3]

    def test_a_block_that_another_process_stores_is_left_out(self, folder: Path) -> None:
        own, copy = full(folder, 3)
        fd = os.open(own.files()[0][0], os.O_RDWR)
        assert cache.try_lock(fd, 0)
        assert make_room(own, BLOCK)
        assert blocks(copy) == [0, 2]
        os.close(fd)

    def test_it_waits_for_what_is_being_read(self, folder: Path) -> None:
        (own, copy), other = full(folder, 3), BlockCache(folder, 3 * BLOCK)
        before, seen, entered = os.pread(copy.fd, BLOCK, 0), list[bytes](), threading.Event()

        def read() -> None:
            with other.holding():
                entered.set()
                time.sleep(0.2)
                seen.append(os.pread(copy.fd, BLOCK, 0))

        at_once(read, lambda: entered.wait() and make_room(own, BLOCK))
        assert seen == [before]
        assert blocks(copy) == [2]

    def test_it_is_given_up_if_something_is_read_for_long(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache, "_PATIENCE", 0.05)
        (own, copy), other = full(folder, 3), BlockCache(folder, 3 * BLOCK)
        before = own.evictions()
        with other.holding():
            assert not make_room(own, BLOCK)
        assert blocks(copy) == [0, 1, 2]
        assert own.evictions() > before
        assert copy.is_here(0, own.evictions())
        assert own.used() == 3 * BLOCK
        assert not make_room(own, BLOCK)  # not asked again at once
        monkeypatch.setattr(cache, "_PAUSE", 0.0)
        own._hopeless_until = 0.0
        assert make_room(own, BLOCK)

    def test_a_file_system_without_holes_frees_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object) -> None:
            raise OSError(95, "not supported")

        own, copy = full(folder, 3)
        monkeypatch.setattr(SparseCopy, "free", refused)
        assert not make_room(own, BLOCK)
        assert copy.size == 3 * BLOCK
        assert own.used() == 3 * BLOCK

    def test_a_reader_that_begins_later_is_not_waited_for(self, folder: Path) -> None:
        (own, copy), other = full(folder, 3), BlockCache(folder, 3 * BLOCK)
        started, done = threading.Event(), threading.Event()

        def read() -> None:
            while not done.is_set():
                with other.holding():
                    started.set()
                    time.sleep(0.005)

        def evict() -> None:
            started.wait()
            make_room(own, BLOCK)
            done.set()

        at_once(read, read, read, evict)
        assert blocks(copy) == [2]


def test_copies_that_threads_open_and_drop_keep_their_files_open(folder: Path) -> None:
    """A copy that is just being dropped is never given out again with a closed descriptor."""
    own, wrong = BlockCache(folder, 10 * BLOCK), list[str]()

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(600):
            name = chance.choice("abc")
            copy = own.open(f"s3://b/{name}", '"1"', BLOCK)
            found = copies.description_of(copy.fd)
            if found is None or found["url"] != f"s3://b/{name}":
                wrong.append(name)

    at_once(*(partial(use, seed) for seed in range(3)))
    assert wrong == []


def test_a_full_disk_is_an_error_and_no_endless_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "full")

    own = BlockCache(folder, 10 * BLOCK)
    monkeypatch.setattr(cache, "prepare", no_space)
    with pytest.raises(OSError, match="full"):
        own.open("s3://b/a", '"1"', BLOCK)
    monkeypatch.undo()
    with pytest.raises(OSError, match="too long"):
        own.open("s3://b/" + 5000 * "a", '"1"', BLOCK)
    assert own.files() == []


def test_memory_is_free_again_when_a_copy_is_closed() -> None:
    own = BlockCache(None, 4 * BLOCK)
    copy = filled(own, "a", 3)
    assert own.used() >= 3 * BLOCK
    del copy
    assert own.used() == 0


def test_what_a_killed_process_left_wrong_is_counted_again(folder: Path) -> None:
    own = BlockCache(folder, 10 * BLOCK)
    copy = filled(own, "a", 2)
    assert asyncio.run(own.reserve(5 * BLOCK, ()))  # and never stored
    assert BlockCache(folder, 10 * BLOCK).used() == 7 * BLOCK  # another process is at work
    del own, copy
    assert 2 * BLOCK <= BlockCache(folder, 10 * BLOCK).used() < 2.5 * BLOCK


def test_the_default_limit_is_a_part_of_the_disk(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    disk = os.statvfs(folder)
    assert BlockCache(folder, None).limit == pytest.approx(0.8 * disk.f_bavail * disk.f_frsize, rel=0.2)


class TestCurrent:
    def test_it_is_in_the_folder_of_the_variable_and_private(self, folder: Path) -> None:
        own = cache.current()
        assert own is cache.current()
        assert own.folder == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        own.open("s3://b/a", "1", 5)
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())

    def test_the_size(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for text, limit in (("64KiB", 65536), ("0", 0), ("2GB", 2_000_000_000)):
            monkeypatch.setenv(cache.SIZE, text)
            assert cache.current().limit == limit
        monkeypatch.setenv(cache.SIZE, "much")
        with pytest.raises(OptionError, match="IOFAST_CACHE_SIZE must be a number of bytes"):
            cache.current()

    def test_a_removed_folder_is_made_again(self, folder: Path) -> None:
        own = cache.current()
        copy = filled(own, "a", 1)
        shutil.rmtree(folder)
        assert cache.current() is not own
        assert folder.exists()
        with own.holding() as evictions:
            assert copy.is_here(0, evictions)

    @pytest.mark.parametrize("kind", ["file", "open to others", "read-only"])
    def test_a_folder_that_cannot_be_used_is_replaced_by_memory(
        self, folder: Path, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        if kind == "file":
            folder.touch()
        else:
            folder.mkdir(mode=0o700)
            if kind == "read-only":
                (folder / "lock").mkdir()  # root ignores modes
            else:
                folder.chmod(0o777)
        own = cache.current()
        assert own.folder is None
        assert "cannot keep copies of stored objects" in caplog.text
        copy = filled(own, "a", 2)
        assert blocks(copy) == [0, 1]
        assert os.pread(copy.fd, BLOCK, 0) == random.Random(0).randbytes(BLOCK)

    def test_a_fork_is_refused(self, folder: Path) -> None:
        own = cache.current()

        def refused() -> bool:
            with pytest.raises(StateError, match="cannot be read in a fork of a process that has read them"):
                own.holding().__enter__()
            return True

        assert in_child(refused) == 0
