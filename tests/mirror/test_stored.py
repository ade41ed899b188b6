"""Objects read through their copies: always the object's bytes, each fetched once, by threads and processes at once."""

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web_server
from at_once import at_once
from small_blocks import BLOCK
from todays import todays

from iofast.containers.stored_bytes import StoredBytes
from iofast.errors import ObjectConflictError, ObjectMissingError
from iofast.mirror import cache, fetching
from iofast.mirror.cache import BlockCache
from iofast.mirror.copies import SparseCopy
from iofast.mirror.stored import StoredObject, Wanted, fetch_again, held
from iofast.remote import requests

Served = Callable[..., str]

pytestmark = pytest.mark.usefixtures("small_blocks", "folder")


def opened(served: Served, size: int, name: str = "a") -> tuple[StoredObject, bytes]:
    """An object of random bytes, and these bytes."""
    return StoredObject(served(name, size)), random.Random(name).randbytes(size)


def counts(stored: StoredObject) -> dict[str, int]:
    """Requests and bytes of the server so far."""
    return web_server.counts(stored.url.rpartition("/")[0])


def test_bytes_are_those_of_the_object_and_fetched_once(served: Served) -> None:
    size = 5 * BLOCK + 77
    stored, data = opened(served, size)
    for start, stop in ((0, 10), (BLOCK - 5, BLOCK + 5), (4 * BLOCK, size + 100), (0, size), (size, size + 1), (7, 7)):
        assert stored.read(start, stop) == data[start:stop]
    assert counts(stored) == {"HEAD": 1, "GET": 6, "bytes": size}
    assert StoredObject(stored.url).read(0, size) == data
    assert counts(stored)["GET"] == 6


def test_a_missing_object(served: Served) -> None:
    with pytest.raises(ObjectMissingError, match=r"/b does not exist$"):
        StoredObject(served("a", 10).replace("/a", "/b"))


def test_a_changed_object_is_an_error_and_never_a_mixture(served: Served, tmp_path: Path) -> None:
    stored, data = opened(served, 3 * BLOCK)
    assert stored.read(0, 10) == data[:10]
    used = cache.current().used()
    (tmp_path / "objects" / "a").write_bytes(bytes(3 * BLOCK))
    with pytest.raises(ObjectConflictError, match=r"/a has changed$"):
        stored.read(BLOCK, BLOCK + 10)
    assert cache.current().used() == used, "no room is taken by what did not come"
    assert stored.read(0, 10) == data[:10]
    assert StoredObject(stored.url).read(0, 10) == bytes(10)


@pytest.mark.parametrize("limit", todays(["0", "100kB", "400kB", "10MB"]))
def test_many_threads_and_a_small_cache(served: Served, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv(cache.SIZE, limit)
    monkeypatch.setattr(cache, "_AT_A_TIME", 1)
    size = 20 * BLOCK + 5
    stored, data = zip(*(opened(served, size, name) for name in "ab"), strict=True)
    wrong = list[str]()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            wanted = []
            for _ in range(chance.randint(1, 6)):
                start = chance.randrange(size)
                wanted.append(Wanted(chance.choice(stored), start, min(size, start + chance.randint(1, 2 * BLOCK))))
            with held(wanted) as direct:
                for number, each in enumerate(wanted):
                    found = direct.get(number)
                    if found is None:
                        found = os.pread(each.object.copy.fd, each.stop - each.start, each.start)
                    if found != data[stored.index(each.object)][each.start : each.stop]:
                        wrong.append(f"{each.start} to {each.stop}")

    at_once(*(partial(read, seed) for seed in range(6)))
    assert wrong == []
    own = cache.current()
    assert own.used() <= own.limit
    assert sum(os.fstat(each.copy.fd).st_blocks * 512 for each in stored) <= own.limit + (64 << 10)


def test_a_block_that_is_being_evicted_is_not_stored_meanwhile(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored, data), own = opened(served, 4 * BLOCK), cache.current()
    assert stored.read(0, len(data)) == data
    ended, begun, go_on = BlockCache._holds_end, threading.Event(), threading.Event()

    async def slow(each: BlockCache) -> bool:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return await ended(each)

    monkeypatch.setattr(BlockCache, "_holds_end", slow)
    evicting = requests.start(own.make_room(BLOCK, (), anyway=True))
    begun.wait()
    found: list[bytes] = []
    at_once(lambda: found.append(stored.read(0, len(data))), lambda: go_on.wait(0.1) or go_on.set())
    assert evicting.result(10)
    assert found == [data]
    assert stored.read(0, len(data)) == data


def test_many_threads_gather_from_an_index_that_the_cache_cannot_keep(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.SIZE, "0")
    stored, whole = opened(served, 30 * BLOCK)
    file, data, wrong = StoredBytes(stored.url), np.frombuffer(whole, np.uint8), list[int]()

    def gather(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(15):
            offsets = chance.integers(0, len(data) - 24, 6)
            if not np.array_equal(file.gather(offsets, 24), data[offsets[:, None] + np.arange(24)]):
                wrong.append(seed)

    at_once(*(partial(gather, seed) for seed in range(4)))
    assert wrong == []


def test_a_full_disk_evicts_and_then_reads_past_the_cache(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored, data), room, store = opened(served, 6 * BLOCK), 3, SparseCopy.store

    def full(copy: SparseCopy, block: int, view: memoryview) -> None:
        if len(copy.stored()) >= room:
            raise OSError(errno.ENOSPC, "full")
        store(copy, block, view)

    monkeypatch.setattr(SparseCopy, "store", full)
    monkeypatch.setattr(cache, "_AT_A_TIME", 1)
    for start in (each * BLOCK for each in (0, 1, 2, 3, 4, 5, 0)):
        assert stored.read(start, start + BLOCK) == data[start : start + BLOCK]
    assert len(stored.copy.stored()) == 3
    room = 0
    monkeypatch.setattr(cache, "_PAUSE", 0.0)
    assert stored.read(2 * BLOCK, 3 * BLOCK) == data[2 * BLOCK : 3 * BLOCK]


def test_places_that_were_asked_for_early_are_taken_once(served: Served) -> None:
    stored, data = opened(served, 4 * BLOCK)
    places = [(stored.source, BLOCK + 10, BLOCK + 20), (stored.source, 5, 9)]
    requests.run(fetching.ask_early(places))
    assert stored.read(BLOCK + 10, BLOCK + 20) == data[BLOCK + 10 : BLOCK + 20]
    assert counts(stored)["GET"] == 2
    assert stored.copy.stored() == []
    requests.run(fetching.forget(places))
    assert not fetching.early
    assert stored.read(5, 9) == data[5:9]
    assert [block for block, _ in stored.copy.stored()] == [0]


class TestDamage:
    """Damage that a block has in its copy is mended in place."""

    def damaged(self, served: Served, blocks: int, block: int) -> tuple[StoredObject, bytes]:
        stored, data = opened(served, blocks * BLOCK)
        stored.read(0, stored.size)
        os.pwrite(stored.copy.fd, b"damage", block * BLOCK + 7)
        return stored, data

    def test_a_block_is_replaced_under_its_readers(self, served: Served) -> None:
        """Bytes of it that were right stay right all the time, and the others are right afterwards."""
        (stored, data), wrong, ended = self.damaged(served, 4, 1), list[int](), threading.Event()

        def read() -> None:
            while not ended.is_set():
                with held([Wanted(stored, BLOCK + 100, 2 * BLOCK)]) as direct:
                    if direct or os.pread(stored.copy.fd, BLOCK - 100, BLOCK + 100) != data[BLOCK + 100 : 2 * BLOCK]:
                        wrong.append(len(direct))

        def mend() -> None:
            for number in range(20):
                os.pwrite(stored.copy.fd, b"damage", BLOCK + 7)
                stored.copy.again.clear()
                fetch_again([Wanted(stored, BLOCK + 5, BLOCK + 15)])
                if stored.read(BLOCK, BLOCK + 20) != data[BLOCK : BLOCK + 20]:
                    wrong.append(number)
            ended.set()

        at_once(read, read, read, mend)
        assert wrong == []
        assert counts(stored)["GET"] == 4 + 20

    def test_it_is_fetched_once_for_all_readers_that_find_the_damage(self, served: Served) -> None:
        """At the same time, and later: bytes that stay damaged are so in the store."""
        stored, data = self.damaged(served, 3, 1)
        found = [requests.start(fetching.fetch_again([stored.block(1)])) for _ in range(5)]
        for each in found:
            each.result(10)
        assert stored.read(BLOCK, 2 * BLOCK) == data[BLOCK : 2 * BLOCK]
        fetch_again([Wanted(stored, BLOCK, 2 * BLOCK)])
        assert counts(stored)["GET"] == 3 + 1

    def test_a_fetch_that_is_on_its_way_does_not_count(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader sees a block before the task that stored it has ended."""
        (stored, data), store = opened(served, BLOCK), SparseCopy.store
        begun, go_on = threading.Event(), threading.Event()

        def slow(copy: SparseCopy, block: int, view: memoryview) -> None:
            store(copy, block, view)
            if not begun.is_set():
                os.pwrite(copy.fd, b"damage", 7)
                begun.set()
                go_on.wait()

        monkeypatch.setattr(SparseCopy, "store", slow)
        first = requests.start(fetching.bring([stored.block(0)]))
        begun.wait()
        second = requests.start(fetching.fetch_again([stored.block(0)]))
        go_on.set()
        assert first.result(10)
        second.result(10)
        assert stored.read(0, BLOCK) == data
        assert counts(stored)["GET"] == 2

    def test_a_full_disk_leaves_the_block_absent(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        (stored, data), pwrite = self.damaged(served, 3, 1), os.pwrite
        used = cache.current().used()

        def full(fd: int, view: Any, offset: int) -> int:
            if len(view) == BLOCK:
                raise OSError(errno.ENOSPC, "full")
            return pwrite(fd, view, offset)

        monkeypatch.setattr(os, "pwrite", full)
        with held([Wanted(stored, BLOCK, BLOCK + 1)]):
            fetch_again([Wanted(stored, BLOCK, BLOCK + 1)])
            assert os.pread(stored.copy.fd, 7, BLOCK) == data[BLOCK : BLOCK + 7], "its readers see no zeros"
        assert cache.current().used() == used
        assert [block for block, _ in stored.copy.stored()] == [0, 2]
        monkeypatch.setattr(os, "pwrite", pwrite)
        assert stored.read(0, stored.size) == data

    def test_a_store_that_fails_does_not_hide_the_damage(self, served: Served, tmp_path: Path) -> None:
        stored, data = self.damaged(served, 1, 0)
        served("a", BLOCK + 1)  # another version
        fetch_again([Wanted(stored, 0, BLOCK)])
        assert stored.read(0, 20) != data[:20]
        (tmp_path / "objects" / "a").unlink()
        stored.copy.again.clear()
        fetch_again([Wanted(stored, 0, BLOCK)])


PROGRAM = """
import hashlib, sys
for module in ("mirror.copies", "mirror.cache", "mirror.stored", "containers.stored_bytes"):
    __import__(f"iofast.{module}"); sys.modules[f"iofast.{module}"].BLOCK = 64 << 10
from iofast.mirror.stored import StoredObject
stored = StoredObject(sys.argv[1])
print("begun", flush=True)
sys.stdin.readline()
print(hashlib.sha256(stored.read(0, stored.size)).hexdigest())
"""


def started(url: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-c", PROGRAM, url], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "begun\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_fetch_each_byte_once(served: Served) -> None:
    size = 40 * BLOCK
    url = served("a", size)
    processes = [started(url) for _ in range(4)]
    for each in processes:
        go(each)
    hashes = {each.communicate(timeout=60)[0] for each in processes}
    assert len(hashes) == 1
    assert counts(StoredObject(url)) == {"HEAD": 5, "GET": 40, "bytes": size}


def test_a_killed_process_does_not_delay_the_others(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds blocks whose requests the server does not answer before it is killed."""
    stored, data = opened(served, 40 * BLOCK)
    first, locks = started(stored.url), list[int]()
    fd = os.open(next(folder.glob("*.copy")), os.O_RDWR)
    go(first)
    while not (locks := [block for block in range(40) if block in cache.locked_elsewhere(fd, 0, 40)]):
        time.sleep(0.0005)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert stored.read(0, stored.size) == data
    assert [block for block, _ in stored.copy.stored()] == [*range(40)], f"its locks of {locks} stayed"
    os.close(fd)


def test_an_interrupt_leaves_the_block_to_others_who_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored, data), read = opened(served, BLOCK), fetching.ObjectVersion.read
    began, go_on = threading.Event(), threading.Event()

    async def slow(source: Any, start: int, stop: int) -> memoryview:
        began.set()
        await asyncio.to_thread(go_on.wait)
        return await read(source, start, stop)

    monkeypatch.setattr(fetching.ObjectVersion, "read", slow)
    one = requests.start(fetching.bring([stored.block(0)]))
    other = requests.start(fetching.bring([stored.block(0)]))
    began.wait()
    one.cancel()
    go_on.set()
    assert other.result(10)
    assert stored.read(0, 5) == data[:5]
    assert counts(stored)["GET"] == 1
