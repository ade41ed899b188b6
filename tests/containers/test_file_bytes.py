"""The bytes of an open file: like `bytes`, and an error if the file shrinks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lmdb_containers import build, sample

from iofast.containers.file_bytes import FileBytes
from iofast.errors import ContainerError

DATA = np.random.default_rng(0).bytes(3 * 4096 + 100)


@pytest.fixture
def own(tmp_path: Path) -> FileBytes:
    (tmp_path / "own").write_bytes(DATA)
    return FileBytes(str(tmp_path / "own"))


def test_slices_are_those_of_bytes(own: FileBytes) -> None:
    assert len(own) == len(DATA)
    for part in (slice(0, 5), slice(4090, 8200), slice(None, 7), slice(12_000, None), slice(5, 5), slice(9, 2)):
        assert own[part] == DATA[part]
    assert own[len(DATA) - 3 : len(DATA) + 50] == DATA[-3:]


@pytest.mark.parametrize("size", [1, 58, 4097])
def test_gather_gives_the_bytes_at_each_offset(own: FileBytes, size: int) -> None:
    end = len(DATA) - size
    random = np.random.default_rng(size).integers(0, end + 1, 2000)
    runs = np.array([0, size, 2 * size, 0, 0, end, end - size, end]).clip(0, end)
    for offsets in (random, np.sort(random), runs, random[:1], random[:0], random[::3]):
        rows = own.gather(offsets, size)
        assert (rows.shape, rows.dtype) == ((len(offsets), size), np.uint8)
        assert [row.tobytes() for row in rows] == [DATA[at : at + size] for at in offsets.tolist()]


@pytest.mark.parametrize("left", [0, 50, 4096, 8000])
def test_a_file_that_shrinks_is_an_error(own: FileBytes, left: int) -> None:
    """Within a page too, where a map would show zeros."""
    os.truncate(own.path, left)
    message = re.escape(f"{own.path} was truncated while it was open: {left} bytes, expected {len(DATA)}")
    with pytest.raises(ContainerError, match=message):
        own.check_size()
    with pytest.raises(ContainerError, match=message):
        own[left - left % 100 : left + 8]
    for offsets in ([left], [0, 12_000], [left - 10, left], [12_000 - 60, 12_000 - 30, 12_000]):
        with pytest.raises(ContainerError, match=message):
            own.gather(np.array(offsets).clip(0), 30)
    if left:
        assert own[: left - 1] == DATA[: left - 1]
        assert own.gather(np.array([left - 30]), 30).tobytes() == DATA[left - 30 : left]


def test_rows_that_a_file_cannot_have(own: FileBytes) -> None:
    for offset in (len(DATA) - 29, len(DATA), (1 << 63) - 1, (1 << 63) - 31):
        with pytest.raises(ContainerError):
            own.gather(np.array([0, offset]), 30)
    with pytest.raises(ValueError, match="one byte or more"):
        own.gather(np.array([0]), 0)


def test_a_file_that_cannot_be_read(own: FileBytes, tmp_path: Path) -> None:
    real, folder = own.fd, os.open(tmp_path, os.O_RDONLY)
    own.fd = folder  # reading a directory fails as a broken disk does: an errno, no bytes
    try:
        for read in (lambda: own[0:5], lambda: own.gather(np.array([0, 10]), 5)):
            with pytest.raises(ContainerError, match=f"{own.path} cannot be read.*: Is a directory"):
                read()
    finally:
        own.fd = real
        os.close(folder)


def test_a_read_may_give_less_than_asked_for(own: FileBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 1000), offset))
    assert own[5:9000] == DATA[5:9000]


TRUNCATED = """
import faulthandler, os, random, shutil, sys, threading, time
import numpy as np
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError

faulthandler.enable()
names, surprises, refused = [f"{sys.argv[1]}-{number}" for number in range(20)], [], []

def use(reader, how, seed):
    chance = np.random.default_rng(seed)
    try:
        while True:
            how(reader, chance.integers(0, 400, 32))
    except ContainerError as error:
        refused.append(reader.path in str(error))  # a sum would lose counts of threads
    except BaseException as error:
        surprises.append(error)

def values(reader, indices):
    located = reader.locate(indices, "jpg")
    with reader.payloads(located, 0, 32) as places:
        [os.pread(*each) for each in zip(places.fds.tolist(), places.lengths.tolist(), places.offsets.tolist())]
    reader.values(indices, "jpg")

HOW = [lambda reader, indices: reader.locate(indices), lambda reader, indices: reader.view(int(indices[0])),
       lambda reader, indices: LmdbReader(reader.path).record(int(indices[0])), values]
for seed, name in enumerate(names):
    shutil.copy(sys.argv[1], name)
    reader = LmdbReader(name)
    threads = [threading.Thread(target=use, args=(reader, how, seed)) for how in HOW]
    for thread in threads:
        thread.start()
    time.sleep(random.Random(seed).random() * 0.01)
    size = os.path.getsize(name)
    while size:  # page by page and in leaps, so that every read of a call has a chance to be the one
        size = max(0, size - random.Random(size + seed).choice([1, 100, 4096, 9000, 200_000]))
        os.truncate(name, size)
    for thread in threads:
        thread.join()
    os.unlink(name)
print(sum(refused), surprises)
"""


def test_truncation_under_reading_threads_is_never_a_signal(tmp_path: Path) -> None:
    build(tmp_path / "own", [sample(position) for position in range(400)])
    command = [sys.executable, "-c", TRUNCATED, str(tmp_path / "own")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "80 []\n", "")
