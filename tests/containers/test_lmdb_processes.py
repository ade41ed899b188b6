"""The LMDB reader over fields, processes, threads, forks and renames."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest
from lmdb_containers import build, copy, expected, put_another, read_all, sample, samples

from iofast.containers.columns import ABSENT
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError
from iofast.record import ImageInfo, Record

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


def test_records_without_any_image(tmp_path: Path) -> None:
    build(tmp_path / "out", [(0, {"txt": b"t"}, ImageInfo(), "all")])
    with pytest.raises(KeyError, match="no image field, only txt"):
        LmdbReader(tmp_path / "out").locate(np.arange(1))


# Processes and threads.


def _child(reader: LmdbReader, answer: multiprocessing.connection.Connection) -> None:
    answer.send([(record.key, record.fields) for record in reader])
    answer.close()


@pytest.mark.parametrize(("method", "moved"), [("fork", False), ("fork", True), ("spawn", True)])
def test_readers_cross_processes(lmdb_file: Path, tmp_path: Path, method: str, moved: bool) -> None:
    path = copy(lmdb_file, tmp_path)
    if moved:
        with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26) as environment:
            put_another(path, environment)
    reader = LmdbReader(path)
    reader.record(0)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(reader, there))
    child.start()
    assert here.poll(60)
    assert [Record(*pair) for pair in here.recv()] == expected(samples())
    child.join(30)
    assert child.exitcode == 0
    assert reader.record(1) == expected(samples())[1]


def test_many_threads_open_and_close_at_will(lmdb_file: Path) -> None:
    reader, right = LmdbReader(lmdb_file), expected(samples())
    stop = threading.Event()

    def close_often() -> None:
        while not stop.is_set():
            reader.close()
            time.sleep(0.001)

    def read(seed: int) -> int:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            indices = rng.integers(0, 300, 16)
            located = reader.locate(indices, "jpg")
            with reader.payloads(located, 0, 16) as (fds, offsets, lengths, *_):
                for i, fd, offset, length in zip(indices, fds, offsets, lengths, strict=True):
                    assert os.pread(int(fd), int(length), int(offset)) == right[i].fields["jpg"]
            assert reader.record(int(indices[0])) == right[indices[0]]
        return seed

    closer = threading.Thread(target=close_often)
    closer.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(read, range(8))) == list(range(8))
    finally:
        stop.set()
        closer.join()


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
    from iofast.containers import lmdb as reading

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
