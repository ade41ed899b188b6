"""Sets of shards: patterns, the index file, files that a target may replace, and the number of descriptors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from lmdb_containers import expected, read_all, sample, write
from tar_sets import build, contents

from iofast import open_reader
from iofast.checking import verify
from iofast.containers import open_files, shards
from iofast.containers.base import Failures
from iofast.containers.manifest import Description
from iofast.containers.shards import expand, is_pattern
from iofast.containers.tar import TarReader, TarWriter
from iofast.containers.targets import ShardTarget
from iofast.errors import ContainerError, OptionError, SourceError, TargetError

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


def test_overwriting_removes_what_the_old_manifest_names(tmp_path: Path) -> None:
    build(tmp_path / "x.tar", [sample(i, 3000) for i in range(200)])
    assert len(contents(tmp_path)) > 5
    new = [sample(i, 500) for i in range(20)]
    with ShardTarget(tmp_path / "x.tar", ".tar", overwrite=True) as target:
        writer = TarWriter(target.partial, "x.tar", Description(), 8)
        write(writer, new)
        writer.finish()
        target.publish(writer.files)
    assert sorted(contents(tmp_path)) == ["x-000000.tar", "x.tar.index", "x.tar.manifest"]
    assert read_all(TarReader(tmp_path / "x.tar")) == expected(new)  # type: ignore[arg-type]


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
    monkeypatch.setattr(open_files, "_AT_A_TIME", 2)
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
