"""The tar container: right data, names, headers that every tar program reads, damage."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from lmdb_containers import expected, sample, samples
from tar_sets import SHARD, build, contents

from iofast import open_reader
from iofast.containers.file_bytes import FileBytes
from iofast.containers.shards import ShardCut
from iofast.containers.tar import TarReader, TarWriter
from iofast.errors import ContainerError, OptionError, UnfinishedError
from iofast.record import ImageInfo


def test_shards_and_manifest(tar_set: Path) -> None:
    """No shard holds two splits, none is larger than asked, none could have held the first record of the next."""
    manifest = TarReader(tar_set).manifest
    names = [shard.name for shard in manifest.shards]
    train = [f"out-train-{i:06d}.tar" for i in range(sum("train" in name for name in names))]
    assert names == [*train, *(f"out-val-{i:06d}.tar" for i in range(len(names) - len(train)))]
    for shard in manifest.shards:
        assert SHARD - 20_480 < shard.size <= SHARD or shard.name in (train[-1], names[-1])
        assert (tar_set.parent / shard.name).stat().st_size == shard.size
    assert sorted(contents(tar_set.parent)) == sorted([*names, "out.tar.index", "out.tar.manifest"])


def test_every_tar_program_reads_the_shards(tar_set: Path) -> None:
    records, found = expected(samples()), []
    for shard in TarReader(tar_set).manifest.shards:
        with tarfile.open(tar_set.parent / shard.name, "r:") as tar:
            assert tar.pax_headers == {}
            for info in tar:
                assert (info.mode, info.uid, info.gid, info.uname, info.mtime) == (0o444, 0, 0, "iofast", 946_684_800)
                data = tar.extractfile(info)
                assert data is not None
                found.append((info.name, data.read()))
            assert (tar_set.parent / shard.name).stat().st_size % 10_240 == 0
    assert found == [(f"{record.key}.{name}", data) for record in records for name, data in record.fields.items()]


def test_webdataset_reads_the_shards(tar_set: Path) -> None:
    pytest.importorskip("webdataset")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    found: list[dict[str, bytes]] = []
    for shard in TarReader(tar_set).manifest.shards:
        with open(tar_set.parent / shard.name, "rb") as stream:  # webdataset itself leaves its files open
            found += group_by_keys(tar_file_expander([{"url": shard.name, "stream": stream}]))
    assert [(item["__key__"], {k: v for k, v in item.items() if k[:2] != "__"}) for item in found] == [
        (record.key, record.fields) for record in expected(samples())
    ]


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


def test_an_unfinished_set(tar_set: Path, tmp_path: Path) -> None:
    build(tmp_path / "x.tar", [sample(0)])
    (tmp_path / "x.tar.partial").mkdir()
    (tmp_path / "x.tar.partial" / "lock").touch()
    assert len(open_reader(tmp_path / "x.tar")) == 1  # nothing was begun, or everything is over
    (tmp_path / "x.tar.partial" / "plan.json").touch()
    for path in ("x.tar", "x-*.tar", "x-000000.tar"):
        with pytest.raises(UnfinishedError, match=r"x\.tar was not finished"):
            open_reader(tmp_path / path)


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
