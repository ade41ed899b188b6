"""The LMDB container: right data, the same bytes for the same records, and what a writer refuses."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lmdb_containers import Fields, build, expected, read_all, sample, samples

from iofast.containers import lmdb_writer
from iofast.containers.base import Description
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.errors import ContainerError, TargetError
from iofast.record import ImageInfo


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records with holes in their keys, two splits, large and small payloads. Not to be changed."""
    path = tmp_path_factory.mktemp("lmdb") / "out.lmdb"
    build(path, samples(), Description(classes=tuple("abcdefg"), recipe={"resize": 256}, seed=3))
    return path


def test_round_trip(container: Path) -> None:
    with LmdbReader(container) as reader:
        assert read_all(reader) == expected(samples())
        located = reader.locate(np.arange(300))
        for i, (position, _, info, _) in enumerate(samples()):
            row = (located.position[i], located.label[i], located.width[i], located.height[i], located.orientation[i])
            assert row == (position, info.label, info.width, info.height, info.orientation)
            assert reader.name(i) == f"{container}: {position:08d}"


def test_manifest(container: Path) -> None:
    manifest = LmdbReader(container).manifest
    assert manifest.count == 300
    assert manifest.fields == ("cls", "jpg", "json")
    assert manifest.splits == {"train": ((0, 200),), "val": ((200, 300),)}
    assert manifest.classes == tuple("abcdefg")
    assert manifest.seed == 3
    assert manifest.shards[0].size == container.stat().st_size


def test_fingerprint_is_the_specified_hash(container: Path) -> None:
    digest = hashlib.sha256()
    for record in expected(samples()):
        for name, payload in record.fields.items():
            digest.update(bytes([len(record.key)]) + record.key.encode() + bytes([len(name)]) + name.encode())
            digest.update(struct.pack("<II", len(payload), google_crc32c.value(payload)))
    assert LmdbReader(container).manifest.fingerprint == f"sha256:{digest.hexdigest()}"


field_names = st.sampled_from(["jpg", "png", "webp", "txt", "seg.png", "boxes.json", "a", "a-b", "a_b", "z" * 64])
payloads = st.binary(max_size=40) | st.integers(0, 3).flatmap(
    lambda n: st.sampled_from([1990, 2010, 2014, 2030, 4079, 4080, 4081, 9000]).map(lambda size: bytes([n]) * size)
)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.dictionaries(field_names, payloads, min_size=1, max_size=5)), max_size=12)
)
@settings(max_examples=60)
def test_any_records_come_back(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Fields]]) -> None:
    path = tmp_path_factory.mktemp("any") / "out.lmdb"
    position, written = -1, []
    for step, fields in steps:
        position += step
        written.append((position, fields, ImageInfo(), "all"))
    build(path, written)
    with LmdbReader(path) as reader:
        assert len(reader) == len(steps)
        assert read_all(reader) == expected(written)


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
    count = 65_536 + 300
    build(tmp_path / "out", [(i * 2, {"cls": b"%d" % (i % 10)}, ImageInfo(i % 10), "all") for i in range(count)])
    with LmdbReader(tmp_path / "out") as reader:
        looked = np.random.default_rng(0).permutation(count)
        located = reader.locate(looked, "cls")
        assert (located.position == looked * 2).all()
        assert (located.label == looked % 10).all()
        assert [bytes(reader.view(i, "cls")) for i in (0, 65_535, 65_536, count - 1)] == [b"0", b"5", b"6", b"5"]


def test_opening_and_locating_cost_no_more_for_more_records(tmp_path: Path) -> None:
    def seconds(count: int) -> tuple[float, float]:
        path = tmp_path / str(count)
        build(path, [(i, {"jpg": b"x"}, ImageInfo(), "all") for i in range(count)])
        looked = np.random.default_rng(0).integers(0, count, 256)
        reader = LmdbReader(path)
        reader.locate(looked)
        return _fastest(lambda: LmdbReader(path)), _fastest(lambda: reader.locate(looked))

    (few_open, few_locate), (many_open, many_locate) = seconds(500), seconds(70_000)
    assert many_open < 5 * few_open + 2e-3  # 140 times the records
    assert many_locate < 5 * few_locate + 2e-3


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


def test_no_records(tmp_path: Path) -> None:
    build(tmp_path / "out", [])
    reader = LmdbReader(tmp_path / "out")
    assert len(reader) == 0
    assert list(reader) == []
    with pytest.raises(IndexError):
        reader.view(0, "jpg")


# What a writer refuses.


@pytest.mark.parametrize(
    ("position", "fields", "info", "split", "message"),
    [
        (5, {"jpg": b"x"}, ImageInfo(), "all", "does not follow 5"),
        (10**8, {"jpg": b"x"}, ImageInfo(), "all", "does not fit a key of 8 digits"),
        (6, {}, ImageInfo(), "all", "has no field"),
        (6, {"JPG": b"x"}, ImageInfo(), "all", "field name 'JPG'"),
        (6, {"__x": b"x"}, ImageInfo(), "all", "field name '__x'"),
        (6, {"jpg": "text"}, ImageInfo(), "all", "found str"),
        (6, {"jpg": b"x"}, ImageInfo(3), "all", "label is 3 but its field cls is None"),
        (6, {"cls": b"4"}, ImageInfo(3), "all", "label is 3 but"),
        (6, {"cls": b"3"}, ImageInfo(), "all", "label is -1 but"),
        (6, {"jpg": b"x"}, ImageInfo(width=1 << 31), "all", "2147483648"),
        (6, {"jpg": b"x"}, ImageInfo(orientation=9), "all", "orientation 9"),
        (6, {"jpg": b"x"}, ImageInfo(), "train", "union"),
        (6, {"jpg": b"x"}, ImageInfo(), "a b", "split name"),
    ],
)
def test_illegal_records(
    tmp_path: Path, position: int, fields: Fields, info: ImageInfo, split: str, message: str
) -> None:
    writer = LmdbWriter(tmp_path / "out")
    writer.write(5, {"jpg": b"y"}, ImageInfo(), "all")
    with pytest.raises(ContainerError, match=message):
        writer.write(position, fields, info, split)
    writer.write(7, {"jpg": b"z"}, ImageInfo(), "all")  # the illegal one left nothing behind
    writer.finish(Description())
    assert [record.fields for record in LmdbReader(tmp_path / "out")] == [{"jpg": b"y"}, {"jpg": b"z"}]


def test_splits_are_contiguous(tmp_path: Path) -> None:
    writer = LmdbWriter(tmp_path / "out")
    for position, split in enumerate(("train", "val")):
        writer.write(position, {"jpg": b"y"}, ImageInfo(), split)
    with pytest.raises(ContainerError, match="left and may not be entered"):
        writer.write(2, {"jpg": b"y"}, ImageInfo(), "train")
    writer.abort()


def test_fewer_classes_than_labels(tmp_path: Path) -> None:
    writer = LmdbWriter(tmp_path / "out")
    writer.write(0, {"cls": b"2"}, ImageInfo(2), "all")
    with pytest.raises(ContainerError, match="label 2, but there are 2 classes"):
        writer.finish(Description(classes=("a", "b")))
    writer.abort()


def test_a_writer_ends_once(tmp_path: Path) -> None:
    writer = LmdbWriter(tmp_path / "out")
    writer.finish(Description())
    with pytest.raises(ContainerError, match="closed"):
        writer.write(0, {"jpg": b""}, ImageInfo(), "all")
    with pytest.raises(ContainerError, match="closed"):
        writer.finish(Description())
    writer.abort()
    writer.abort()


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
