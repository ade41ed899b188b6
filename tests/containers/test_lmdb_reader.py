"""The LMDB reader: files changed by other programs, or damaged; fields; threads, forks and renames."""

import gc
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import google_crc32c
import lmdb
import numpy as np
import pytest
from lmdb_containers import build, compact, copy, expected, put_another, read_all, sample, samples

from iofast.containers import lmdb as reading
from iofast.containers import lmdb_writer
from iofast.containers.columns import ABSENT
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, UnfinishedError
from iofast.record import ImageInfo

# Other programs.


def test_plain_lmdb_reads_it(lmdb_file: Path) -> None:
    with lmdb.open(str(lmdb_file), subdir=False, readonly=True, lock=False) as environment, environment.begin() as txn:
        assert txn.get(b"00000042.jpg") == next(f for p, f, _, _ in samples() if p == 42)["jpg"]
        keys = [key for key, _ in txn.cursor() if not key.startswith(b"__iofast__")]
        assert keys == [f"{r.key}.{name}".encode() for r in expected(samples()) for name in r.fields]
        LmdbReader(lmdb_file).record(3)  # beside an environment that the user holds open


@pytest.mark.parametrize("change", [compact, put_another])
def test_right_data_after_a_change(
    lmdb_file: Path, tmp_path: Path, change: Callable[[Path, lmdb.Environment], None]
) -> None:
    path = copy(lmdb_file, tmp_path)
    before = LmdbReader(lmdb_file).locate(np.arange(300), "jpg")
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26) as environment:
        change(path, environment)
    reader = LmdbReader(path)
    assert read_all(reader) == expected(samples())
    if os.fork() == 0:
        os._exit(0 if reader.record(1) == pickle.loads(pickle.dumps(reader)).record(1) == expected(samples())[1] else 1)
    assert os.wait()[1] == 0
    if change is compact:
        assert (reader.locate(np.arange(300), "jpg").offset != before.offset).any()


def test_a_change_while_open(lmdb_file: Path, tmp_path: Path) -> None:
    path = copy(lmdb_file, tmp_path)
    reader = LmdbReader(path)
    reader.locate(np.arange(300))
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26) as environment:
        for _ in range(4):  # so that pages of the first state are used again
            put_another(path, environment)
    assert read_all(reader) == expected(samples())


def test_changed_and_deleted_payloads_are_damage(lmdb_file: Path, tmp_path: Path) -> None:
    path = copy(lmdb_file, tmp_path)
    with lmdb.open(str(path), subdir=False, lock=False) as environment, environment.begin(write=True) as txn:
        txn.put(b"00000003.json", b"{}")
        txn.delete(b"00000004.json")
    reader = LmdbReader(path)
    assert reader.record(5) == expected(samples())[5]
    for record in (3, 4):
        with pytest.raises(ContainerError, match=f"0000000{record}: json at offset .* is damaged"):
            reader.record(record)
    located = reader.locate(np.arange(6), "json")  # in a batch, only these rows fail, by their checksums
    with reader.payloads(located, 3, 5) as (fds, offsets, lengths, crcs, *_):
        assert crcs is not None
        for fd, offset, length, crc in zip(fds, offsets, lengths, crcs, strict=True):
            assert google_crc32c.value(os.pread(int(fd), int(length), int(offset))) != crc


@pytest.mark.parametrize("key", [b"a", b""])
def test_a_file_of_another_program_is_named(tmp_path: Path, key: bytes) -> None:
    with lmdb.open(str(tmp_path / "x"), subdir=False, lock=False) as environment, environment.begin(write=True) as txn:
        if key:
            txn.put(key, b"b")
    with pytest.raises(UnfinishedError, match="no iofast manifest: made by another program"):
        LmdbReader(tmp_path / "x")


def test_killed_between_reserving_and_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_writer.LmdbWriter, "_indexed", _killed)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", [sample(0)])
    with pytest.raises(UnfinishedError, match="never finished"):
        LmdbReader(tmp_path / "out")


def _killed(*_: object) -> NoReturn:
    raise KeyboardInterrupt


# Damage.


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, ""),
        (0.001, ""),
        *((share, r" is truncated: \d+ bytes, expected \d+$") for share in (0.1, 0.5, 0.9, 0.9999)),
    ],
)
def test_truncation_is_named(lmdb_file: Path, tmp_path: Path, share: float, message: str) -> None:
    path = copy(lmdb_file, tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ContainerError, match=f"^{path}{message}"):
        LmdbReader(path)


def test_truncation_after_opening_is_an_error_and_no_signal(lmdb_file: Path, tmp_path: Path) -> None:
    path = copy(lmdb_file, tmp_path)
    reader = LmdbReader(path)
    reader.locate(np.arange(300))
    os.truncate(path, 8192)
    for read in (lambda: reader.locate(np.arange(3)), lambda: reader.view(0), lambda: reader.record(299)):
        with pytest.raises(ContainerError, match="truncated while it was open: 8192 bytes"):
            read()


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (16, "<I", 0xDEADBEEF, "magic 0xdeadbeef"),
        (20, "<I", 999, "data format 999"),
        (40, "<I", 3000, "page size 3000"),
        (136, "<Q", 1 << 60, "last page"),
    ],
)
def test_wrong_meta_pages_are_named(
    lmdb_file: Path, tmp_path: Path, at: int, layout: str, value: int, message: str
) -> None:
    path = copy(lmdb_file, tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, at, value)
    path.write_bytes(data)
    with pytest.raises(ContainerError, match=message):
        LmdbReader(path)


# Fields.


def test_fields_that_some_records_lack(tmp_path: Path) -> None:
    build(tmp_path / "out", [
        (0, {"png": b"p0", "seg.png": b"s0"}, ImageInfo(), "all"),
        (1, {"jpg": b"j1", "png": b"p1"}, ImageInfo(), "all"),
        (2, {"txt": b"t2"}, ImageInfo(), "all"),
        (3, {"webp": b"w3"}, ImageInfo(), "all"),
    ])  # fmt: skip
    reader = LmdbReader(tmp_path / "out")
    assert [bytes(reader.view(i)) for i in (0, 1, 3)] == [b"p0", b"j1", b"w3"]  # each record's own image
    located = reader.locate(np.arange(4))
    assert located.file.tolist() == [0, 0, ABSENT, 0]
    assert (located.offset[2], located.length[2]) == (0, 0)
    with pytest.raises(KeyError, match="00000002 has no image"):
        reader.view(2)
    with pytest.raises(KeyError, match="00000001 has no field 'txt'"):
        reader.view(1, "txt")
    with pytest.raises(KeyError, match="no field 'rgb', only jpg, png"):
        reader.locate(np.arange(2), "rgb")
    assert reader.record(1).fields == {"jpg": b"j1", "png": b"p1"}


# Processes and threads.


def test_many_threads_open_and_close_at_will(lmdb_file: Path) -> None:
    reader, right = LmdbReader(lmdb_file), expected(samples())
    stop = threading.Event()

    def close_often() -> None:
        while not stop.wait(0.001):
            reader.close()

    def read(seed: int) -> None:
        for indices in np.random.default_rng(seed).integers(0, 300, (60, 16)):
            located = reader.locate(indices, "jpg")
            with reader.payloads(located, 0, 16) as (fds, offsets, lengths, *_):
                for i, fd, offset, length in zip(indices, fds, offsets, lengths, strict=True):
                    assert os.pread(int(fd), int(length), int(offset)) == right[i].fields["jpg"]
            assert reader.record(int(indices[0])) == right[indices[0]]

    with ThreadPoolExecutor(9) as pool:
        closing = pool.submit(close_often)
        list(pool.map(read, range(8)))
        stop.set()
        closing.result()


def test_descriptors_are_given_back(lmdb_file: Path) -> None:
    def count() -> int:
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == str(lmdb_file) for link in links)

    gc.collect()  # readers in tracebacks of earlier tests
    before = count()
    for _ in range(20):
        with LmdbReader(lmdb_file) as reader:
            view = reader.view(5)
    del reader
    with pytest.raises(ContainerError):
        LmdbReader(Path("/dev/null"))
    right = bytes(view)
    assert right == samples()[5][1]["jpg"]  # a view outlives its reader
    del view
    assert count() == before


def test_replaced_by_rename_while_open(lmdb_file: Path, tmp_path: Path) -> None:
    """A running job continues with the dataset that it opened."""
    path = copy(lmdb_file, tmp_path)
    reader = LmdbReader(path)
    build(tmp_path / "new", [sample(0)])
    os.replace(tmp_path / "new", path)
    assert read_all(reader) == expected(samples())


def test_no_uninitialised_memory_in_the_file(tmp_path: Path) -> None:
    """glibc fills fresh memory with a byte of our choice: it must not reach the file."""
    program = """
import random, sys
from iofast.containers.lmdb import LmdbWriter
from iofast.containers.manifest import Description
from iofast.containers.writer import Section
from iofast.record import ImageInfo
rng, writer = random.Random(0), LmdbWriter(*sys.argv[1:], Description())
writer.begin(Section(0, "all", 0, 3000))
for i in range(3000):
    fields = {"jpg": rng.randbytes(rng.choice((10, 1900, 2100, 9000))), "cls": b"1"}
    writer.write(i, fields, ImageInfo(1))
writer.finish()
"""
    for byte in ("85", "170"):
        environment = {**os.environ, "MALLOC_PERTURB_": byte}
        command = [sys.executable, "-c", program, str(tmp_path), byte]
        subprocess.run(command, env=environment, check=True, timeout=60)
        (tmp_path / "rows-000000").unlink()
    assert (tmp_path / "85").read_bytes() == (tmp_path / "170").read_bytes()


@pytest.mark.parametrize("name", ["read_meta", "Tree"])
def test_a_commit_while_the_file_is_opened_is_noticed(
    lmdb_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After the meta pages were read, and after the tree was opened: places of the old tree must not be used."""
    path, calls, real = copy(lmdb_file, tmp_path), [], getattr(reading, name)

    def then_commit(*arguments: object) -> object:
        result = real(*arguments)
        if not calls:
            with lmdb.open(str(path), subdir=False, map_size=1 << 26, lock=False) as environment:
                put_another(path, environment)
        calls.append(arguments)
        return result

    monkeypatch.setattr(reading, name, then_commit)
    with LmdbReader(path) as reader:
        assert bytes(reader.view(0))
        assert reader.index_is_stale
    assert len(calls) > 1
