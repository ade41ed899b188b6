"""The LMDB container: right data or an error, the same bytes for the same records, readable by anybody's LMDB."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iofast.containers import lmdb_writer
from iofast.containers.base import Description
from iofast.containers.index import ABSENT
from iofast.containers.lmdb import LmdbReader, LmdbWriter
from iofast.containers.manifest import Manifest
from iofast.errors import ContainerError, TargetError, UnfinishedError
from iofast.record import ImageInfo, Record

Fields = dict[str, bytes]
Sample = tuple[int, Fields, ImageInfo, str]


def sample(position: int, size: int | None = None, split: str = "all") -> Sample:
    """A record with a large payload, a small one and a label, all told by its position."""
    rng = random.Random(position)
    jpg = rng.randbytes(rng.choice((0, 10, 3000, 9000)) if size is None else size)
    label = position % 7
    info = ImageInfo(label, position % 60_000 + 1, 20, position % 8 + 1)
    return position, {"jpg": jpg, "cls": b"%d" % label, "json": b'{"path":"%d.jpg"}' % position}, info, split


def build(path: Path, samples: Sequence[Sample], description: Description | None = None) -> Manifest:
    writer = LmdbWriter(path)
    for position, fields, info, split in samples:
        writer.write(position, fields, info, split)
    return writer.finish(description or Description())


def read_all(reader: LmdbReader) -> list[Record]:
    """Every record, by index and payload at once; also compares what locate and pread give with the record."""
    records = list(reader)
    indices = np.arange(len(reader))
    for field in reader.manifest.fields:
        located = reader.locate(indices, field)
        with reader.payloads(located, 0, len(indices)) as (fds, offsets, lengths, crcs, orientations):
            assert crcs is not None
            assert (orientations == located.orientation).all()
            for i, record in enumerate(records):
                if located.file[i] != ABSENT:
                    payload = os.pread(int(fds[i]), int(lengths[i]), int(offsets[i]))
                    assert payload == record.fields[field]
                    assert google_crc32c.value(payload) == crcs[i]
    return records


def expected(samples: Sequence[Sample], width: int = 8) -> list[Record]:
    return [Record(f"{position:0{width}d}", dict(sorted(fields.items()))) for position, fields, _, _ in samples]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records with holes in their keys, two splits, large and small payloads. Not to be changed."""
    path = tmp_path_factory.mktemp("lmdb") / "out.lmdb"
    build(path, samples(), Description(classes=tuple("abcdefg"), recipe={"resize": 256}, seed=3))
    return path


def samples() -> list[Sample]:
    return [sample(i + i // 10, split="train" if i < 200 else "val") for i in range(300)]


def copy(container: Path, folder: Path) -> Path:
    path = folder / "copy.lmdb"
    path.write_bytes(container.read_bytes())
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
        (6, {"jpg": b"x"}, ImageInfo(width=70_000), "all", "70000"),
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


# Whom else the file serves, and what others may do to it.


def test_plain_lmdb_reads_it(container: Path) -> None:
    with lmdb.open(str(container), subdir=False, readonly=True, lock=False) as environment, environment.begin() as txn:
        assert txn.get(b"00000042.jpg") == next(f for p, f, _, _ in samples() if p == 42)["jpg"]
        keys = [key for key, _ in txn.cursor() if not key.startswith(b"__iofast__")]
        assert keys == [f"{r.key}.{name}".encode() for r in expected(samples()) for name in r.fields]
        LmdbReader(container).record(3)  # beside an environment that the user holds open


def compact(path: Path, environment: lmdb.Environment) -> None:
    environment.copy(str(path.with_suffix(".compact")), compact=True)
    os.replace(path.with_suffix(".compact"), path)


def put_another(path: Path, environment: lmdb.Environment) -> None:
    with environment.begin(write=True) as txn:
        for i in range(50):
            txn.put(b"00000000.zzz%02d" % i, bytes(i * 100))


@pytest.mark.parametrize("change", [compact, put_another])
def test_right_data_after_a_change(
    container: Path, tmp_path: Path, change: Callable[[Path, lmdb.Environment], None]
) -> None:
    path = copy(container, tmp_path)
    before = LmdbReader(container).locate(np.arange(300), "jpg")
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26) as environment:
        change(path, environment)
    reader = LmdbReader(path)
    assert read_all(reader) == expected(samples())
    if change is compact:
        assert (reader.locate(np.arange(300), "jpg").offset != before.offset).any()


def test_a_change_while_open(container: Path, tmp_path: Path) -> None:
    path = copy(container, tmp_path)
    reader = LmdbReader(path)
    reader.locate(np.arange(300))
    with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26) as environment:
        for _ in range(4):  # so that pages of the first state are used again
            put_another(path, environment)
    assert read_all(reader) == expected(samples())


def test_changed_and_deleted_payloads_are_damage(container: Path, tmp_path: Path) -> None:
    path = copy(container, tmp_path)
    with lmdb.open(str(path), subdir=False, lock=False) as environment, environment.begin(write=True) as txn:
        txn.put(b"00000003.json", b"{}")
        txn.delete(b"00000004.json")
    reader = LmdbReader(path)
    assert reader.record(5) == expected(samples())[5]
    for index in (3, 4):
        with pytest.raises(ContainerError, match=f"0000000{index}: json at offset .* is damaged"):
            reader.record(index)
    located = reader.locate(np.arange(6), "json")  # a batch goes on: the kernel fails these rows by their checksums
    with reader.payloads(located, 3, 5) as (fds, offsets, lengths, crcs, _):
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
    monkeypatch.setattr(LmdbWriter, "_fill", lambda *_: 0)
    build(tmp_path / "out", [sample(0)])
    with pytest.raises(UnfinishedError, match="never finished"):
        LmdbReader(tmp_path / "out")


# Damage.


def _read_or_refuse(path: Path, right: list[Record]) -> bool:
    """Read everything: it must be right, or refused. True if it was refused."""
    try:
        found = read_all(LmdbReader(path))
    except ContainerError as error:
        message = str(error)
    else:
        assert found == right
        return False
    assert str(path) in message
    return True


def test_flipped_bits_never_give_wrong_data(tmp_path: Path) -> None:
    """In every structure of the file: meta, branch, leaf and overflow pages, payloads, index, manifest."""
    path = tmp_path / "out"
    some = [sample(i, split="train" if i < 20 else "val") for i in range(30)]
    build(path, some)
    data, right = path.read_bytes(), expected(some)
    rng = random.Random(0)
    places = [*range(168), *range(4096, 4096 + 168)]
    for page in range(8192, len(data), 4096):
        places += [
            page + 10,
            page + 12,
            page + 14,
            page + 16,
            page + 17,
            *(page + rng.randrange(4096) for _ in range(6)),
        ]
    refused = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        refused += _read_or_refuse(path, right)
    assert refused > len(places) // 3


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_truncation_is_named(container: Path, tmp_path: Path, share: float) -> None:
    path = copy(container, tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ContainerError, match=f"{path}.*"):
        LmdbReader(path)


def test_truncation_after_opening_is_an_error_and_no_signal(container: Path, tmp_path: Path) -> None:
    path = copy(container, tmp_path)
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
    container: Path, tmp_path: Path, at: int, layout: str, value: int, message: str
) -> None:
    path = copy(container, tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, at, value)
    path.write_bytes(data)
    with pytest.raises(ContainerError, match=message):
        LmdbReader(path)


def test_places_outside_the_file_are_refused(container: Path, tmp_path: Path) -> None:
    """Rows whose checksums are right and whose places are not: a lying author, or a writer with a mistake."""
    for offset, length in ((1 << 63, 10), (10, 0xFFFFFFFF), ((1 << 64) - 5, 10)):
        path = copy(container, tmp_path)
        data = bytearray(path.read_bytes())
        start = data.rindex(b"iofastIX")
        row_size, rows = struct.unpack_from("<I", data, start + 12)[0], struct.unpack_from("<I", data, start + 24)[0]
        checks = start + 64
        first = checks + 4 * -(-rows // 256)
        struct.pack_into("<IQI", data, first + 18 + 20, 0, offset, length)  # row 0, field 1: jpg
        crc = google_crc32c.value(bytes(data[first : first + 256 * row_size]))
        struct.pack_into("<I", data, checks, crc)
        struct.pack_into(
            "<I", data, start + 60, google_crc32c.value(bytes(data[start : start + 60] + data[checks:first]))
        )
        path.write_bytes(data)
        with pytest.raises(ContainerError, match="position 0 outside the file"):
            LmdbReader(path).locate(np.array([1, 0]))


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


@pytest.mark.parametrize("index", [-1, 300, 1 << 40])
def test_an_index_out_of_range(container: Path, index: int) -> None:
    reader = LmdbReader(container)
    for read in (lambda: reader.locate(np.array([0, index])), lambda: reader.view(index), lambda: reader.record(index)):
        with pytest.raises(IndexError, match=str(index)):
            read()


# Processes and threads.


def _child(reader: LmdbReader, answer: multiprocessing.connection.Connection) -> None:
    answer.send([(record.key, record.fields) for record in reader])
    answer.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("moved", [False, True])
def test_readers_cross_processes(container: Path, tmp_path: Path, method: str, moved: bool) -> None:
    path = copy(container, tmp_path)
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


def test_pickle(container: Path, tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(LmdbReader(container)))
    assert again.manifest == LmdbReader(container).manifest
    assert read_all(again) == expected(samples())
    path = copy(container, tmp_path)
    pickled = pickle.dumps(LmdbReader(path))
    path.unlink()
    build(path, [sample(0)])
    with pytest.raises(ContainerError, match="replaced by another dataset"):
        pickle.loads(pickled).record(0)


def test_many_threads_open_and_close_at_will(container: Path) -> None:
    reader, right = LmdbReader(container), expected(samples())
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
            with reader.payloads(located, 0, 16) as (fds, offsets, lengths, _, _):
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


def test_descriptors_are_given_back(container: Path) -> None:
    def count() -> int:
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == str(container) for link in links)

    gc.collect()  # what earlier tests left in tracebacks
    before = count()
    for _ in range(20):
        with LmdbReader(container) as reader:
            view = reader.view(5)
    del reader
    with pytest.raises(ContainerError):
        LmdbReader(Path("/dev/null"))
    right = bytes(view)
    assert right == samples()[5][1]["jpg"]  # a view outlives its reader
    del view
    assert count() == before


def test_a_closed_reader_opens_again(container: Path) -> None:
    reader = LmdbReader(container)
    reader.close()
    assert reader.record(0) == expected(samples())[0]


def test_replaced_by_rename_while_open(container: Path, tmp_path: Path) -> None:
    """A running job goes on with the dataset that it opened."""
    path = copy(container, tmp_path)
    reader = LmdbReader(path)
    build(tmp_path / "new", [sample(0)])
    os.replace(tmp_path / "new", path)
    assert read_all(reader) == expected(samples())


def test_no_uninitialised_memory_in_the_file(tmp_path: Path) -> None:
    """glibc fills fresh memory with a byte of our choice: it must not reach the file."""
    program = """
import random, sys
from iofast.containers.base import Description
from iofast.containers.lmdb import LmdbWriter
from iofast.record import ImageInfo
rng, writer = random.Random(0), LmdbWriter(sys.argv[1])
for i in range(3000):
    fields = {"jpg": rng.randbytes(rng.choice((10, 1900, 2100, 9000))), "cls": b"1"}
    writer.write(i, fields, ImageInfo(1), "all")
writer.finish(Description())
"""
    for byte in ("85", "170"):
        environment = {**os.environ, "MALLOC_PERTURB_": byte}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / byte)], env=environment, check=True, timeout=60)
    assert (tmp_path / "85").read_bytes() == (tmp_path / "170").read_bytes()
