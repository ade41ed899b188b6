"""Arrays and strings of a listing, in memory and in files."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iofast.errors import SourceError
from iofast.source import arrays
from iofast.source.arrays import Strings, StringsWriter, empty, stable_order


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "large":
        monkeypatch.setattr(arrays, "_LARGE", 8)
        monkeypatch.setattr(arrays, "STEP", 3)


@given(st.lists(st.binary(max_size=9), max_size=30))
def test_strings_come_back(strings: list[bytes]) -> None:
    gathered = Strings.gather(strings)
    assert list(gathered) == strings
    assert [gathered[row] for row in range(len(strings))] == strings
    assert gathered.of(slice(len(strings) // 2, len(strings))) == strings[len(strings) // 2 :]
    assert [string for rows in gathered.steps() for string in gathered.of(rows)] == strings
    assert list(pickle.loads(pickle.dumps(gathered))) == strings
    assert bytes(gathered.blob) == b"".join(string + b"\0" for string in strings)


@given(st.lists(st.one_of(st.binary(max_size=9), st.lists(st.binary(max_size=9), max_size=5)), max_size=9))
def test_strings_one_by_one_and_many_at_once(given: list[bytes | list[bytes]]) -> None:
    writer, expected = StringsWriter(), []
    for each in given:
        if isinstance(each, bytes):
            writer.add(each)
            expected.append(each)
        else:
            ends = np.cumsum([len(string) + 1 for string in each]).astype(np.uint64)
            writer.extend(b"".join(string + b"\0" for string in each), ends)
            expected += each
    assert list(writer.finish()) == expected


@given(st.lists(st.integers(0, 4), max_size=30))
def test_order(ranks: list[int]) -> None:
    counts, order = stable_order(np.array(ranks, np.int32), 5)
    assert counts == [ranks.count(rank) for rank in range(5)]
    assert (order is None) == (ranks == sorted(ranks))
    if order is not None:
        assert order.tolist() == np.argsort(ranks, kind="stable").tolist()


def test_only_what_is_large_is_a_file_and_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    array = empty(1000, np.int64)
    array[:] = np.arange(1000)
    assert array.sum() == 499_500
    strings = Strings.gather([b"a", b"b" * 100])
    large = arrays._LARGE == 8
    assert isinstance(array.base, memoryview) == isinstance(strings.blob, memoryview) == large
    assert not os.listdir(tmp_path)


def test_steps_have_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    strings = Strings.gather([b"", b"ab", b"x" * 30, b"", b"", b""])
    monkeypatch.setattr(arrays, "_LARGE", 5)
    monkeypatch.setattr(arrays, "STEP", 3)
    assert [(rows.start, rows.stop) for rows in strings.steps()] == [(0, 2), (2, 3), (3, 6)]


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arrays, "_LARGE", 8)
    message = r"cannot be kept in a temporary file: the disk is full; TMPDIR names another folder"
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(SourceError, match=message):
            empty(10, np.int64)
    with monkeypatch.context() as patch, Path("/dev/full").open("wb", buffering=0) as device:
        patch.setattr(tempfile, "TemporaryFile", lambda **_: device)
        with pytest.raises(SourceError, match=message):
            Strings.gather([b"a" * 9])
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(SourceError, match=message):
            Strings.gather([b"a"] * 10)


def test_a_file_system_that_cannot_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(arrays, "_LARGE", 8)
    monkeypatch.setattr(os, "posix_fallocate", unable, raising=False)
    array = empty(10, np.int64)
    array[:] = 3
    assert array.sum() == 30
