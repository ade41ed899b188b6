"""The tar container: right data, equal bytes for equal records, readable by everyone, damage noticed."""

from __future__ import annotations

import os
import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lmdb_containers import Fields, expected, read_all, sample, samples
from loader_sets import photographs
from tar_sets import SHARD, build, contents

from iofast import FastDataset, FastLoader, open_reader, open_writer
from iofast import transforms as T
from iofast.containers.base import Description
from iofast.containers.file_bytes import FileBytes
from iofast.containers.shards import ShardCut
from iofast.containers.tar import TarReader, TarWriter
from iofast.errors import ContainerError, IofastError, OptionError, UnfinishedError
from iofast.record import ImageInfo


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records with holes in their keys, two splits, ten shards. Not to be changed."""
    path = tmp_path_factory.mktemp("tar") / "out.tar"
    build(path, samples(), Description(classes=tuple("abcdefg"), recipe={"resize": 256}, seed=3))
    return path


def test_round_trip(container: Path) -> None:
    with TarReader(container) as reader:
        assert read_all(reader) == expected(samples())  # type: ignore[arg-type]
        located = reader.locate(np.arange(300))
        for i, (position, _, info, _) in enumerate(samples()):
            row = (located.position[i], located.label[i], located.width[i], located.height[i], located.orientation[i])
            assert row == (position, info.label, info.width, info.height, info.orientation)
        assert reader.name(0) == f"{container.parent}/out-train-000000.tar: 00000000"
        assert reader.values(np.arange(299, -1, -1), "jpg") == [fields["jpg"] for _, fields, _, _ in samples()[::-1]]
        with pytest.raises(KeyError, match="no field 'png'"):
            reader.view(0, "png")
        with pytest.raises(IndexError, match="300 is not in 0 … 299"):
            reader.locate(np.array([300]))


def test_shards_and_manifest(container: Path) -> None:
    """No shard holds two splits, none is larger than asked, none could have held the first record of the next."""
    manifest = TarReader(container).manifest
    assert manifest.splits == {"train": ((0, 200),), "val": ((200, 300),)}
    names = [shard.name for shard in manifest.shards]
    train = [f"out-train-{i:06d}.tar" for i in range(sum("train" in name for name in names))]
    assert names == [*train, *(f"out-val-{i:06d}.tar" for i in range(len(names) - len(train)))]
    for shard in manifest.shards:
        assert SHARD - 20_480 < shard.size <= SHARD or shard.name in (train[-1], names[-1])
        assert (container.parent / shard.name).stat().st_size == shard.size
    assert sorted(contents(container.parent)) == sorted([*names, "out.tar.index", "out.tar.manifest"])


def test_every_tar_program_reads_the_shards(container: Path) -> None:
    records, found = expected(samples()), []
    for shard in TarReader(container).manifest.shards:
        with tarfile.open(container.parent / shard.name, "r:") as tar:
            assert tar.pax_headers == {}
            for info in tar:
                assert (info.mode, info.uid, info.gid, info.uname, info.mtime) == (0o444, 0, 0, "iofast", 946_684_800)
                data = tar.extractfile(info)
                assert data is not None
                found.append((info.name, data.read()))
            assert (container.parent / shard.name).stat().st_size % 10_240 == 0
    assert found == [(f"{record.key}.{name}", data) for record in records for name, data in record.fields.items()]


def test_webdataset_reads_the_shards(container: Path) -> None:
    pytest.importorskip("webdataset")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    found: list[dict[str, bytes]] = []
    for shard in TarReader(container).manifest.shards:
        with open(container.parent / shard.name, "rb") as stream:  # webdataset itself leaves its files open
            found += group_by_keys(tar_file_expander([{"url": shard.name, "stream": stream}]))
    assert [(item["__key__"], {k: v for k, v in item.items() if k[:2] != "__"}) for item in found] == [
        (record.key, record.fields) for record in expected(samples())
    ]


field_names = st.sampled_from(["jpg", "png", "txt", "seg.png", "boxes.json", "a", "a-b", "a_b", "z" * 64])
payloads = st.binary(max_size=40) | st.sampled_from([511, 512, 513, 1024, 10_240]).map(lambda size: b"\1" * size)
records = st.lists(st.tuples(st.integers(1, 9), st.dictionaries(field_names, payloads, min_size=1)), max_size=12)


@given(records, st.sampled_from([1, 10_240, 30_000, 1 << 30]))
@settings(max_examples=40)
def test_any_records_come_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Fields]], shard_size: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "out.tar"
    position, written = -1, []
    for step, fields in steps:
        position += step
        written.append((position, fields, ImageInfo(), "all"))
    build(path, written, shard_size=shard_size)
    with TarReader(path) as reader:
        assert read_all(reader) == expected(written)  # type: ignore[arg-type]


def test_same_records_same_bytes(tmp_path: Path) -> None:
    for name, turned in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        records = [(p, dict(reversed(f.items())) if turned else f, i, s) for p, f, i, s in samples()]
        build(tmp_path / name / "out.tar", records)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_fingerprint_is_that_of_any_container(container: Path, tmp_path: Path) -> None:
    import lmdb_containers

    assert lmdb_containers.build(tmp_path / "x", samples()).fingerprint == TarReader(container).manifest.fingerprint


@pytest.mark.slow
def test_opening_costs_no_more_for_more_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: bytes and reads of opening the set and finding 100 records."""
    counted = []
    get, gather = FileBytes.__getitem__, FileBytes.gather

    def get_counted(self: FileBytes, part: slice) -> bytes:
        data = get(self, part)
        counted.append(len(data))
        return data

    def gather_counted(self: FileBytes, offsets: np.ndarray, size: int) -> np.ndarray:
        counted.append(len(offsets) * size)
        return gather(self, offsets, size)

    cost = []
    for count in (1000, 100_000):
        build(
            tmp_path / f"{count}.tar", [(i, {"x": b""}, ImageInfo(), "all") for i in range(count)], shard_size=1 << 40
        )
        with monkeypatch.context() as patch:
            patch.setattr(FileBytes, "__getitem__", get_counted)
            patch.setattr(FileBytes, "gather", gather_counted)
            counted.clear()
            TarReader(tmp_path / f"{count}.tar").locate(np.arange(100), "x")
            cost.append((len(counted), sum(counted)))
    assert cost[1][0] <= cost[0][0]
    assert cost[1][1] < cost[0][1] + 2000  # the checksums of a whole chunk's blocks, and one more number of a chunk


# What is refused.


def test_shards_that_are_missing_cut_or_replaced(tmp_path: Path) -> None:
    build(tmp_path / "x.tar", samples())
    shard = tmp_path / "x-val-000001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(ContainerError, match=r"x-val-000001\.tar was cut off, or replaced.*expected"):
        TarReader(tmp_path / "x.tar")
    shard.unlink()
    with pytest.raises(ContainerError, match=r"x-val-000001\.tar cannot be read: no such file"):
        TarReader(tmp_path / "x.tar")
    shard.write_bytes(data)
    with TarReader(tmp_path / "x.tar") as reader:  # and while it is open
        shard.write_bytes(data[:5000])
        with pytest.raises(ContainerError, match=r"x-val-000001\.tar was cut off"):
            list(reader)
        shard.unlink()
    shard.write_bytes(data)
    with TarReader(tmp_path / "x.tar") as reader:
        reader.view(len(reader) - 1)
        shard.write_bytes(data[:600])
        with pytest.raises(ContainerError, match="cut off"):
            list(reader)


def test_an_unfinished_set(container: Path, tmp_path: Path) -> None:
    build(tmp_path / "x.tar", [sample(0)])
    (tmp_path / "x.tar.partial").mkdir()
    (tmp_path / "x.tar.partial" / "lock").touch()
    assert len(open_reader(tmp_path / "x.tar")) == 1  # nothing was begun, or everything is over
    (tmp_path / "x.tar.partial" / "plan.json").touch()
    for path in ("x.tar", "x-*.tar", "x-000000.tar"):
        with pytest.raises(UnfinishedError, match=r"x\.tar was not finished"):
            open_reader(tmp_path / path)


def test_flipped_bits_are_noticed(container: Path, tmp_path: Path) -> None:
    """300 flips anywhere in a set: right data, or an error that names a file."""
    small = [sample(i, 3000, "train" if i < 8 else "val") for i in range(12)]
    build(tmp_path / "x.tar", small, shard_size=20_000)
    right, rng = expected(small), random.Random(4)
    files = sorted(contents(tmp_path).items())
    wrong = 0
    for _ in range(300):
        name, data = rng.choice(files)
        at = rng.randrange(len(data))
        (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        error = ""
        try:
            with TarReader(tmp_path / "x.tar") as reader:
                found = list(reader)
        except IofastError as caught:
            error, wrong = str(caught), wrong + 1
        else:
            assert found == right
        assert not error or (str(tmp_path / "x") in error and "\n" not in error)
        (tmp_path / name).write_bytes(data)
    assert 100 < wrong < 300


def test_a_writer_refuses(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="must have room"):
        TarWriter(tmp_path, "x.tar", cut=ShardCut(0))
    writer = TarWriter(tmp_path, "x.tar")
    writer.write(*sample(5))
    with pytest.raises(ContainerError, match="does not follow 5"):
        writer.write(*sample(5))
    with pytest.raises(ContainerError, match="has begun"):
        writer.resume()
    writer.abort()
    with pytest.raises(ContainerError, match="is closed"):
        writer.write(*sample(6))


# In use.


def test_reading_in_other_processes(container: Path) -> None:
    with TarReader(container) as reader:
        copy = pickle.loads(pickle.dumps(reader))
        assert copy.record(299) == reader.record(299)
        child = os.fork()
        if child == 0:
            os._exit(0 if reader.record(7) == copy.record(7) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_loader_gives_the_same_batches_as_from_lmdb(tmp_path: Path) -> None:
    images = photographs(40)
    for path, more in ((tmp_path / "x.lmdb", {}), (tmp_path / "x.tar", {"shard_size": 30_000})):
        with open_writer(path, classes=["a", "b"], **more) as writer:  # type: ignore[arg-type]
            for i, data in enumerate(images):
                writer.write({"jpg": data, "cls": i % 2}, split="train" if i < 30 else "val")
    assert len(contents(tmp_path)) > 6
    batches = []
    for path in (tmp_path / "x.lmdb", tmp_path / "x.tar", tmp_path / "x-train-*.tar", sorted(tmp_path.glob("x-*.tar"))):
        split = {"indices": range(30)} if "*" in str(path) else {"split": "train"}
        dataset = FastDataset(path, fields=["image", "label", "index"], **split)  # type: ignore[arg-type]
        options = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 2}
        loader = FastLoader(dataset, transform=[T.RandomResizedCrop(32)], **options)  # type: ignore[arg-type]
        batches.append([(b["image"].numpy().tobytes(), b["label"].tolist(), b["index"].tolist()) for b in loader])
    assert batches[0] == batches[1] == batches[2] == batches[3]


@pytest.mark.parametrize("field", ["rgb", "yuv"])
def test_raw_pixels_are_those_of_lmdb(tmp_path: Path, field: str) -> None:
    found = []
    for path in (tmp_path / "x.lmdb", tmp_path / "x.tar"):
        with open_writer(path) if path.suffix == ".lmdb" else open_writer(path, shard_size=20_000) as writer:
            for i in range(12):
                size = 3 * 40 * 30 if field == "rgb" else 40 * 30 * 3 // 2
                data = random.Random(i).randbytes(size)
                writer.write({field: data, "json": {"width": 40, "height": 30}, "cls": i})
        dataset = FastDataset(path)
        loader = FastLoader(dataset, batch_size=4, seed=2, transform=[T.RandomResizedCrop(16)], num_workers=2)
        found.append([np.asarray(dataset[3][0]).tobytes(), *(images.numpy().tobytes() for images, _ in loader)])
    assert found[0] == found[1]
    assert len(list(tmp_path.glob("x-*.tar"))) > 2
