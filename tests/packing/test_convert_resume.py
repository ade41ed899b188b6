"""Copies that were interrupted: finished sections are kept, and the result has the bytes of one run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import forked
import pytest
from container_sets import SUFFIXES, Quiet, build, convert, files, in_shards, picture, records
from places import ROOT
from tar_sets import foreign
from todays import todays

from iofast import pack
from iofast.checking import verify
from iofast.cli import main
from iofast.errors import ContainerError, TargetError

COUNT, STOP = 60, 37
PROGRAM = """
import os, signal, sys
sys.path.insert(0, "tests/support")
from container_sets import Quiet, convert

class Killed(Quiet):
    def step(self, *_):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

convert(sys.argv[1], sys.argv[2], Killed(int(sys.argv[3])))
"""


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files(path)}


def interrupt(source: Path, target: Path | str, number: int = STOP, **options: object) -> None:
    with pytest.raises(KeyboardInterrupt, match="goes on from there"):
        convert(source, target, Quiet(number, KeyboardInterrupt()), **options)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container whose copies have several sections, also as LMDB."""
    monkeypatch.setattr("iofast.packing.copying.TRANSACTION_BYTES", 20_000)
    (tmp_path / "source").mkdir()
    return build(tmp_path / "source" / "set.lmdb", COUNT)


@pytest.mark.parametrize("suffix", todays(SUFFIXES))
class TestInterrupted:
    @pytest.fixture
    def whole(self, source: Path, suffix: str, tmp_path: Path) -> dict[str, bytes]:
        (tmp_path / "whole").mkdir()
        convert(source, tmp_path / "whole" / f"out{suffix}", **in_shards(f"out{suffix}", 20_000))
        return contents(tmp_path / "whole" / f"out{suffix}")

    @pytest.mark.parametrize("what", [KeyboardInterrupt(), TargetError("the disk is full")])
    def test_goes_on(
        self, source: Path, suffix: str, tmp_path: Path, whole: dict[str, bytes], what: BaseException
    ) -> None:
        target, options = tmp_path / f"out{suffix}", in_shards(f"out{suffix}", 20_000)
        for number in (1, STOP, 9):
            with pytest.raises(type(what), match=r"the same command goes on from there; delete .*partial to start"):
                convert(source, target, Quiet(number, what), **options)
            assert not files(target.with_name(f"out{suffix}.manifest"))
        assert STOP // 2 < convert(source, target, **options).resumed < COUNT
        assert verify(target).whole
        assert records(target) == records(source)
        assert suffix == ".lmdb" or contents(target) == whole

    def test_damage_leaves_nothing(self, source: Path, suffix: str, tmp_path: Path) -> None:
        with pytest.raises(ContainerError):
            convert(source, tmp_path / f"out{suffix}", Quiet(9, ContainerError("it is damaged")))
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_set_that_is_to_be_replaced_can_still_be_read(self, source: Path, suffix: str, tmp_path: Path) -> None:
        target = build(tmp_path / f"out{suffix}", 5)
        interrupt(source, target, overwrite=True)
        assert len(records(target)) == 5

    def test_other_work_is_refused_and_damaged_work_begun_anew(
        self, source: Path, suffix: str, tmp_path: Path, whole: dict[str, bytes]
    ) -> None:
        target, options = tmp_path / f"out{suffix}", in_shards(f"out{suffix}", 20_000)
        interrupt(build(tmp_path / "source" / "other.lmdb", COUNT - 1), target, **options)
        with pytest.raises(TargetError, match=r"a run with copy of .*other.lmdb, not .*set.lmdb: give"):
            convert(source, target, **options)
        (tmp_path / f"out{suffix}.partial" / "plan.json").write_text("{")
        assert convert(source, target, **options).resumed == 0
        assert suffix == ".lmdb" or contents(target) == whole

    def test_a_pack_does_not_sweep_it_away(self, source: Path, suffix: str, tmp_path: Path) -> None:
        target, options = tmp_path / f"out{suffix}", in_shards(f"out{suffix}", 20_000)
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "a.jpg").write_bytes(picture(1))
        interrupt(source, target, **options)
        with pytest.raises(TargetError, match="holds the work of a"):
            pack(tmp_path / "images", target, workers=1)
        assert convert(source, target, **options).resumed > 0


@pytest.mark.parametrize("name", todays(["out.lmdb", "out.tar", "out.tfrecord", "out/"]))
def test_killed(source: Path, tmp_path: Path, name: str) -> None:
    """No incomplete file gets its final name, and the same command gives the files of an uninterrupted run.

    Of LMDB it gives the records: the killed process has larger transactions, which the plan keeps.
    """
    target = f"{tmp_path}/{name}"
    command = [sys.executable, "-c", PROGRAM, str(source), target, str(STOP)]
    ended = forked.run(command, cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == {"source", f"{name.rstrip('/')}.partial"}
    convert(source, target)
    (tmp_path / "whole").mkdir()
    convert(source, f"{tmp_path}/whole/{name}")
    whole = tmp_path / "whole"
    expected = {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    if name == "out.lmdb":
        assert records(tmp_path / name) == records(whole / name)
    else:
        assert {path: (tmp_path / path).read_bytes() for path in expected} == expected
    assert not (tmp_path / f"{name.rstrip('/')}.partial").exists()


def test_warnings_speak_of_all_records(tmp_path: Path) -> None:
    members = {f"{n}.{kind}": picture(n) if kind == "jpg" else b"x" for n in (3, 5, 7) for kind in ("jpg", "a.pyd")}
    path = foreign(tmp_path / "their.tar", members)
    interrupt(path, tmp_path / "out.tar", 3, shard_records=1)
    result = convert(path, tmp_path / "out.tar", shard_records=1)
    assert result.resumed == 2
    assert result.warnings == convert(path, tmp_path / "whole.tar").warnings
    assert "field 'a.pyd' of 3 records" in result.warnings[0]


def test_file_that_changed_in_its_place(tmp_path: Path) -> None:
    """The same places and lengths, another content: only the modification time differs."""
    path = foreign(tmp_path / "their.tar", {f"{n}.txt": b"old" for n in range(9)})
    interrupt(path, tmp_path / "out.tar", 5, shard_records=1)
    path.write_bytes(path.read_bytes().replace(b"old", b"new"))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(TargetError, match="a run with the source as it was before it changed"):
        convert(path, tmp_path / "out.tar", shard_records=1)


def test_command_says_what_was_there(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupt(source, tmp_path / "out.tar", shard_size=20_000)
    shutil.copytree(tmp_path / "out.tar.partial", tmp_path / "again.tar.partial", copy_function=shutil.copy2)
    kept = convert(source, tmp_path / "again.tar", shard_size=20_000).resumed
    assert main(["convert", str(source), str(tmp_path / "out.tar"), "--shard-size", "20kB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == kept > 0
