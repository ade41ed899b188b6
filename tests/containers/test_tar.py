"""The tar container: right data, names, headers that every tar program reads, damage."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from altered_index import alter
from lmdb_containers import expected, sample, samples, sections, write
from tar_sets import build

from iofast import open_reader, open_writer
from iofast.containers import index
from iofast.containers.manifest import Description
from iofast.containers.tar import TarReader, TarWriter
from iofast.containers.writer import Section
from iofast.errors import ContainerError, UnfinishedError


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
    assert len(open_reader(tmp_path / "x.tar")) == 1  # which another run is to replace, and does not yet
    for name in ("publishing", "x.tar.manifest"):
        (tmp_path / "x.tar.partial" / name).touch()
    for path in ("x.tar", "x-*.tar", "x-000000.tar"):
        with pytest.raises(UnfinishedError, match=r"x\.tar was not finished"):
            open_reader(tmp_path / path)


def test_a_writer_refuses(tmp_path: Path) -> None:
    writer, section = TarWriter(tmp_path, "x.tar", Description(), 8), Section(0, "all", 0, 10)
    writer.begin(section)
    with pytest.raises(ContainerError, match="section 0 is not finished yet"):
        writer.begin(section._replace(number=1))
    writer.abort()


def test_a_killed_run_keeps_its_full_shards(tmp_path: Path) -> None:
    """One whose shard has another size or time, or whose rows are damaged or of other sections, is written again."""
    some = [sample(i, 200, "train" if i < 30 else "val") for i in range(60)]
    writer = TarWriter(tmp_path, "x.tar", Description(), 8)
    write(writer, some, 10)
    every = sections(some, 10)
    assert TarWriter(tmp_path, "x.tar", Description(), 8).resume(every) == []
    (tmp_path / "shard-000000.tar").write_bytes((tmp_path / "shard-000000.tar").read_bytes())
    (tmp_path / "shard-000001.tar").write_bytes(b"short")
    (tmp_path / "rows-000002").write_bytes((tmp_path / "rows-000002").read_bytes()[:-1] + b"x")
    moved = [*every[:4], every[4]._replace(stop=every[4].stop + 1)]
    assert TarWriter(tmp_path, "x.tar", Description(), 8).resume(moved) == [every[0], every[1], every[2], moved[4]]
    assert not (tmp_path / "shard-000001.tar").exists()
    again = TarWriter(tmp_path, "x.tar", Description(), 8)
    again.resume(every)
    write(again, some, 10)
    assert again.finish().count == 60


ALTERED = [("jpg.offset", 1 << 47), ("jpg.length", 1 << 31), ("label", -2), ("width", 1 << 30), ("position", 1 << 60)]


@pytest.mark.parametrize("held", [index.HELD, 0])
@pytest.mark.parametrize(("column", "value"), ALTERED)
def test_an_altered_index_whose_checksums_are_right(
    tmp_path: Path, column: str, value: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value is checked when it is used, before memory is taken for it; also of a large set, which is read by rows."""
    monkeypatch.setattr(index, "HELD", held)
    build(tmp_path / "x.tar", [sample(i) for i in range(6)])
    alter(tmp_path / "x.tar", 4, {column: value})
    with open_reader(tmp_path / "x.tar") as reader:
        assert reader.record(3).fields["jpg"]
        with pytest.raises(ContainerError, match=r"of record 4 "):
            reader.locate(np.array([3, 4]), "jpg"), reader.positions(np.array([3, 4]))


@pytest.mark.parametrize("name", ["x.lmdb", "x.tar"])
def test_a_set_of_an_earlier_version(tmp_path: Path, name: str) -> None:
    with open_writer(tmp_path / name) as writer:
        writer.write({"txt": "one"})
    file = tmp_path / {"x.lmdb": name, "x.tar": "x.tar.manifest"}[name]
    data = file.read_bytes()
    assert data.count(b'"version":4') == 1
    file.write_bytes(data.replace(b'"version":4', b'"version":3'))
    with pytest.raises(ContainerError, match="found 3, of an earlier iofast: remove it and pack again"):
        open_reader(tmp_path / name)
