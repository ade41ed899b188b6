"""LMDB files changed by other programs, or damaged: right data, or an error that names the place."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import google_crc32c
import lmdb
import numpy as np
import pytest
from lmdb_containers import build, compact, copy, expected, put_another, read_all, sample, samples

from iofast.containers import lmdb_writer
from iofast.containers.lmdb import LmdbReader
from iofast.errors import ContainerError, UnfinishedError

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


def test_foreign_lmdb_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "foreign")
    with lmdb.open(path, subdir=False, lock=False) as environment, environment.begin(write=True) as txn:
        txn.put(b"a", b"b")
    with pytest.raises(UnfinishedError, match="no iofast manifest: made by another program"):
        LmdbReader(tmp_path / "foreign")


def test_an_empty_lmdb_is_named(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "empty"), subdir=False, lock=False).close()
    with pytest.raises(UnfinishedError, match="no iofast manifest"):
        LmdbReader(tmp_path / "empty")


def test_killed_between_reserving_and_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_writer.LmdbWriter, "_indexed", _killed)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", [sample(0)])
    with pytest.raises(UnfinishedError, match="never finished"):
        LmdbReader(tmp_path / "out")


def _killed(*_: object) -> NoReturn:
    raise KeyboardInterrupt


# Damage.


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_truncation_is_named(lmdb_file: Path, tmp_path: Path, share: float) -> None:
    path = copy(lmdb_file, tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ContainerError, match=f"{path}.*"):
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
