"""The LMDB container: equal bytes from several transactions, index chunks, large payloads, full disks."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from lmdb_containers import build, expected, read_all, sample

from iofast.containers import lmdb_writer
from iofast.containers.base import Description
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.errors import TargetError
from iofast.record import ImageInfo


def test_same_records_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several transactions and map sizes, a different field order in the mapping, other memory contents before."""
    monkeypatch.setattr(lmdb_writer, "TRANSACTION_BYTES", 1 << 18)
    monkeypatch.setattr(lmdb_writer, "MAP_SLACK", 1 << 16)
    monkeypatch.setattr(lmdb_writer, "MAP_STEP", 1 << 19)
    many = [sample(i) for i in range(1200)]
    build(tmp_path / "a", many)
    junk = [random.Random(1).randbytes(5000) for _ in range(3000)]  # so that fresh memory is not all zeros
    del junk
    build(tmp_path / "b", [(p, dict(reversed(f.items())), i, s) for p, f, i, s in many])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_all(LmdbReader(tmp_path / "a")) == expected(many)
    with lmdb.open(str(tmp_path / "a"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.info()["last_txnid"] > 10
        assert environment.info()["map_size"] > 1 << 20


def test_more_than_one_index_chunk(tmp_path: Path) -> None:
    """Right data, and opening and locating cost no more than with few records."""

    def written(count: int) -> LmdbReader:
        records = [(i * 2, {"jpg": b"%d" % (i % 10)}, ImageInfo(), "all") for i in range(count)]
        build(tmp_path / str(count), records)
        return LmdbReader(tmp_path / str(count))

    def seconds(reader: LmdbReader) -> tuple[float, float]:
        chosen = np.random.default_rng(0).integers(0, len(reader), 256)
        reader.locate(chosen)
        return _fastest(lambda: LmdbReader(reader.path)), _fastest(lambda: reader.locate(chosen))

    few, many = written(500), written(count := 65_536 + 300)
    order = np.random.default_rng(0).permutation(count)
    assert (many.positions(order) == order * 2).all()
    assert [bytes(many.view(i)) for i in (0, 65_535, 65_536, count - 1)] == [b"0", b"5", b"6", b"5"]
    for few_seconds, many_seconds in zip(seconds(few), seconds(many), strict=True):
        assert many_seconds < 5 * few_seconds + 2e-3  # 130 times the records


def _fastest(run: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(once() for _ in range(9))


def test_large_payload_beside_small_transactions(tmp_path: Path) -> None:
    """A record larger than a transaction, and the map grown for it."""
    large = [sample(0, 10), sample(1, 40 << 20), sample(2, 10)]
    build(tmp_path / "out", large)
    assert LmdbReader(tmp_path / "out").record(1).fields["jpg"] == large[1][1]["jpg"]


# What a writer refuses.


def test_writer_does_not_touch_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(TargetError, match="file exists"):
        LmdbWriter(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"precious"
    with pytest.raises(TargetError, match="no such file or directory"):
        LmdbWriter(tmp_path / "nowhere" / "out")


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """A file-size limit stands in for the disk: LMDB sees a failing write either way."""
    context = multiprocessing.get_context("fork")
    there, here = context.Pipe()
    child = context.Process(target=_fill_disk, args=(tmp_path / "out", there))
    child.start()
    message = here.recv() if here.poll(30) else "nothing"
    child.join(30)
    assert child.exitcode == 0
    assert "cannot be written" in message
    assert "\n" not in message


def _fill_disk(path: Path, answer: multiprocessing.connection.Connection) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))
    writer = LmdbWriter(path)
    try:
        for position in range(100):
            writer.write(position, {"jpg": bytes(1 << 20)}, ImageInfo(), "all")
        writer.finish(Description())
    except TargetError as error:
        answer.send(str(error))
    writer.abort()


def test_a_part_of_far_positions(tmp_path: Path) -> None:
    part, whole = LmdbWriter(tmp_path / "part.lmdb", key_width=20), LmdbWriter(tmp_path / "whole.lmdb", key_width=20)
    positions = [(1 << 60) + 3 * number for number in range(50)]  # a float64 cannot tell neighbours apart
    for position in positions:
        part.write(position, {"txt": b"%d" % position}, ImageInfo(), "all")
    part.finish(Description())
    with LmdbReader(tmp_path / "part.lmdb") as reader:
        whole.join(reader)
    whole.finish(Description())
    with LmdbReader(tmp_path / "whole.lmdb") as reader:
        assert reader.positions(np.arange(len(reader))).tolist() == positions
        assert reader.record(5).fields == {"txt": b"%d" % positions[5]}
