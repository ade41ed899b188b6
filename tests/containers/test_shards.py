"""Sets of shards: patterns, the index file, what a target may replace, many shards; tar headers and damage."""

import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from altered_index import alter
from lmdb_containers import expected, sample, samples, sections, write
from tar_sets import build, contents

from iofast import open_reader, open_writer
from iofast.checking import verify
from iofast.containers import base, index, open_files, shards
from iofast.containers.base import Failures
from iofast.containers.manifest import Description
from iofast.containers.shards import expand, is_pattern
from iofast.containers.tar import TarReader, TarWriter
from iofast.containers.targets import ShardTarget
from iofast.containers.writer import Section
from iofast.errors import ContainerError, OptionError, SourceError, TargetError, UnfinishedError

# Patterns.


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("x{,.tar}", ["x", "x.tar"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


def test_globs_are_sorted_and_must_match(tmp_path: Path) -> None:
    for name in ("b-1.tar", "a-10.tar", "a-2.tar", "[x].tar"):
        (tmp_path / name).touch()
    found = [os.path.basename(name) for name in expand(f"{tmp_path}/{{b,a}}-*.tar")]
    assert found == ["b-1.tar", "a-10.tar", "a-2.tar"]
    with pytest.raises(SourceError, match=r"no file matches .*c-\*\.tar"):
        expand(f"{tmp_path}/c-*.tar")
    with pytest.raises(OptionError, match=r"names in a store are not searched: expected braces"):
        expand("s3://bucket/c-*.tar")
    assert is_pattern(f"{tmp_path}/*.tar")
    assert not is_pattern(f"{tmp_path}/[x].tar")  # it is there


def test_a_pattern_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_SHARDS", 1000)
    with pytest.raises(OptionError, match="more than 1000 shards"):
        expand("{0..999999999999}{0..9}")


def test_patterns_are_of_shards(tmp_path: Path) -> None:
    for name in ("a.lmdb", "b.lmdb"):
        (tmp_path / name).touch()
    for pattern in ("*.lmdb", "{a,b}.lmdb"):
        with pytest.raises(OptionError, match=r"a pattern names the shards of one set, but .*a\.lmdb.*list of paths"):
            open_reader(tmp_path / pattern)


# The index file.


def test_index_files_of_another_size(tmp_path: Path) -> None:
    build(tmp_path / "x.tar", [sample(i, 100) for i in range(40)])
    index = tmp_path / "x.tar.index"
    data = index.read_bytes()
    for size in (0, 10, 31, 100, len(data) // 2, len(data) - 1):
        index.write_bytes(data[:size])
        with pytest.raises(ContainerError, match=r"x\.tar\.index"), TarReader(tmp_path / "x.tar") as reader:
            reader.locate(np.arange(40))


# Targets.


def test_a_target_that_is_taken(tmp_path: Path) -> None:
    for name in ("x-000000.tar", "x-val-000001.tar", "x.tar.manifest", "x.tar.index", "x.tar"):
        (tmp_path / name).write_bytes(b"of another")
        with pytest.raises(TargetError, match="exists already"):
            ShardTarget(tmp_path / "x.tar", ".tar").acquire()
        (tmp_path / name).unlink()
    for name in ("xy-000000.tar", "x-y.tar.manifest", "x-y-val-000000.tar"):  # other names
        (tmp_path / name).touch()
    with ShardTarget(tmp_path / "x.tar", ".tar") as target:
        target.discard()


def test_overwriting_spares_what_is_not_of_the_set(tmp_path: Path) -> None:
    (tmp_path / "x-000000.tar").write_bytes(b"of another program")
    with ShardTarget(tmp_path / "x.tar", ".tar", overwrite=True) as target:
        writer = TarWriter(target.partial, "x.tar", Description(), 8)
        write(writer, [sample(0)])
        writer.finish()
        with pytest.raises(TargetError, match=r"x-000000\.tar exists already and is no part of .*x\.tar"):
            target.publish(writer.files)
        target.discard()
    assert contents(tmp_path) == {"x-000000.tar": b"of another program"}


# Many shards.


def test_of_many_shards_some_are_compared_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iofast.containers.shard_reader.LOOKS", 3)
    monkeypatch.setattr(sys.modules["iofast.checking.verify"], "LOOKS", 3)
    manifest = build(tmp_path / "x.tar", [sample(i, 100) for i in range(9)], records=1)
    lost = tmp_path / manifest.shards[5].name  # 0, 4 and 8 are compared
    lost.rename(tmp_path / "gone")
    with TarReader(tmp_path / "x.tar") as reader:
        assert reader.values(np.arange(5)) == [sample(i, 100)[1]["jpg"] for i in range(5)]
        with pytest.raises(ContainerError, match=f"{lost} cannot be opened"):
            reader.values(np.array([5]))
    problems = verify(tmp_path / "x.tar").problems
    assert [problem.reason for problem in problems if f"{lost} cannot be read" in problem.reason] == [
        problems[0].reason
    ]
    (tmp_path / "gone").rename(lost)
    (tmp_path / manifest.shards[4].name).unlink()
    with pytest.raises(ContainerError, match=f"{manifest.shards[4].name} cannot be read"):
        TarReader(tmp_path / "x.tar")


def test_more_shards_than_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "MAX_OPEN", 3)
    monkeypatch.setattr(base, "MAX_OPEN", 4)
    records = [sample(i, 100) for i in range(20)]
    manifest = build(tmp_path / "x.tar", records, records=1)
    assert len(manifest.shards) == 20
    before = len(os.listdir("/proc/self/fd"))
    with TarReader(tmp_path / "x.tar") as reader:
        assert [record.fields["jpg"] for record in reader] == [fields["jpg"] for _, fields, _, _ in records]
        located = reader.locate(np.arange(20))
        with reader.payloads(located, 0, 20) as first, reader.payloads(located, 5, 9) as second:
            assert len(os.listdir("/proc/self/fd")) <= before + 4  # three shards and the index
            assert (first.fds == -1).sum() == 17
            assert (second.fds == -1).sum() == 4
        assert reader.values(np.arange(20)[::-1], "jpg") == [fields["jpg"] for _, fields, _, _ in records[::-1]]
        located = reader.locate(np.array([13]), "jpg")
        with (tmp_path / manifest.shards[13].name).open("r+b") as file:
            file.seek(int(located.offset[0]))
            file.write(bytes(5))
        failed: Failures = {}
        assert reader.values(np.arange(20)[::-1], "jpg", failed=failed).index(None) == 6
        assert list(failed) == [6], "the row of the request"
    del reader, first, second
    assert len(os.listdir("/proc/self/fd")) == before


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
